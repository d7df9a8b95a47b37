"""A ladder from declaration to report, in this process: what a user finds in the store afterwards."""

import math
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from analysis import Forecast
from analysis.frame import AnalysisError
from ladder import Ladder, OptimizerSpec, Store
from ladder.cli.errors import explain
from ladder.cluster.driver import Result, run_ladder
from ladder.cluster.local import InProcess
from ladder.cluster.training import RunFailed, RunStopped
from ladder.cluster.work import Ended, Job
from ladder.store import StoreError


def never() -> InProcess:
    raise AssertionError("nothing is left to train, so no backend may be asked for")


def run(ladder: Ladder, store: Store, backend=InProcess, said: list[str] | None = None):
    return run_ladder(ladder, store, backend, say=(said if said is not None else []).append)


@pytest.fixture(scope="module")
def finished(micro: Ladder, tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Result]:
    """The micro ladder, brought to its end once for the tests that only look."""
    store = Store(tmp_path_factory.mktemp("store") / "micro")
    return store, run(micro, store)


def test_the_target_is_trained_after_its_forecast_is_frozen(micro: Ladder, finished: tuple) -> None:
    store, result = finished
    frozen = Forecast.load(store.path("forecast.json"))
    assert result.forecast_sha256 == frozen.sha256
    assert result.lo90 < result.median < result.hi90
    assert result.inside == (result.lo90 <= result.target_loss <= result.hi90)
    assert result.target_loss == store.run("w24").evals()[-1]["loss"]
    assert math.isfinite(result.target_loss)
    assert Path(result.report).read_text().startswith("<!doctype html>")
    for rung in micro.everything:
        rows = store.run(rung.name).rows()
        assert [row["step"] for row in rows] == list(range(1, rung.run.steps + 1))
        assert store.run(rung.name).status()["state"] == "finished"


def test_a_second_call_trains_nothing_and_repeats_the_result(micro: Ladder, finished: tuple) -> None:
    store, first = finished
    said: list[str] = []
    again = run(micro, store, never, said)
    assert again == replace(first, wall_s=again.wall_s)
    assert any("skipped" in line for line in said)


def test_another_ladder_is_refused(micro: Ladder, finished: tuple) -> None:
    other = micro.replace(rungs=(micro.rungs[0].replace(name="w9"), micro.rungs[1]))
    with pytest.raises(StoreError, match="only there: w8"):
        run(other, finished[0], never)


def test_ctrl_c_leaves_checkpoints_and_the_next_call_goes_on(micro: Ladder, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "micro"))

    def press_ctrl_c(launches: list) -> None:
        if launches[-1].run == "w24" and launches[-1].state == "running":
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_ladder(micro, store, InProcess, say=lambda text: None, show=press_ctrl_c)
    left = store.run("w24").status()
    assert left["state"] == "stopped" and 0 < left["step"] < left["steps"]

    run(micro, store)
    record = store.run("w24")
    assert [row["step"] for row in record.rows()] == list(range(1, left["steps"] + 1))
    assert [event["kind"] for event in record.events()][:2] == ["start", "restart"]
    assert record.events()[1]["resumed_from"] == left["step"]


def test_what_the_fit_would_refuse_is_refused_before_anything_is_trained(
    micro: Ladder, tmp_path: Path
) -> None:
    store = Store(str(tmp_path / "micro"))
    with pytest.raises(AnalysisError, match="at least 2 rungs"):
        run(micro.replace(rungs=micro.rungs[:1]), store, never)
    twins = tuple(micro.rungs[0].replace(name=name) for name in ("a", "b"))
    with pytest.raises(AnalysisError, match=r"at least 1\.5x"):
        run(micro.replace(rungs=twins), store, never)
    assert not store.exists("ladder.json")


def test_a_ladder_without_a_target_is_a_sweep(micro: Ladder, tmp_path: Path) -> None:
    twice = micro.rungs[0].replace(name="lr2", run=micro.rungs[0].run.replace(seed=7))
    sweep = micro.replace(rungs=(micro.rungs[0], twice), target=None)  # of one size: no law is asked for
    store = Store(str(tmp_path / "sweep"))
    trained = run(sweep, store)
    losses = [store.run(name).status()["loss"] for name in ("w8", "lr2")]
    assert [row["run"] for row in trained.runs] == ["w8", "lr2"]
    assert [row["loss"] for row in trained.runs] == losses
    assert losses[0] != losses[1] and not store.exists("forecast.json") and Path(trained.report).exists()
    assert run(sweep, store, never).runs == trained.runs


def copied(finished: tuple, tmp_path: Path) -> Store:
    shutil.copytree(finished[0].url, tmp_path / "micro")
    return Store(str(tmp_path / "micro"))


