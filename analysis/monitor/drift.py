"""Detector 2, drift: has the loss left its own trend by less than a spike? A CUSUM over blocks of 64 rows.

What is judged is the log loss minus the log of the forecast's median at the same progress, so the shape that
the rungs share is gone; what is left is a level and a small slope in log progress. Rows are whitened with an
AR(1) coefficient, because a CUSUM on correlated rows alarms at many times its rate. Each block's mean is
predicted from the run's earlier clean blocks, and divided by the sd of that prediction error: such recursive
residuals are independent with unit variance in a healthy run (Brown, Durbin and Evans 1975), so the CUSUM
(Page 1954, k = 1/2) keeps the rate of false alarms of its textbook whatever the baseline rests on.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from analysis.monitor.evidence import Evidence, evidence
from analysis.monitor.limits import Limits

BLOCK = 64  # rows
MEMORY = 256  # clean blocks that carry the baseline
FIRST = 8  # blocks before one is judged
REACH = 0.5  # of log progress behind a block: farther back the loss need not have the forecast's shape
K = 0.5  # slack of the CUSUM, sds of a block
SLOPE = 0.03  # sd of the slope that may remain beside the forecast's shape, log loss per unit of log progress
RHO, CAREFUL = 0.98, 0.6  # AR(1) coefficient: the highest believed, and the one until the run's own is known
PRIOR = 8  # blocks that the ladder's own noise counts for


class Drift:
    """State: the open block's sums, the clean blocks, and the two CUSUMs.

    A block is (log progress, mean x_t, mean x_t-1, centred cross and lagged sums of squares a row). It joins
    the baseline one block late and only while neither CUSUM is past half its limit.
    """

    def __init__(self, limits: Limits, state: Mapping[str, Any] | None = None):
        state = state or {}
        self.limits = limits
        self.step: int = state.get("step", -1)
        self.before: float | None = state.get("before")  # x of the row before, when that was clean
        self.open: list[float] = list(state.get("open", (0.0,) * 7))  # n, log progress, x, x', xx, xx', x'x'
        self.blocks: list[list[float]] = [list(block) for block in state.get("blocks", ())]
        self.waiting: list[float] | None = state.get("waiting")
        self.rho: float = state.get("rho", CAREFUL)
        self.high: float = state.get("high", 0.0)
        self.low: float = state.get("low", 0.0)

    def state_dict(self) -> dict[str, Any]:
        names = ("step", "before", "open", "blocks", "waiting", "rho", "high", "low")
        return {name: getattr(self, name) for name in names}

    def restart(self) -> None:
        """A new regime: its level is learned anew."""
        self.__init__(self.limits, {"step": self.step, "rho": self.rho})

    def gap(self) -> None:
        """The next row does not follow the last one (a spike lies between, or a restart)."""
        self.before = None

    def update(self, step: int, x: float, progress: float) -> list[Evidence]:
        """x: log loss minus log forecast at `progress` (both of the row `step`)."""
        if step <= self.step:
            return []
        self.step = step
        before, self.before = self.before, x
        if before is None:
            return []
        u, s = math.log(progress), self.open
        for k, term in enumerate((1.0, u, x, before, x * x, x * before, before * before)):
            s[k] += term
        if s[0] < BLOCK:
            return []
        self.open = [0.0] * 7
        n = s[0]
        m0, m1 = s[2] / n, s[3] / n
        return self._judge([s[1] / n, m0, m1, s[5] / n - m0 * m1, max(s[6] / n - m1 * m1, 1e-14)])

    def _judge(self, block: list[float]) -> list[Evidence]:
        if self.waiting is not None and max(self.high, self.low) <= self.limits.drift / 2:
            self.blocks = [*self.blocks, self.waiting][-MEMORY:]
        self.waiting = block
        near = [b for b in self.blocks if b[0] >= block[0] - REACH]
        if len(near) < FIRST:
            return []
        past = np.array(near)
        self.rho = coefficient(past[:, 3].sum(), past[:, 4].sum())
        z, shift = residual(past, np.array(block), self.limits.loss_sd, self.limits.loss_rho)
        self.high, self.low = max(0.0, self.high + z - K), max(0.0, self.low - z - K)
        if max(self.high, self.low) < self.limits.drift:
            return []
        up = self.high >= self.low
        numbers = {"cusum": max(self.high, self.low), "shift": shift, "z": z, "limit": self.limits.drift}
        self.restart()  # the new level is learned; it does not alarm again unless it moves on
        text = (
            f"the loss has {'risen' if up else 'fallen'} {100 * abs(math.expm1(shift)):.2f} % off its own "
            f"trend: CUSUM {numbers['cusum']:.1f} over blocks of {BLOCK} rows, limit {numbers['limit']:g}"
        )
        code, level = ("drift_up", "precursor") if up else ("drift_down", "watch")
        return [evidence("drift", code, "loss", level, 5 * BLOCK, "rows", numbers, text)]


def residual(
    past: np.ndarray, block: np.ndarray, sd: float | None = None, rho: float | None = None
) -> tuple[float, float]:
    """(standardised prediction error of `block`, the same as a shift of log loss) from past blocks (n, 5).

    sd, rho: the ladder's noise of a row, worth PRIOR blocks. The sd of a block is the larger of what the
    whitened rows give and what the blocks themselves scatter by: real losses have a longer memory than AR(1).
    """
    cross, lagged, weight = past[:, 3].sum(), past[:, 4].sum(), float(len(past))
    phi = coefficient(cross, lagged)
    variance = lagged / weight * BLOCK / (BLOCK - 1) * max(1 - phi**2, 1e-3)
    if sd is not None and rho is not None:
        phi = (weight * phi + PRIOR * rho) / (weight + PRIOR)
        variance = (weight * variance + PRIOR * sd**2 * (1 - rho**2)) / (weight + PRIOR)
    y, at = past[:, 1] - phi * past[:, 2], past[:, 0] - block[0]
    scale2 = variance / BLOCK
    # level flat, slope ~ N(0, SLOPE^2): the gram matrix of (1, at) with the slope's prior added
    ridge = scale2 / (SLOPE * (1 - phi)) ** 2
    n, s1, s2 = weight, at.sum(), (at * at).sum() + ridge
    determinant = n * s2 - s1 * s1
    level = (s2 * y.sum() - s1 * (at * y).sum()) / determinant
    slope = (n * (at * y).sum() - s1 * y.sum()) / determinant
    left = y - level - slope * at
    scatter2 = float(left @ left) / max(len(past) - 2, 1)
    deviation = float(block[1] - phi * block[2] - level)
    width = max(scale2, scatter2 if len(past) >= 4 * FIRST else 0.0) * (1 + s2 / determinant)
    return deviation / math.sqrt(width), deviation / (1 - phi)


def coefficient(cross: float, lagged: float) -> float:
    """AR(1) coefficient from sums of centred products within blocks, freed of the bias of order 1 / BLOCK
    that centring brings (Kendall 1954)."""
    found = float(cross / lagged + 1 / BLOCK) / (1 - 3 / BLOCK)
    return min(max(found, 0.0), RHO)
