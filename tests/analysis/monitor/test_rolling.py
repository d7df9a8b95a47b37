import numpy as np
import pytest

from analysis.monitor.rolling import RollingMedian


@pytest.mark.parametrize("size", [1, 2, 7, 8])
def test_median_and_mad_are_those_of_the_last_values(size):
    rng = np.random.default_rng(size)
    window, seen = RollingMedian(size), []
    for value in np.round(rng.standard_normal(300), 1):  # rounded: ties happen
        window.add(float(value))
        seen = [*seen, float(value)][-size:]
        distances = sorted(abs(x - np.median(seen)) for x in seen)
        assert window.values == seen
        assert window.median() == pytest.approx(np.median(seen), abs=1e-12)
        assert window.quantile(0.9) == sorted(seen)[int(np.ceil(0.9 * len(seen))) - 1]
        assert window.mad() == pytest.approx(distances[(len(seen) - 1) // 2], abs=1e-12)


def test_a_window_rebuilt_from_its_values_is_the_same():
    rng = np.random.default_rng(0)
    first = RollingMedian(50, rng.standard_normal(80).tolist()[:50])
    second = RollingMedian(50, first.values)
    for value in rng.standard_normal(100).tolist():
        first.add(value)
        second.add(value)
        assert (first.median(), first.mad()) == (second.median(), second.mad())
