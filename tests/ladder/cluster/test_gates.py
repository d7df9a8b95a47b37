"""Gates: a rung is predicted before it starts; outside its band the ladder stops, or goes on and says so."""

import json
import shutil
from pathlib import Path

import pytest

from analysis import Forecast
from analysis.artefact import ForecastFileError
from analysis.gates import held_against
from ladder import Gate, Ladder, Rung, SpecError, Store
from ladder.cli import main
from ladder.cluster.driver import run_ladder
from ladder.cluster.training import GateStopped, RunFailed
from ladder.cluster.work import Ended, seen_by
from ladder.gating import gate_of, waves
from tests.ladder.cluster.conftest import micro_run
from tests.ladder.cluster.scripted import Lawful

RUNGS = ("w8", "w12", "w16", "w20")


@pytest.fixture(scope="module")
def four(text: Path) -> Ladder:
    rungs = tuple(Rung(name=name, run=micro_run(text, int(name[1:]))) for name in RUNGS)
    return Ladder(name="four", rungs=rungs, target=Rung(name="w28", run=micro_run(text, 28)))


class Bent(Lawful):
    """Keeps to the law but for some runs, whose losses are off by a factor."""

    def __init__(self, **factors: float):
        super().__init__()
        self.factors = factors

    def train(self, job, life):
        attempt, _, _ = self._running[job.run]
        write, factor = attempt.row, self.factors.get(job.run, 1)
        attempt.row = lambda row: write({k: v * factor if k == "eval_loss" else v for k, v in row.items()})
        yield from super().train(job, life)


def run(ladder: Ladder, store: Store, backend: Lawful, said: list[str] | None = None, **more):
    return run_ladder(ladder, store, lambda: backend, say=(said if said is not None else []).append, **more)


@pytest.fixture(scope="module")
def finished(four: Ladder, tmp_path_factory: pytest.TempPathFactory):
    store, said = Store(tmp_path_factory.mktemp("store") / "four"), []
    backend = Lawful()
    return store, run(four, store, backend, said), said, backend


def test_every_rung_from_the_third_on_is_predicted_from_the_smaller_ones_before_it_starts(four, finished):
    store, result, said, backend = finished
    assert backend.starts == ["w8", "w12", "w16", "w20", "w28"]
    for rung, below in (("w16", {"w8", "w12"}), ("w20", {"w8", "w12", "w16"})):
        frozen = Forecast.load(store.path(f"gates/{rung}/prediction.json"))
        assert frozen.run == rung and {row["run"] for row in frozen.payload["evals"]} == below
        assert frozen.regime["recipe"] == store.run(rung).spec.fingerprint
        predicted = next(k for k, line in enumerate(said) if f"gate: {rung} is predicted inside" in line)
        landed = next(k for k, line in enumerate(said) if f"gate: {rung} landed at" in line)
        assert predicted < landed and frozen.sha256[:12] in said[predicted]
    assert [(gate["rung"], gate["word"], gate["overruled"]) for gate in result.gates] == [
        ("w16", "inside", False),
        ("w20", "inside", False),
    ]
    assert all(gate["lo"] < gate["loss"] < gate["hi"] for gate in result.gates)
    assert json.loads(store.read("result.json"))["gates"] == result.gates


def test_the_band_is_the_one_of_the_declared_level(four, finished):
    store, *_ = finished
    tight = held_against(store, four.replace(gate=Gate(level=0.5)))
    wide = held_against(store, four)
    assert all(a.lo > b.lo and a.hi < b.hi for a, b in zip(tight, wide, strict=True))
    last = Forecast.load(store.path("gates/w16/prediction.json")).frame().iloc[-1]
    assert (wide[0].lo, wide[0].hi) == (last["lo99"], last["hi99"])


@pytest.mark.parametrize(("factor", "word"), [(1.15, "above"), (0.85, "below")])
def test_a_rung_outside_stops_the_ladder_before_the_dearer_ones(four, tmp_path, factor, word):
    store, backend = Store(tmp_path / "bent"), Bent(w16=factor)
    for _ in range(2):  # and again, without training anything
        with pytest.raises(GateStopped) as stopped:
            run(four, store, backend)
        held = stopped.value.record["stopped_by_gate"]
        assert held["rung"] == "w16" and held["word"] == word and held["level"] == 0.99
        assert held["loss"] == store.run("w16").status()["loss"]
        assert not held["lo"] <= held["loss"] <= held["hi"]
        assert f"{held['loss']:.4f}" in str(stopped.value) and "--no-gate" in str(stopped.value)
    assert backend.starts == ["w8", "w12", "w16"]
    assert not store.exists("forecast.json") and not store.exists("gates/w20/prediction.json")
    states = {run["run"]: run["state"] for run in store.overview()["runs"]}
    assert states["w16"] == "finished" and states["w20"] == states["w28"] == "waiting-for-gate"


def test_no_gate_goes_on_and_the_record_says_so(four, tmp_path):
    store, said = Store(tmp_path / "bent"), []
    result = run(four, store, Bent(w16=1.15), said, gated=False)
    assert (result.gates[0]["word"], result.gates[0]["overruled"]) == ("above", True)
    kept = json.loads(store.read("gates/w16/overruled.json"))
    frozen = Forecast.load(store.path("gates/w16/prediction.json"))
    assert kept["loss"] == store.run("w16").status()["loss"] and kept["prediction_sha256"] == frozen.sha256
    assert any("--no-gate, so the ladder goes on" in line for line in said)
    again = run(four, store, Bent())  # what was overruled stays so
    assert again.gates == result.gates


