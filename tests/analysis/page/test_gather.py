"""What the page's data says at each stage of a ladder."""

import json
import math

import numpy as np
import pytest

from analysis import Forecast
from analysis.page.gather import gather
from analysis.page.series import decimate
from ladder import Store


@pytest.mark.parametrize("stage", ["empty", "rungs", "gated", "frozen", "midrun", "finished", "alarm"])
def test_every_stage_is_strict_json(gathered, stage):
    json.dumps(gathered(stage), allow_nan=False)


def test_a_finished_target_is_compared_with_the_frozen_forecast(stores, gathered):
    store = stores("finished")
    data, frozen = gathered("finished"), Forecast.load(store.path("forecast.json"))
    last = frozen.frame().iloc[-1]
    loss = store.run("d72").evals()[-1]["loss"]
    target = data["target"]
    assert target["loss"] == pytest.approx(loss, rel=1e-6)
    assert target["percent"] == pytest.approx(100 * (loss / last["median"] - 1), abs=1e-3)
    assert last["lo90"] <= loss <= last["hi90"] and target["inside"] is True
    assert data["forecast"]["sha256"] == frozen.sha256
    assert data["headline"]["title"] == "d72 landed inside its 90 % band."
    detail = data["headline"]["detail"]
    assert f"Loss {loss:.4f} bits/byte" in detail and f"{last['lo90']:.4f} to {last['hi90']:.4f}" in detail
    assert data["headline"]["state"] == "normal" and data["missing"] == []
    assert len(target["residual"]["percent"]) == len(store.run("d72").evals())


def test_a_missed_band_is_said(gathered):
    data = gathered("missed")
    assert data["headline"]["title"] == "d72 landed above its 90 % band."
    assert data["target"]["inside"] is False and data["headline"]["state"] == "watch"


def test_half_way_the_headline_says_where_the_target_is(gathered):
    data = gathered("midrun")
    assert data["headline"]["title"] == "d72 is inside its 90 % band at 50 % of the run."
    assert data["missing"] == ["The target d72 is at step 1,064 of 2,048."]


def test_an_alarm_comes_first_and_its_events_are_marked(gathered):
    data = gathered("alarm")
    assert data["headline"]["title"] == "Runaway: d72 at step 1,102."
    assert data["headline"]["tone"] == "alarm"
    assert [(e["state"], e["step"]) for e in data["events"]][-1] == ("runaway", 1102)
    assert any("d72 stopped: runaway" in text for text in data["missing"])


@pytest.mark.parametrize(
    ("stage", "title", "says"),
    [
        ("empty", "Nothing has run yet.", "No forecast is frozen yet: no law, no bands, no residuals."),
        ("rungs", "3 of 6 rung runs have finished.", "Unfinished rungs: d40-r1, d48, d56."),
        ("frozen", "d72 is forecast to end at", "The target d72 has not started."),
    ],
)
def test_what_is_missing_is_named(gathered, stage, title, says):
    data = gathered(stage)
    assert data["headline"]["title"].startswith(title)
    assert says in data["missing"]
    assert data["headline"]["state"] is None


def test_a_ladder_without_a_target_is_shown_as_a_sweep(declared, tmp_path):
    store = Store(tmp_path)
    store.create(declared.replace(target=None))
    data = gather(store)
    assert data["headline"]["title"] == "Nothing has run yet."
    assert data["missing"][-1] == "A sweep: the ladder declares no target, so nothing is forecast."
    record = store.run("d32")
    attempt = record.begin(record.spec, {})
    attempt.row({"step": 98, "eval_loss": 3.0})
    attempt.flush()
    assert gather(store)["headline"]["title"] == "0 of 6 runs have finished."


def test_a_forecast_that_was_changed_is_not_shown(stores, tmp_path):
    text = stores("finished").read("forecast.json").decode()
    store = Store(tmp_path)
    store.create(stores("finished").ladder())
    store.write("forecast.json", text.replace('"grade": "weak"', '"grade": "strong"'))
    data = gather(store)
    assert data["forecast"] is None
    assert "was changed after it was frozen" in data["missing"][0]


