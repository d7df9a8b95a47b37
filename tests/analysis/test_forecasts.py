"""The frozen artefact: what it contains, that its hash holds, and that it is the judge it was."""

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from analysis import AnalysisError, EvalsError, Forecast, fit, forecast
from analysis.artefact import canonical
from ladder import DataSpec, EvalSpec, ModelSpec, OptimizerSpec, Phase, RunSpec, Source

SIZE = {"run": "big", "flops": 6.4e20, "step": 4000, "tokens": 4e11}


@pytest.fixture
def frozen(ladder_rows):
    return forecast(fit(ladder_rows()), pd.DataFrame([SIZE]), regime={"recipe": "a" * 64})


def spec(unit="other"):
    model = ModelSpec(
        vocab_size=257, context=128, layers=2, width=64, heads=4, head_dim=16, kv_heads=4, experts=8, top_k=2,
        expert_width=64,
    )  # fmt: skip
    data = DataSpec(
        sources=(Source(domain="a", uri="a.txt"),), phases=(Phase(start=0.0, weights={"a": 1.0}),)
    )
    return RunSpec(
        model=model, optimizer=OptimizerSpec(lr=1e-2, matrix_lr=1e-2), data=data, steps=2001,
        batch_tokens=1024, evaluation=EvalSpec(unit=unit),
    )  # fmt: skip


def test_at_the_end_the_band_is_the_final_laws(ladder_rows):
    fitted = fit(ladder_rows())
    last = forecast(fitted, pd.DataFrame([SIZE])).frame().iloc[-1]
    for level in (0.5, 0.9, 0.99):
        row = fitted.predict({"flops": [6.4e20]}, level=level).iloc[0]
        assert last[f"lo{100 * level:g}"] == pytest.approx(row["lo"], rel=1e-12)
        assert last[f"hi{100 * level:g}"] == pytest.approx(row["hi"], rel=1e-12)
        assert last["median"] == pytest.approx(row["median"], rel=1e-12)