def test_a_prediction_is_never_made_again(four, finished, tmp_path):
    """A driver that ended between the prediction of w16 and its start; when it was written is not hashed."""
    shutil.copytree(finished[0].url, tmp_path / "four")
    for name in ("runs/w16", "runs/w20", "runs/w28", "gates/w20"):
        shutil.rmtree(tmp_path / "four" / name)
    (tmp_path / "four" / "forecast.json").unlink()
    path = tmp_path / "four" / "gates" / "w16" / "prediction.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"created": "2020-01-01T00:00:00+00:00"}))
    backend = Lawful()
    run(four, Store(tmp_path / "four"), backend)
    assert backend.starts == ["w16", "w20", "w28"]
    assert json.loads(path.read_text())["created"] == "2020-01-01T00:00:00+00:00"


def test_a_prediction_that_was_changed_is_refused(four, finished, tmp_path):
    shutil.copytree(finished[0].url, tmp_path / "four")
    path = tmp_path / "four" / "gates" / "w16" / "prediction.json"
    path.write_text(path.read_text().replace('"hi": [', '"hi": [9, ', 1))
    with pytest.raises(ForecastFileError, match="was changed after it was frozen"):
        run(four, Store(tmp_path / "four"), Lawful())


def test_a_store_from_before_there_were_gates_goes_on_without(four, finished, tmp_path):
    shutil.copytree(finished[0].url, tmp_path / "four")
    shutil.rmtree(tmp_path / "four" / "gates")
    said: list[str] = []
    result = run(four, Store(tmp_path / "four"), Lawful(), said)
    assert [gate["word"] for gate in result.gates] == ["not predicted", "not predicted"]
    assert sum("began without a prediction" in line for line in said) == 2
    assert result.target_loss == finished[1].target_loss


def declared(ladder: Ladder, backend: Lawful, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An experiment file of `ladder`, which `ladder run` trains on `backend`."""
    monkeypatch.setattr("ladder.cli.run._cluster", lambda: backend)
    monkeypatch.setattr("ladder.planning.CALIBRATION_S", 0.05)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):  # which the command sets for good
        monkeypatch.setenv(name, "disabled")
    (tmp_path / "ladder.json").write_text(ladder.to_json())
    path = tmp_path / "declared.py"
    path.write_text(
        "from pathlib import Path\nfrom ladder import Ladder\n"
        "LADDER = Ladder.from_json((Path(__file__).parent / 'ladder.json').read_text())\n"
    )
    return str(path)


def test_the_command_line_prints_the_losses_of_a_sweep(four, tmp_path, monkeypatch, capsys):
    path = declared(four.replace(target=None), Bent(w16=1.15), tmp_path, monkeypatch)
    words = ["run", path, "--store", str(tmp_path / "sweep")]
    assert main(words) == 0  # nothing is at stake, so nothing is gated
    lines = capsys.readouterr().out.splitlines()
    header = next(k for k, line in enumerate(lines) if "loss, bits/byte" in line)
    told = {line.split()[0]: float(line.split()[-1]) for line in lines[header + 1 : header + 5]}
    store = Store(tmp_path / "sweep")
    assert told == {name: round(store.run(name).status()["loss"], 4) for name in RUNGS}
    assert main([*words, "--json"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["run"] for row in last["runs"]] == list(RUNGS) and last["unit"] == "bits/byte"


def test_the_command_line_says_what_the_gate_stopped(four, tmp_path, monkeypatch, capsys):
    path = declared(four, Bent(w16=1.15), tmp_path, monkeypatch)
    words = ["run", path, "--store", str(tmp_path / "bent"), "--json"]
    assert main(words) == 1
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["exit_code"] == 1 and last["error"].startswith("stopped by the gate: w16 landed at ")
    assert last["stopped_by_gate"]["rung"] == "w16"
    assert last["stopped_by_gate"]["hi"] < last["stopped_by_gate"]["loss"]
    assert main([*words, "--no-gate"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [gate["overruled"] for gate in last["gates"]][:1] == [True] and "stopped_by_gate" not in last


def test_a_failed_rung_is_a_failure_and_stays_predicted(four, tmp_path):
    class Broken(Lawful):
        def train(self, job, life):
            if job.run == "w16":
                yield Ended(job.run, "failed", "ValueError: boom", raised=(seen_by(ValueError("boom")),))
            yield from super().train(job, life)

    store = Store(tmp_path / "four")
    with pytest.raises(RunFailed, match=r"w16 failed: .*boom") as failed:
        run(four, store, Broken())
    assert not isinstance(failed.value, GateStopped)
    assert [held.word for held in held_against(store, four)] == ["predicted", "waiting"]


def test_a_rung_whose_smaller_ones_carry_no_law_is_trained_and_not_held(text, tmp_path):
    rungs = [Rung(name=f"w{width}", run=micro_run(text, width)) for width in (32, 36, 64)]
    target = Rung(name="w80", run=micro_run(text, 80))
    said: list[str] = []
    store = Store(tmp_path / "close")
    result = run(Ladder(name="close", rungs=rungs, target=target, gate=Gate()), store, Bent(w64=1.15), said)
    assert [gate["word"] for gate in result.gates] == ["not predicted"]
    assert any(line.startswith("gate: w64 is not predicted: the 2 rungs span") for line in said)


def test_by_default_four_rungs_are_gated_and_three_are_not(four):
    three = four.replace(rungs=four.rungs[:3])
    assert gate_of(four) == Gate() and [len(wave) for wave in waves(four)] == [2, 1, 1]
    for free in (three, four.replace(gate=None)):
        assert waves(free) == (free.rungs,)
    assert [len(wave) for wave in waves(three.replace(gate=Gate()))] == [2, 1]
    with pytest.raises(SpecError, match=r"Gate: level=0.8: a prediction keeps the bands 0.5, 0.9, 0.99"):
        Gate(level=0.8)
    assert Ladder.from_json(four.to_json()) == four
