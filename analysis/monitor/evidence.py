"""What every detector answers with: an observation as plain data.

A detector is a small class whose state is plain data (JSON, bit-identical after a restart) and whose `update`
answers with `Evidence`: the numbers, the band, the window and the state that they ask for.
"""

import math
from typing import Any, TypedDict

import numpy as np

LOSSES = ("train_ce", "train_loss")  # the first that a row carries is the step's loss
NORMS = ("grad_norm", "update_norm")
STEP_METRICS = (*LOSSES, *NORMS, "router_entropy", "max_over_mean_load", "drop_fraction")

RUN = 3  # evaluations, rows or repeats running that make an observation count


class Evidence(TypedDict):
    """One observation, as plain data. `level` is the state that it alone asks for ("normal" for a reading);
    it is forgotten after 4 x `window` rows or evaluations (`unit`) without it."""

    detector: str
    code: str
    metric: str
    level: str
    window: int
    unit: str
    numbers: dict[str, float]
    text: str


def evidence(
    detector: str,
    code: str,
    metric: str,
    level: str,
    window: int,
    unit: str,
    numbers: dict[str, float],
    text: str = "",
) -> Evidence:
    return {
        "detector": detector,
        "code": code,
        "metric": metric,
        "level": level,
        "window": window,
        "unit": unit,
        "numbers": numbers,
        "text": text,
    }


def usable(value: Any) -> bool:
    """A number that has a logarithm."""
    return isinstance(value, int | float | np.number) and bool(math.isfinite(value) and value > 0)
