"""The monitor's alarms on clean rows, as arrays: 10^7 steps take minutes instead of an hour.

Same rules as `analysis.monitor` for what healthy rows can set off: the drift's CUSUM, and the spike rules on
three streams. A test holds it to `Monitor` row by row.
"""

import math
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.signal import lfilter

from analysis.monitor import Limits
from analysis.monitor.drift import BLOCK, FIRST, MEMORY, REACH, RHO, SLOPE, K
from analysis.monitor.spikes import BASELINE, FLOOR, HISTORY, PAIR_STEPS, QUIET
from analysis.monitor.spikes import MEMORY as RESIDUALS

ON = BASELINE // 4  # clean values before there is a baseline
CANDIDATE = 3.0  # sds of a residual against the mean of 32 rows: for a z of 6 below it, a full window's scale
# would have to be half of the true one
WARM = ON + RESIDUALS + BASELINE  # rows until all windows are full


def noise(rng: np.random.Generator, shape: tuple[int, int], rho: float, tails: float | None) -> np.ndarray:
    """AR(1) of unit variance along the last axis; innovations Student t with `tails` degrees, or normal."""
    if tails is None:
        e = rng.standard_normal(shape)
    else:
        e = rng.standard_t(tails, shape) * math.sqrt((tails - 2) / tails)
    e[:, 1:] *= math.sqrt(1 - rho**2)
    return np.asarray(lfilter([1.0], [1.0, -rho], e, axis=1))


def drift_alarms(x: np.ndarray, start: float, limits: Limits | None = None) -> np.ndarray:
    """Up-alarms (S, blocks) of S runs whose rows x (S, T) lie evenly between progress `start` and 1."""
    limits = limits or Limits()
    runs, rows = x.shape
    count = (rows - 1) // BLOCK
    u = (
        np.log(start + (1 - start) * np.arange(rows) / rows)[1 : 1 + count * BLOCK]
        .reshape(count, BLOCK)
        .mean(1)
    )
    now = x[:, 1 : 1 + count * BLOCK].reshape(runs, count, BLOCK)
    before = x[:, : count * BLOCK].reshape(runs, count, BLOCK)
    m0, m1 = now.mean(2), before.mean(2)
    cross, lagged = (now * before).mean(2) - m0 * m1, (before**2).mean(2) - m1**2
    stats = np.stack([np.broadcast_to(u, m0.shape), m0, m1, cross, lagged], axis=-1)
    ring, n = np.zeros((runs, MEMORY, 5)), np.zeros(runs, int)
    high, low = np.zeros(runs), np.zeros(runs)
    waiting = np.zeros(runs, bool)
    alarms = np.zeros((runs, count), bool)
    for b in range(count):
        join = np.flatnonzero(waiting & (np.maximum(high, low) <= limits.drift / 2))
        ring[join, n[join] % MEMORY] = stats[join, b - 1]
        n[join] += 1
        waiting[:] = True
        near = (np.arange(MEMORY) < n[:, None]) & (ring[..., 0] >= stats[:, b, None, 0] - REACH)
        z = _z(ring, near, stats[:, b])
        judged = near.sum(1) >= FIRST
        high = np.where(judged, np.maximum(0, high + z - K), high)
        low = np.where(judged, np.maximum(0, low - z - K), low)
        out = judged & (np.maximum(high, low) >= limits.drift)
        alarms[:, b] = out & (high >= low)
        high[out] = low[out] = 0
        n[out], waiting[out] = 0, False
        ring[out] = 0
    return alarms


