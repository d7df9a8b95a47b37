"""A window of the newest values with median and MAD, kept sorted: a step costs a few microseconds."""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable


class RollingMedian:
    """The newest `size` values. The state is the values in order of arrival: the sorted copy follows from it,
    so a window rebuilt from `values` answers bit for bit the same."""

    def __init__(self, size: int, values: Iterable[float] = ()):
        self.size = size
        self._arrived = deque(values)
        self._sorted = sorted(self._arrived)

    def __len__(self) -> int:
        return len(self._arrived)

    @property
    def values(self) -> list[float]:
        return list(self._arrived)

    def add(self, value: float) -> None:
        if len(self._arrived) == self.size:
            del self._sorted[bisect_left(self._sorted, self._arrived.popleft())]
        self._arrived.append(value)
        insort(self._sorted, value)

    def clear(self) -> None:
        self._arrived.clear()
        self._sorted.clear()

    def median(self) -> float:
        n = len(self._sorted)
        return 0.5 * (self._sorted[(n - 1) // 2] + self._sorted[n // 2])

    def quantile(self, q: float) -> float:
        """The smallest value that is not exceeded by a share q of the window."""
        return self._sorted[math.ceil(q * len(self._sorted)) - 1]

    def mad(self) -> float:
        """Lower median of |value - median|.

        Distances grow from the median outwards on both sides, so it is the k-th smallest of two sorted
        lists: a binary search for how many of those k lie on the left.
        """
        s, n, centre = self._sorted, len(self._sorted), self.median()
        left, k = n // 2, (n + 1) // 2  # s[:left] at or below the centre, s[left:] at or above it
        low, high = max(0, k - (n - left)), min(k, left)
        while low < high:
            taken = (low + high) // 2
            # taking one more on the left is right while it is nearer than the farthest one taken on the right
            if centre - s[left - 1 - taken] < s[left + k - taken - 1] - centre:
                low = taken + 1
            else:
                high = taken
        distances = []
        if low:
            distances.append(centre - s[left - low])
        if k - low:
            distances.append(s[left + k - low - 1] - centre)
        return max(distances)