def test_frame_has_a_row_a_point_and_nested_bands(frozen):
    frame = frozen.frame()
    names = [f"{side}{level}" for level in (50, 90, 99) for side in ("lo", "hi", "sim_lo", "sim_hi")]
    assert list(frame) == ["run", "step", "tokens", "progress", "median", *names]
    assert frame["progress"].tolist() == [0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert frame["step"].tolist() == [200, 400, 800, 1600, 2400, 3200, 4000]
    assert frame["tokens"].iloc[-1] == 400_000_000_000
    order = ["sim_lo99", "lo99", "lo90", "lo50", "median", "hi50", "hi90", "hi99", "sim_hi99"]
    assert np.all(np.diff(frame[order].to_numpy(), axis=1) >= 0)
    assert np.all(frame["sim_lo90"] <= frame["lo90"]) and np.all(frame["sim_hi90"] >= frame["hi90"])
    assert list(frozen.frame(levels=(0.9,)))[-4:] == ["lo90", "hi90", "sim_lo90", "sim_hi90"]


def test_reading_between_grid_points_is_linear_in_log_progress(frozen):
    frame = frozen.frame((0.9,))
    middle = frozen.at(progress=(0.1 * 0.2) ** 0.5)
    assert middle.lo == pytest.approx(frame["lo90"].iloc[1:3].mean())
    assert middle.median == pytest.approx(frame["median"].iloc[1:3].mean())
    assert frozen.at(tokens=8e10) == frozen.at(progress=0.2)
    for bad, code in (
        ({"progress": 0.01}, "before_the_grid"),
        ({"progress": 40}, "bad_progress"),
        ({}, "bad_progress"),
        ({"progress": 0.5, "level": 0.8}, "bad_level"),
    ):
        with pytest.raises(AnalysisError) as error:
            frozen.at(**bad)
        assert error.value.code == code


def test_summary_states_the_condition_and_the_hash(frozen):
    text = frozen.summary()
    assert "given that the recipe transfers" in text
    assert frozen.sha256 in text
    assert "10x the FLOPs" in text


def test_saved_and_loaded_it_is_the_same(frozen, tmp_path):
    path = tmp_path / "deep" / "forecast.json"
    frozen.save(path)
    back = Forecast.load(path)
    assert back.sha256 == frozen.sha256
    pd.testing.assert_frame_equal(back.frame(), frozen.frame(), check_exact=True)
    assert (back.metric, back.unit, back.grade, back.run) == ("loss", "nats/token", "strong", "big")
    assert back.regime == {"recipe": "a" * 64}
    assert back.warnings == frozen.warnings
    assert [p.name for p in path.parent.iterdir()] == ["forecast.json"]
    assert list(back.rungs()["run"]) == ["r0", "r1", "r2", "r3"]
    assert back.scaling()["flops"].iloc[[0, -1]].tolist() == pytest.approx([1e18, 6.4e20])
    assert back.scaling()["median"].iloc[-1] == pytest.approx(back.frame()["median"].iloc[-1])


def test_a_changed_file_is_refused(frozen, tmp_path):
    path = tmp_path / "forecast.json"
    stored = json.loads(frozen.to_json())
    stored["payload"]["bands"]["0.9"]["hi"][-1] *= 1.001
    path.write_text(json.dumps(stored))
    with pytest.raises(AnalysisError, match="changed after it was frozen") as error:
        Forecast.load(path)
    assert str(path) in str(error.value)
    del stored["payload"]["law"]
    path.write_text(json.dumps(stored))
    with pytest.raises(AnalysisError, match=r"forecast\.json is no frozen forecast"):
        Forecast.load(path)
    path.write_text("{}")
    with pytest.raises(AnalysisError, match=r"forecast\.json is no frozen forecast"):
        Forecast.load(path)
    stored["payload"]["format"] = "scaling-ladder forecast 99"
    path.write_text(json.dumps(stored))
    with pytest.raises(AnalysisError, match="forecast 99"):
        Forecast.load(path)


def reworded(payload):
    """The same forecast as a version would write it whose sentences read differently."""
    prior = {**payload["prior"], "g": {**payload["prior"]["g"], "source": "worded anew"}}
    law = {**payload["law"], "why": "worded anew"}
    notices = [[code, severity, "worded anew"] for code, severity, _ in payload["notices"]]
    return {**payload, "condition": "worded anew", "prior": prior, "law": law, "notices": notices}


@pytest.fixture
def noted(ladder_rows):
    """A forecast with a note and a warning."""
    return forecast(fit(ladder_rows(sizes=(1e18, 4e18, 1.6e19))), pd.DataFrame([SIZE | {"flops": 2e18}]))


def test_the_hash_does_not_hang_on_how_a_sentence_is_worded(noted, tmp_path):
    assert {notice.severity for notice in noted.warnings} == {"note", "warning"}
    other = Forecast(reworded(noted.payload))
    assert other.sha256 == noted.sha256
    other.save(tmp_path / "forecast.json")
    back = Forecast.load(tmp_path / "forecast.json")
    assert back.warnings == other.warnings and "worded anew" in back.summary()
    (code, severity, text), *rest = noted.payload["notices"]
    for changed in ([code, "x", text], ["x", severity, text]):
        assert Forecast({**noted.payload, "notices": [changed, *rest]}).sha256 != noted.sha256
    assert Forecast({**noted.payload, "notices": rest}).sha256 != noted.sha256


def test_a_file_of_the_first_format_still_verifies_over_its_sentences(noted, tmp_path):
    payload = {**noted.payload, "format": "scaling-ladder forecast 1"}
    stored = {"sha256": hashlib.sha256(canonical(payload).encode()).hexdigest(), "payload": payload}
    path = tmp_path / "forecast.json"
    path.write_text(json.dumps(stored))
    assert Forecast.load(path).sha256 == stored["sha256"]
    path.write_text(json.dumps(stored | {"payload": reworded(payload)}))
    with pytest.raises(AnalysisError, match="changed after it was frozen"):
        Forecast.load(path)


def test_the_exponent_is_the_median_wherever_it_is_read(ladder_rows, noted):
    fitted = fit(ladder_rows(sizes=(1e18, 4e18, 1.6e19)))
    low, median, high = fitted.parameters()["g"]
    assert low < median < high and noted.payload["law"]["exponents"] == {"g": median}
    assert f"g {median:.3f} [{low:.3f}, {high:.3f}]" in fitted.summary()


def test_the_hash_is_that_of_another_process_and_of_shuffled_rows(ladder_rows, frozen, tmp_path):
    rows = ladder_rows().sample(frac=1, random_state=5)
    rows.to_json(tmp_path / "rows.json", orient="records", double_precision=15)
    code = (
        "import json, sys; from analysis import fit, forecast\n"
        "rows = json.load(open(sys.argv[1]))\n"
        f"print(forecast(fit(rows), [{SIZE!r}], regime={{'recipe': 'a' * 64}}).sha256)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo"}
    answer = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "rows.json")],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert answer.stdout.strip() == frozen.sha256, answer.stderr


def test_the_hash_follows_what_the_forecast_depends_on(ladder_rows, frozen):
    fitted = fit(ladder_rows())
    size = pd.DataFrame([SIZE])
    others = [
        forecast(fitted, size, regime={"recipe": "b" * 64}),
        forecast(fit(ladder_rows(), prior={"g": {"sd": 0.05}}), size, regime={"recipe": "a" * 64}),
        forecast(fitted, size.assign(flops=6.5e20), regime={"recipe": "a" * 64}),
    ]
    assert len({frozen.sha256, *(o.sha256 for o in others)}) == 4
    assert forecast(fitted, size, regime={"recipe": "a" * 64}).sha256 == frozen.sha256


