"""A made-up forecast and clean rows to watch against it. Only documented columns are used."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

STEPS, BATCH = 2000, 1024


def law(progress):
    return 1.5 + 0.9 * np.asarray(progress, float) ** -0.35


@dataclass(frozen=True)
class MadeUp:
    """+-1, 2 and 4 % at 50, 90 and 99 % around a power of progress; simultaneous bands 1.5 times as wide."""

    sha256: str = "a" * 64
    metric: str = "loss"
    steps: int = STEPS
    batch: int = BATCH

    def law(self, progress) -> float:
        return float(law(progress))

    def frame(self, levels=(0.5, 0.9, 0.99)) -> pd.DataFrame:
        progress = np.arange(1, 101) / 100
        out = pd.DataFrame(
            {
                "run": "target",
                "step": progress * STEPS,
                "tokens": progress * STEPS * BATCH,
                "progress": progress,
            }
        )
        out["median"] = law(progress)
        for level in levels:
            half, name = {0.5: 0.01, 0.9: 0.02, 0.99: 0.04}[level], round(100 * level)
            out[f"lo{name}"], out[f"hi{name}"] = out["median"] * (1 - half), out["median"] * (1 + half)
            out[f"sim_lo{name}"] = out["median"] * (1 - 1.5 * half)
            out[f"sim_hi{name}"] = out["median"] * (1 + 1.5 * half)
        return out


def ar1(rng, n, rho, sd):
    noise = rng.standard_normal(n) * np.sqrt(1 - rho**2)
    noise[0] = rng.standard_normal()
    for i in range(1, n):
        noise[i] += rho * noise[i - 1]
    return sd * noise


def clean_rows(seed, n=STEPS, rho=0.3, loss_sd=0.02, norm_sd=0.12):
    """A laptop run: loss in its first fast fall, gradient norm settling, update norm following the rate."""
    rng = np.random.default_rng(seed)
    t = np.arange(1, n + 1)
    loss = 1.5 + 4 * (1 + t / 30) ** -0.55
    rate = np.minimum(t / 200, 1 - (t - 200) / (n + 1))
    columns = {
        "train_ce": loss * np.exp(ar1(rng, n, rho, loss_sd)),
        "grad_norm": 0.4 * np.exp(2 * np.exp(-t / 80) + ar1(rng, n, rho, norm_sd)),
        "update_norm": rate * np.exp(ar1(rng, n, rho, norm_sd)),
    }
    return [
        {"step": int(s), "tokens": int(s) * BATCH, **{k: float(v[s - 1]) for k, v in columns.items()}}
        for s in t
    ]


@pytest.fixture
def forecast():
    return MadeUp()


@pytest.fixture
def clean():
    return clean_rows
