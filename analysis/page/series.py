"""Long series made short without losing their extremes."""

import numpy as np
from numpy.typing import ArrayLike

BUCKETS = 160  # about three pixels each at the widths that a page has


def decimate(x: ArrayLike, y: ArrayLike, buckets: int = BUCKETS) -> dict[str, list[float]]:
    """x, low, middle and high of each of at most `buckets` runs of rows: the series' own extremes survive.

    x, y: equal lengths, x increasing; rows without a finite y are left out. Returned x is the last of each
    bucket, so that the newest value is never hidden; middle is the median.
    """
    where, values = np.asarray(x, float), np.asarray(y, float)
    seen = np.isfinite(values)
    where, values = where[seen], values[seen]
    if not len(values):
        return {"x": [], "low": [], "middle": [], "high": []}
    parts = np.array_split(np.arange(len(values)), min(buckets, len(values)))
    return {
        "x": [_short(where[part[-1]]) for part in parts],
        "low": [_short(values[part].min()) for part in parts],
        "middle": [_short(float(np.median(values[part]))) for part in parts],
        "high": [_short(values[part].max()) for part in parts],
    }


def _short(value: np.floating | float) -> float:
    """Five digits are more than a pixel."""
    return float(f"{value:.5g}")