def test_canonical_numbers_have_ten_digits():
    assert canonical({"b": 1 / 3, "a": [1.0, -0.0, 123456789012345, 1e300]}) == (
        '{"a":[1,0,123456789012345,1' + "0" * 15 + canonical(1e300)[16:] + '],"b":0.3333333333}'
    )
    assert canonical(0.1 + 0.2) == canonical(0.3)
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical(float("nan"))


def test_a_run_spec_is_forecast_at_all_its_evaluations(ladder_rows):
    target = spec()
    rows = ladder_rows(sizes=(1e12, 4e12, 1.6e13, 6.4e13), progress=tuple(np.linspace(0.05, 1, 20)))
    frozen = forecast(fit(rows, unit="other"), target)
    frame = frozen.frame()
    assert tuple(frame["step"]) == target.eval_steps
    assert frame["tokens"].iloc[-1] == target.tokens
    assert frame["progress"].iloc[-1] == 1
    with pytest.raises(EvalsError, match=r"measured in bits/byte, the rungs in nats/token"):
        forecast(fit(ladder_rows()), spec(unit="bits/byte"))


def test_without_progress_there_is_only_the_final_row(finals):
    frozen = forecast(fit(finals[["run", "flops", "loss"]]), pd.DataFrame([SIZE]))
    assert len(frozen.frame()) == 1
    assert "1 point of progress, the end; sha256" in frozen.summary()
    assert "final_only" in [notice.code for notice in frozen.warnings]
    assert frozen.at(progress=1.0).lo < frozen.at(progress=1.0).median


def test_rows_before_the_first_common_evaluation_are_left_out_and_named(ladder_rows):
    points = pd.DataFrame({"run": "big", "progress": [0.01, 0.03, 0.0495, 0.3], "flops": [0, 0, 0, 1.92e20]})
    points["flops"] = 6.4e20 * points["progress"]
    frozen = forecast(fit(ladder_rows()), points)
    assert frozen.frame()["progress"].tolist() == [0.0495, 0.3, 1.0]
    assert "2 of the target's rows" in next(n.text for n in frozen.warnings if n.code == "early_rows")
    assert frozen.frame()["step"].isna().all()


def test_an_absurd_target_is_a_point_and_says_so(ladder_rows):
    frozen = forecast(fit(ladder_rows()), pd.DataFrame([SIZE | {"flops": 6.4e22}]))
    assert frozen.point_only
    assert frozen.frame()["median"].notna().all() and frozen.frame()["lo90"].isna().all()
    assert "a point without a band" in frozen.summary()
    assert "1000x" in next(n.text for n in frozen.warnings if n.code == "point_only")
    with pytest.raises(AnalysisError, match="no band"):
        frozen.at(progress=0.5)


def test_an_unfinished_rungs_last_row_counts_towards_the_farthest_target(ladder_rows):
    """A target 700x the largest finished rung but 219x what an unfinished one has spent: a band."""
    rows = ladder_rows()
    cut = rows[(rows["run"] != "r3") | (rows["progress"] < 0.9)]
    frozen = forecast(fit(cut), pd.DataFrame([SIZE | {"flops": 700 * 1.6e19}]))
    assert not frozen.point_only


@pytest.mark.parametrize(("flops", "code"), [(1e17, "target_below_rungs"), (1e19, "target_inside_rungs")])
def test_a_target_that_is_no_extrapolation_is_named(ladder_rows, flops, code):
    frozen = forecast(fit(ladder_rows()), pd.DataFrame([SIZE | {"flops": flops}]))
    assert code in [notice.code for notice in frozen.warnings]
    assert np.isfinite(frozen.frame()[["lo90", "hi90"]]).all(axis=None)


BAD_TARGETS = {
    "missing_column": ([{"run": "big", "tokens": 1e9}], "flops"),
    "one_target": ([SIZE, SIZE | {"run": "other"}], "one run at a time"),
    "progress_missing": ([SIZE, SIZE | {"step": 2000, "flops": 3.2e20}], "no progress"),
    "progress_percent": ([SIZE | {"progress": 100.0}], "percent"),
    "mixed_units": ([SIZE | {"unit": "bits/byte"}], "bits/byte"),
    "not_a_number": ([SIZE | {"tokens": "4e11"}], "'4e11' (str)"),
}


@pytest.mark.parametrize("code", BAD_TARGETS)
def test_targets_that_cannot_be_used(ladder_rows, code):
    rows, said = BAD_TARGETS[code]
    with pytest.raises(EvalsError) as error:
        forecast(fit(ladder_rows()), rows)
    assert error.value.code == code
    assert said in str(error.value)
