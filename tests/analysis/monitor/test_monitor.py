"""The monitor as a whole: its state survives a restart, and it costs little to keep."""

import json
from dataclasses import replace

import numpy as np
import pytest

from analysis.monitor import Monitor, declared_events, replay


def disturbed(forecast, clean):
    rows = clean(7)
    for index in range(99, 2000, 100):
        rows[index]["eval_loss"] = forecast.law((index + 1) / 2000) * (1.03 if index > 1000 else 1.0)
    rows[500]["grad_norm"] *= 30
    rows[700]["train_ce"] *= 1.4
    for row in rows[1200:1206]:
        del row["grad_norm"]
    return rows


def test_a_restart_at_any_step_changes_nothing(forecast, clean):
    rows = disturbed(forecast, clean)
    cuts = set(np.random.default_rng(0).integers(0, len(rows), 40).tolist())
    straight, restarted = Monitor(forecast), Monitor(forecast)
    for monitor in (straight, restarted):
        monitor.register({"step": 1601, "kind": "mixture"})
    for index, row in enumerate(rows):
        if index in cuts:
            restarted = Monitor.from_state(forecast, json.loads(json.dumps(restarted.state_dict())))
        assert straight.update(row) == restarted.update(row)
    assert json.dumps(straight.state_dict()) == json.dumps(restarted.state_dict())


def test_the_state_stays_small(forecast, clean):
    monitor = Monitor(forecast)
    sizes = []
    for row in disturbed(forecast, clean) + [row | {"step": row["step"] + 2000} for row in clean(8)]:
        monitor.update(row)
        if row["step"] in (1000, 4000):
            sizes.append(len(json.dumps(monitor.state_dict())))
    assert sizes[1] < 1.1 * sizes[0] < 60_000


def test_a_state_of_another_forecast_is_refused(forecast):
    state = Monitor(forecast).state_dict()
    with pytest.raises(ValueError, match=r"aaaaaaaaaaaa.*bbbbbbbbbbbb"):
        Monitor.from_state(replace(forecast, sha256="b" * 64), state)


def test_every_verdict_is_plain_data_with_numbers_and_a_next_step(forecast, clean):
    monitor = Monitor(forecast)
    for row in disturbed(forecast, clean):
        verdict = monitor.update(row)
        json.dumps(verdict.evidence, allow_nan=False)
        assert verdict.next_step
        assert bool(verdict.reasons) == (verdict.state != "normal")


def test_three_precursors_within_one_percent_are_a_runaway(forecast, clean):
    rows = clean(9)
    for index in (900, 906, 912):
        rows[index]["grad_norm"] *= 30
    seen = replay(forecast, rows)
    assert seen["state"][900] == "precursor"
    assert seen["state"][911] == "precursor"
    assert seen["state"][912] == "runaway" and "3 precursors within 1 %" in seen["reasons"][912]


def test_replay_answers_a_frame_with_a_verdict_a_row(forecast, clean):
    import pandas as pd

    rows = disturbed(forecast, clean)
    by_rows, by_frame = replay(forecast, rows), replay(forecast, pd.DataFrame(rows))
    assert len(by_rows) == len(rows)
    pd.testing.assert_frame_equal(by_rows, by_frame)
    assert set(by_rows.columns) >= {
        "step",
        "tokens",
        "state",
        "action",
        "reasons",
        "next_step",
        "loss_z",
        "percent",
    }


def test_declared_mixture_changes_become_events_at_their_first_step():
    from types import SimpleNamespace as Bag

    run = Bag(steps=2000, data=Bag(phases=(Bag(start=0.0), Bag(start=0.8))))
    assert declared_events(run) == [{"step": 1601, "kind": "mixture", "registered": True}]
