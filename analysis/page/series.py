"""Long series made short without losing their extremes."""

from typing import Any

import numpy as np

BUCKETS = 100  # of a whole run: about three pixels each at the widths that a page has


def decimate(progress: Any, values: Any, buckets: int = BUCKETS) -> dict[str, list[float]]:
    """x, low, middle and high of each hundredth of a run that has rows: the series' own extremes survive.

    progress: increasing, in (0, 1]; values: as many; rows without a finite value are left out. x is the
    last progress of each bucket, so that the newest value is never hidden; middle is the median. Equal shares
    of progress, not equal numbers of rows: a run half-way is smoothed like a finished one.
    """
    x, y = np.asarray(progress, float), np.asarray(values, float)
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
    if not len(y):
        return {"x": [], "low": [], "middle": [], "high": []}
    bucket = np.minimum(np.ceil(x * buckets - 1e-9), buckets)
    parts = np.split(np.arange(len(y)), np.flatnonzero(np.diff(bucket)) + 1)
    return {
        "x": [_short(x[part[-1]]) for part in parts],
        "low": [_short(y[part].min()) for part in parts],
        "middle": [_short(np.median(y[part])) for part in parts],
        "high": [_short(y[part].max()) for part in parts],
    }


def _short(value: Any) -> float:
    """Five digits are finer than a pixel."""
    return float(f"{value:.5g}")
