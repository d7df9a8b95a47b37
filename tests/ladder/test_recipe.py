"""The laptop recipe is the trial it came from."""

import pytest

from ladder import RunSpec, SpecError
from ladder.accounting import active_parameters, parameters
from ladder.recipe import laptop


@pytest.mark.parametrize(
    ("width", "active", "total", "tokens", "rows", "steps"),
    [  # second trial, measured on two cores: active / total parameters, tokens, rows x steps
        (32, 59.9e3, 130e3, 3.00e6, 12, 1950),
        (40, 83.2e3, 182e3, 4.16e6, 16, 2031),
        (48, 110e3, 242e3, 5.49e6, 20, 2145),
        (56, 140e3, 310e3, 6.99e6, 28, 1950),
        (72, 210e3, 470e3, 10.49e6, 40, 2048),
    ],
)
def test_the_table_of_the_trial(width, active, total, tokens, rows, steps):
    run = laptop(width)
    assert active_parameters(run) == pytest.approx(active, rel=0.005)
    # the convolutions that took the place of the trial's mixing of the previous token add half a percent
    assert parameters(run.model).total == pytest.approx(total, rel=0.01)
    assert run.tokens == pytest.approx(tokens, rel=0.005)
    assert (run.rows, run.steps) == (rows, steps)
    assert run.tokens / active_parameters(run) == pytest.approx(50, rel=0.001)


def test_rates_fall_with_width_only_for_matrices():
    small, large = laptop(32).optimizer, laptop(128).optimizer
    assert small.lr == large.lr == 0.010
    assert small.matrix_lr == pytest.approx(0.020) and large.matrix_lr == pytest.approx(0.005)


@pytest.mark.parametrize("width", [24, 88, 256])
def test_every_width_gives_whole_micro_batches(width):
    run = laptop(width, seed=7)
    assert run.rows % 4 == 0 and run.seed == 7 and run.steps == pytest.approx(2000, rel=0.3)
    assert RunSpec.from_json(run.to_json()).fingerprint == run.fingerprint


def test_a_short_run_keeps_its_tokens():
    run = laptop(16, tokens_per_active=5, steps=40)
    assert run.steps == pytest.approx(40, rel=0.2)
    assert run.tokens / active_parameters(run) == pytest.approx(5, rel=0.1)


@pytest.mark.parametrize("width", [0, -8, 12, 33])
def test_a_width_that_has_no_even_heads_is_refused(width):
    with pytest.raises(SpecError, match=f"width={width}.*multiple of 8"):
        laptop(width)