def test_run_rows_carry_counts_roles_and_states(gathered):
    runs = {run["run"]: run for run in gathered("rungs")["runs"]}
    assert [run["role"] for run in runs.values()].count("replicate") == 2
    assert runs["d72"]["role"] == "target" and runs["d72"]["state"] == "queued"
    assert (runs["d40-r1"]["step"], runs["d40-r1"]["steps"]) == (913, 2031)
    assert runs["d32"]["active"] == 59_904 and runs["d32"]["loss"] > 0


def test_gated_rungs_stand_beside_their_predictions(stores, gathered):
    rows = gathered("finished")["gates"]
    assert [(row["rung"], list(row["below"]), row["word"]) for row in rows] == [
        ("d48", ["d32", "d40"], "inside"),
        ("d56", ["d32", "d40", "d48"], "inside"),
    ]
    frozen = Forecast.load(stores("finished").path("gates/d56/prediction.json"))
    last = frozen.frame().iloc[-1]
    assert [rows[1]["lo"], rows[1]["hi"]] == pytest.approx([last["lo99"], last["hi99"]], rel=1e-6)
    assert rows[1]["floor"] == pytest.approx(frozen.payload["law"]["E"][1], rel=1e-6)
    assert rows[1]["outlier"] == pytest.approx(max(abs(z) for z in frozen.rungs()["z"]), rel=1e-6)
    assert rows[1]["loss"] == pytest.approx(stores("finished").run("d56").evals()[-1]["loss"], rel=1e-6)
    assert gathered("empty")["gates"] == gathered("rungs")["gates"] == []


def test_a_gate_that_stopped_the_ladder_is_the_headline(gathered):
    data = gathered("gated")
    assert data["headline"]["title"] == "Stopped by the gate: d48 landed above its band."
    assert data["headline"]["tone"] == "missed"
    assert "The gate of d48 stopped the ladder; `ladder run --no-gate` goes on." in data["missing"]
    assert [row["word"] for row in data["gates"]] == ["above", "waiting"]


def test_a_prediction_that_was_changed_is_not_shown(stores, tmp_path):
    text = stores("gated").read("gates/d48/prediction.json").decode()
    store = Store(tmp_path)
    store.create(stores("gated").ladder())
    store.write("gates/d48/prediction.json", text.replace('"grade": "weak"', '"grade": "strong"'))
    data = gather(store)
    assert data["gates"] == [] and "The gates cannot be used: " in data["missing"][0]


def test_a_loss_that_is_no_number_is_a_gap(declared, tmp_path):
    store = Store(tmp_path)
    store.create(declared)
    record = store.run("d32")
    attempt = record.begin(record.spec, {})
    for step, loss in ((98, 3.0), (195, math.nan)):
        attempt.row({"step": step, "grad_norm": math.inf, "eval_loss": loss})
    attempt.finish("failed", "step 195: the loss is no number")
    data = gather(store)
    json.dumps(data, allow_nan=False)
    run = data["runs"][0]
    assert run["loss"] is None and run["evals"]["loss"] == [3.0, None] and not run["finished"]
    assert "d32 failed: step 195: the loss is no number." in data["missing"]


def test_decimation_keeps_the_extremes_and_the_newest_row():
    rng = np.random.default_rng(0)
    x = np.arange(1, 100_001) / 100_000
    y = rng.standard_normal(100_000)
    y[[7, 77_777]] = [50, -50]
    y[500] = np.nan
    short = decimate(x, y)
    assert len(short["x"]) == 100 and short["x"][-1] == 1
    assert max(short["high"]) == 50 and min(short["low"]) == -50
    assert abs(np.mean(short["middle"])) < 0.05
    assert decimate([0.5], [np.nan]) == {"x": [], "low": [], "middle": [], "high": []}


def test_half_a_run_is_smoothed_like_a_whole_one():
    x = np.arange(1, 2001) / 2000
    y = np.sin(50 * x)
    half, whole = decimate(x[:1000], y[:1000]), decimate(x, y)
    assert half["middle"] == whole["middle"][:50]