def _z(ring: np.ndarray, here: np.ndarray, block: np.ndarray) -> np.ndarray:
    """Standardised prediction error (S,) of a block (S, 5).

    It rests on the blocks `here` (S, MEMORY) of each ring (S, MEMORY, 5).
    """
    n = here.sum(1)
    ring = ring * here[..., None]
    weight = np.maximum(n, 1).astype(float)
    cross, lagged = ring[..., 3].sum(1), np.maximum(ring[..., 4].sum(1), 1e-14)
    phi = np.clip((cross / lagged + 1 / BLOCK) / (1 - 3 / BLOCK), 0, RHO)
    rows = lagged / weight * BLOCK / (BLOCK - 1) * np.maximum(1 - phi**2, 1e-3) / BLOCK
    y = (ring[..., 1] - phi[:, None] * ring[..., 2]) * here
    at = (ring[..., 0] - block[:, None, 0]) * here
    s1, s2 = at.sum(1), (at**2).sum(1) + rows / (SLOPE * (1 - phi)) ** 2
    sy, sxy = y.sum(1), (at * y).sum(1)
    determinant = weight * s2 - s1**2
    level, slope = (s2 * sy - s1 * sxy) / determinant, (weight * sxy - s1 * sy) / determinant
    left = (y - level[:, None] - slope[:, None] * at) * here
    scatter = (left**2).sum(1) / np.maximum(weight - 2, 1)
    width = np.maximum(rows, np.where(n >= 4 * FIRST, scatter, 0)) * (1 + s2 / determinant)
    return (block[:, 1] - phi * block[:, 2] - level) / np.sqrt(width)


def spikes(x: np.ndarray, floor: float, flag: float, candidate: float = CANDIDATE) -> list[tuple[int, float]]:
    """(row, z) of one run's rows x (T,) past `flag`, all windows taken as clean.

    While windows fill every row is judged; then those that stand out by `candidate` from the mean of the 32
    rows before them.
    """
    total = np.concatenate([[0.0], np.cumsum(x)])
    rough = np.full(len(x), -np.inf)
    rough[BASELINE:] = x[BASELINE:] - (total[BASELINE:-1] - total[: -BASELINE - 1]) / BASELINE
    rows = np.flatnonzero(rough > candidate * rough[BASELINE:].std())
    judged = [*range(ON + HISTORY, min(WARM, len(x))), *rows[rows >= WARM]]
    found = []
    early = _left(x[:WARM], 0)
    for k in judged:
        left = early[ON : k + 1] if k < WARM else _left(x[k - RESIDUALS - BASELINE : k + 1], BASELINE)
        past = np.sort(left[:-1])
        n, middle = len(past), np.median(past)
        mad = np.sort(abs(past - middle))[(n - 1) // 2]
        tail = (past[math.ceil(0.99 * n) - 1] - middle) / 2.326
        z = (left[-1] - middle) / max(max(1.4826 * mad, tail) * (1 + 32 / n), floor)
        if z > flag:
            found.append((int(k), float(z)))
    return found


def _left(x: np.ndarray, skip: int) -> np.ndarray:
    """Residuals of x[skip:] against the median of the up to 32 rows before each (NaN for the first ON)."""
    baseline = np.full(len(x), np.nan)
    if not skip:
        for k in range(ON, min(BASELINE, len(x))):
            baseline[k] = np.median(x[:k])
    if len(x) > BASELINE:
        baseline[BASELINE:] = np.median(sliding_window_view(x, BASELINE)[:-1], axis=1)
    return (x - baseline)[skip:]


def spike_alarms(streams: dict[str, np.ndarray], limits: Limits | None = None) -> int:
    """Precursors and runaways that the spike rules find in one run's log streams (T,) of healthy rows."""
    limits = limits or Limits()
    z = {name: dict(spikes(x, FLOOR[name], limits.flag)) for name, x in streams.items()}
    norms = sorted({step for name in ("grad_norm", "update_norm") for step in z[name]})
    worst = {s: max(z[name].get(s, 0.0) for name in ("grad_norm", "update_norm")) for s in norms}
    pairs = sum(b - a < PAIR_STEPS for a, b in pairwise(norms))
    lone = sum(w > limits.lone and z["loss"].get(s, 0.0) < QUIET for s, w in worst.items())
    far = sorted(s for s, value in z["loss"].items() if value > limits.runaway)
    return pairs + lone + sum(b - a < 5 for a, b in zip(far, far[2:], strict=False))
