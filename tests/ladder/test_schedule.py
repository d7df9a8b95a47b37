"""The shape of the learning rate and the weights of the phases, at the places where they turn."""

import numpy as np
import pytest

from ladder import DataSpec, Phase, ScheduleSpec, Source
from ladder.schedule import phase_weights, shape, warmup_steps
from tests.ladder.examples import RUN


def test_the_rate_rises_from_zero_to_the_peak_and_falls_to_the_final_share():
    schedule = ScheduleSpec(warmup=0.1, final=0.2)
    values = shape(schedule, np.arange(101), 100)
    assert values[0] == 0 and values[5] == 0.5 and values[10] == 1
    np.testing.assert_allclose(values[55], 0.6)
    np.testing.assert_allclose(values[100], 0.2)
    assert (np.diff(values[:11]) > 0).all() and (np.diff(values[10:]) < 0).all()


def test_without_warm_up_the_first_step_is_at_the_peak():
    assert shape(ScheduleSpec(warmup=0.0), 0, 100) == 1


def test_all_warm_up_reaches_the_peak_only_at_the_end():
    np.testing.assert_allclose(shape(ScheduleSpec(warmup=1.0), np.arange(101), 100), np.arange(101) / 100)


def test_the_constant_schedule_is_constant():
    assert (shape(ScheduleSpec(warmup=0.0, final=1.0), np.arange(10), 9) == 1).all()


@pytest.mark.parametrize(("share", "steps", "expected"), [(0.1, 2031, 203), (0.01, 50, 0), (0.5, 1, 0)])
def test_warm_up_is_whole_steps(share, steps, expected):
    assert warmup_steps(ScheduleSpec(warmup=share), steps) == expected


def test_phases_change_at_their_start():
    assert phase_weights(RUN.data, 0.0) == {"code": 0.25, "text": 0.75}
    assert phase_weights(RUN.data, 0.7999) == {"code": 0.25, "text": 0.75}
    assert phase_weights(RUN.data, 0.8) == {"code": 1.0}


def test_weights_add_up_to_one():
    domains = ("a", "b", "c")
    data = DataSpec(
        sources=tuple(Source(domain=name, uri=name) for name in domains),
        phases=(Phase(start=0.0, weights=dict(zip(domains, (0.1, 1e-6, 1e6), strict=True))),),
    )
    assert sum(phase_weights(data, 0.5).values()) == pytest.approx(1, abs=1e-12)
