"""Detector 6: where an evaluation lies in the forecast's bands, and what that means at which progress."""

from types import SimpleNamespace

import numpy as np
import pytest

from analysis.monitor import Monitor


def evaluate(monitor, progress, percent):
    made_up = monitor.forecast
    step = round(progress * made_up.steps)
    loss = made_up.law(progress) * (1 + percent / 100)
    return monitor.update({"step": step, "tokens": step * made_up.batch, "eval_loss": loss})


def states(forecast, percents, start=0.30, every=0.05):
    monitor = Monitor(forecast)
    return [evaluate(monitor, start + every * k, p).state for k, p in enumerate(percents)]


def test_inside_the_band_is_normal_and_the_position_is_evidence(forecast):
    verdict = evaluate(Monitor(forecast), 0.4, 1.5)
    (reading,) = verdict.evidence
    assert verdict.state == "normal" and reading["code"] == "position"
    assert reading["numbers"]["percent"] == pytest.approx(1.5)
    assert reading["numbers"]["hi90"] == pytest.approx(1.02 * forecast.law(0.4))


@pytest.mark.parametrize("side", [1, -1])
def test_three_evaluations_outside_the_pointwise_band_are_watched(forecast, side):
    assert states(forecast, [side * 3] * 4) == ["normal", "normal", "watch", "watch"]
    assert states(forecast, [side * 3, side * 3, 0] * 3) == ["normal"] * 9


def test_a_watch_ends_after_twelve_clean_evaluations(forecast):
    seen = states(forecast, [3] * 3 + [0] * 13, start=0.2)
    assert seen == ["normal"] * 2 + ["watch"] * 12 + ["normal"] * 2


def test_rows_without_an_evaluation_do_not_count_as_clean(forecast):
    monitor = Monitor(forecast)
    evaluate(monitor, 0.5, 7)
    verdicts = [monitor.update({"step": 1000 + k}) for k in range(1, 50)]
    assert {verdict.state for verdict in verdicts} == {"watch"}


def test_one_evaluation_outside_the_99_percent_band_is_watched(forecast):
    monitor = Monitor(forecast)
    verdict = evaluate(monitor, 0.5, 7)
    assert verdict.state == "watch" and "simultaneous 99 % band" in verdict.reasons[0]
    assert "audit" in verdict.next_step


def test_early_only_the_99_percent_band_counts(forecast):
    assert states(forecast, [30] * 3, start=0.002, every=0.002) == ["normal"] * 3
    assert states(forecast, [3] * 4, start=0.012, every=0.01) == ["normal"] * 4
    assert states(forecast, [7], start=0.03) == ["watch"]


def test_a_constant_offset_is_a_missed_band_and_no_alarm(forecast):
    rng = np.random.default_rng(0)
    assert "precursor" not in states(forecast, list(8 + 0.05 * rng.standard_normal(12)), every=0.05)


def test_moving_away_from_the_forecast_above_the_band_is_a_precursor(forecast):
    assert states(forecast, [6.5, 7.0, 7.5, 8.0])[-1] == "precursor"
    assert states(forecast, [6.5, 6.7, 6.9, 7.1])[-1] == "watch"  # under half a half-width: evaluation noise
    assert "precursor" not in states(forecast, [-7, -8, -9, -10])  # better than forecast: look, do not stop


def test_a_loss_that_rises_above_the_band_is_a_runaway(forecast):
    assert states(forecast, [6.5, 12, 18, 25])[-1] == "runaway"


def test_without_a_band_at_that_progress_nothing_is_said(forecast):
    assert states(forecast, [50], start=0.005) == ["normal"]


def test_progress_comes_from_tokens_steps_or_the_row(forecast):
    loss = forecast.law(0.5) * 1.07
    for where in ({"tokens": forecast.steps * forecast.batch // 2}, {}, {"progress": 0.5}):
        row = {"step": forecast.steps // 2, "eval_loss": loss, **where}
        numbers = Monitor(forecast).update(row).evidence[0]["numbers"]
        assert numbers["percent"] == pytest.approx(7)


def test_a_point_only_forecast_gives_positions_and_no_alarms(forecast):
    frame = forecast.frame()
    frame[[c for c in frame if "lo" in c or "hi" in c]] = np.nan
    point = SimpleNamespace(**vars(forecast), law=forecast.law, frame=lambda levels: frame)
    monitor = Monitor(point)
    for progress in (0.3, 0.4, 0.5, 0.6):
        verdict = evaluate(monitor, progress, 30)
    assert verdict.state == "normal" and set(verdict.evidence[0]["numbers"]) == {
        "value",
        "progress",
        "percent",
        "median",
    }
