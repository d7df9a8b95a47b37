"""Detector 7: rows that cannot be trusted."""

import math

import pytest

from analysis.monitor import Monitor, replay


@pytest.mark.parametrize("metric", ["train_ce", "grad_norm", "eval_loss", "eval/docs"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_nan_stops_the_run_and_says_which(forecast, clean, metric, value):
    monitor = Monitor(forecast)
    for row in clean(0, n=20):
        assert monitor.update(row).action == "continue"
    verdict = monitor.update({"step": 21, metric: value})
    assert (verdict.state, verdict.action, verdict.stop) == ("runaway", "stop", True)
    assert verdict.reasons == (f"{metric} is {value} (step 21)",)
    assert verdict.next_step.startswith("stop; look at the batch")
    assert "step 21: runaway" in verdict.summary()


def test_a_nan_of_a_side_metric_is_a_sensor_fault(forecast):
    verdict = Monitor(forecast).update({"step": 1, "router_entropy": math.nan})
    assert verdict.state == "watch"


def test_a_metric_that_falls_silent_is_named_at_the_third_row(forecast, clean):
    rows = clean(0, n=60)
    for row in rows[40:50]:
        del row["grad_norm"]
    seen = replay(forecast, rows)
    assert seen["state"][41] == "normal"
    assert seen["state"][42] == "watch" and "grad_norm has been missing for 3 rows" in seen["reasons"][42]
    assert seen["next_step"][42].startswith("check the logger")


def test_a_metric_that_comes_now_and_then_is_not_expected(forecast, clean):
    rows = clean(0, n=60)
    for row in rows[::20]:
        row["drop_fraction"] = 0.01
    assert set(replay(forecast, rows)["state"]) == {"normal"}


def test_a_dead_and_a_stuck_gradient_norm_are_sensor_faults(forecast, clean):
    dead, stuck = clean(0, n=100), clean(0, n=100)
    dead[70]["grad_norm"] = 0.0
    for row in stuck[70:]:
        row["grad_norm"] = 464441.887
    seen = replay(forecast, dead)
    assert seen["state"][70] == "watch" and "exactly 0" in seen["reasons"][70]
    assert "exactly 464442 for 3 rows" in replay(forecast, stuck)["reasons"][72]


def test_steps_that_go_back_are_a_fault_unless_a_new_attempt_says_so(forecast, clean):
    rows = clean(0, n=400)
    back = rows + rows[200:]
    seen = replay(forecast, back)
    assert set(seen["state"][:400]) == {"normal"}
    assert set(seen["state"][400:]) == {"watch"} and "from 400 to 201" in seen["reasons"][400]
    restart = [r | {"attempt": 1} for r in rows] + [r | {"attempt": 2} for r in rows[200:]]
    assert set(replay(forecast, restart)["state"]) == {"normal"}


def test_a_row_needs_a_step(forecast):
    with pytest.raises(ValueError, match="without step"):
        Monitor(forecast).update({"tokens": 5})
