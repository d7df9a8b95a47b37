"""Ladders to fit, and the public data sets where they lie on this machine."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def ladder_rows():
    """Four finished rungs of an exact law L = 1.7 + 1.4 (C / 1e18)^-.15, with progress rows and 20 tokens per
    parameter; every run has the same shape in progress."""

    def make(sizes=(1e18, 4e18, 1.6e19, 6.4e19), progress=(0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0), steps=2000):
        rows = []
        for k, flops in enumerate(sizes):
            params = (flops / 120) ** 0.5
            final = 1.7 + 1.4 * (flops / 1e18) ** -0.15
            for x in progress:
                rows.append(
                    {
                        "run": f"r{k}",
                        "step": round(steps * x),
                        "tokens": 20 * params * x,
                        "flops": flops * x,
                        "params_active": params,
                        "progress": x,
                        "loss": final * x**-0.08,
                    }
                )
        return pd.DataFrame(rows)

    return make


@pytest.fixture
def finals(ladder_rows):
    """The last rows only."""
    rows = ladder_rows()
    return rows[rows["progress"] == 1].reset_index(drop=True)


@pytest.fixture(scope="session")
def public_data():
    folder = os.environ.get("LADDER_PUBLIC_DATA")
    if not folder:
        pytest.skip("LADDER_PUBLIC_DATA is not set: the public back-test tables are not on this machine")
    path = Path(folder)
    assert path.is_dir(), f"LADDER_PUBLIC_DATA={folder} is no folder"
    return path


@pytest.fixture
def rng():
    return np.random.default_rng(7)