@pytest.mark.filterwarnings("ignore:.*torn last line:ladder.store.StoreWarning")
def test_a_finished_run_whose_last_rows_are_lost_is_never_taken_for_whole(
    micro: Ladder, finished: tuple, tmp_path: Path
) -> None:
    store = copied(finished, tmp_path)
    segment = sorted(Path(store.run("w24").folder).rglob("metrics-*"))[-1]
    segment.write_bytes(segment.read_bytes()[:-100])
    steps = micro.target.run.steps
    with pytest.raises(StoreError, match=f"w24 finished, .* whole only to step {steps - 1} of {steps}"):
        run(micro, store, never)


def test_a_run_whose_rows_are_lost_is_not_taken_for_finished_by_its_checkpoint(
    micro: Ladder, finished: tuple, tmp_path: Path
) -> None:
    store = copied(finished, tmp_path)
    shutil.rmtree(Path(store.run("w24").folder) / "attempts")
    with pytest.raises(RunFailed, match=r"w24 failed: .* its rows are whole only to step 0: restore"):
        run(micro, store)
    shutil.rmtree(store.run("w24").folder)
    run(micro, store)
    assert store.run("w24").whole() == micro.target.run.steps


def test_no_forecast_is_made_of_a_target_that_has_started(
    micro: Ladder, finished: tuple, tmp_path: Path
) -> None:
    store = copied(finished, tmp_path)
    frozen = Path(store.path("forecast.json"))
    frozen.write_text(frozen.read_text()[:-100])
    with pytest.raises(AnalysisError, match="restore it from a copy"):
        run(micro, store, never)
    frozen.unlink()
    with pytest.raises(StoreError, match="w24 has started: one made now would be no forecast"):
        run(micro, store, never)


def test_a_target_that_the_monitor_stops_is_said_by_the_exit_code_and_the_page(
    micro: Ladder, tmp_path: Path
) -> None:
    wild = micro.target.run.replace(optimizer=OptimizerSpec(lr=1e30, matrix_lr=1e30))
    ladder, store = micro.replace(target=micro.target.replace(run=wild)), Store(str(tmp_path / "micro"))
    for _ in range(2):
        with pytest.raises(RunStopped, match=r"w24 stopped: runaway: .* is (inf|nan)") as stopped:
            run(ladder, store)
        assert explain(stopped.value)[1] == 3
    assert "runaway" in store.read("report.html").decode()


class Failing:
    """A backend on which every launch of one run fails."""

    cpus = 4

    def __init__(self, bad: str):
        self.bad, self.started = bad, []

    def start(self, job: Job) -> None:
        self.started.append(job.run)

    def poll(self, timeout_s: float) -> list[Ended]:
        ended = [
            Ended(run, "failed", "boom") if run == self.bad else Ended(run, "finished")
            for run in self.started
        ]
        self.started = []
        return ended

    def peek(self) -> dict:
        return {}

    def stop(self) -> None: ...
    def close(self) -> None: ...


def test_a_failed_rung_is_named_and_no_forecast_is_frozen(micro: Ladder, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "micro"))
    with pytest.raises(RunFailed, match="w16 failed: boom"):
        run(micro, store, lambda: Failing("w16"))
    assert not store.exists("forecast.json")


def test_a_run_that_no_cluster_can_place_is_said_before_it_waits(micro: Ladder, tmp_path: Path) -> None:
    wide = micro.rungs[0].replace(resources=micro.rungs[0].resources.replace(cpus=64))
    greedy = micro.replace(rungs=(wide, *micro.rungs[1:]))
    with pytest.raises(RunFailed, match="w8 asks for 64 CPUs, the cluster has 4"):
        run(greedy, Store(str(tmp_path / "micro")), lambda: Failing("none"))


def test_rungs_that_the_law_cannot_join_are_refused_before_they_train(micro: Ladder, tmp_path: Path) -> None:
    longer = micro.rungs[1].replace(run=micro.rungs[1].run.replace(steps=500))
    with pytest.raises(ValueError, match=r"tokens per active parameter run from .* same ratio"):
        run(micro.replace(rungs=(micro.rungs[0], longer)), Store(str(tmp_path / "micro")), never)


def test_text_that_is_seen_too_often_is_said_before_the_start(micro: Ladder, tmp_path: Path) -> None:
    said: list[str] = []
    long = [rung.replace(run=rung.run.replace(steps=100 * rung.run.steps)) for rung in micro.rungs]
    with pytest.raises(RunFailed):
        run(micro.replace(rungs=long), Store(str(tmp_path / "micro")), lambda: Failing("w16"), said)
    assert any(line.startswith("w16: ") and "words" in line and "times" in line for line in said), said
