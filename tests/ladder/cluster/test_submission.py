"""A submitted ladder: driven by a process of its own, known by its store alone."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis import Forecast
from ladder import Ladder, Rung, Store
from ladder.cluster.submission import Submission, submit
from ladder.cluster.training import RunFailed, RunStopped
from ladder.store import LeaseHeld, StoreError
from tests.ladder.cluster.conftest import micro_run
from tests.ladder.examples import ROOT

SCRIPTED = "tests.ladder.cluster.scripted"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's process finds the scripted backends."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def ladder(text: Path) -> Ladder:
    """Rungs enough for a law; the text is tokenized, nothing is trained."""
    rungs = tuple(Rung(name=f"w{width}", run=micro_run(text, width)) for width in (8, 12, 16, 20))
    return Ladder(name="micro", rungs=rungs, target=Rung(name="w24", run=micro_run(text, 24)))


def until(found: Callable[[], object]) -> None:
    for _ in range(600):
        if found():
            return
        time.sleep(0.1)
    raise AssertionError("it never came")


def running(submission: Submission) -> bool:
    return any(run["state"] == "running" for run in submission.status()["runs"])


def test_a_ladder_comes_to_its_end_and_is_opened_again_by_its_store(ladder: Ladder, tmp_path: Path) -> None:
    submit(ladder, tmp_path, f"{SCRIPTED}:Lawful").wait(120)
    again = Submission.open(tmp_path)
    result = again.wait()
    assert result.forecast_sha256 == Forecast.load(str(tmp_path / "forecast.json")).sha256
    assert result.target_loss == Store(tmp_path).run("w24").evals()[-1]["loss"]
    assert [run["state"] for run in again.status()["runs"]] == ["finished"] * 5
    assert again.errors() == {} and again.status()["driver"] is None
    assert "frozen before it starts" in (tmp_path / "driver.log").read_text()


def test_stop_leaves_every_run_stopped_and_a_new_submission_goes_on(ladder: Ladder, tmp_path: Path) -> None:
    submission = submit(ladder, tmp_path, f"{SCRIPTED}:Endless")
    until(lambda: running(submission))
    with pytest.raises(TimeoutError, match="is at work after"):
        submission.wait(0.1)
    with pytest.raises(LeaseHeld, match="is at work on"):
        submit(ladder, tmp_path, f"{SCRIPTED}:Lawful")
    submission.stop(60)
    with pytest.raises(RunFailed, match="stopped on request"):
        submission.wait(0)
    states = [run["state"] for run in submission.status()["runs"]]
    assert states.count("stopped") == 2 and "running" not in states
    assert submit(ladder, tmp_path, f"{SCRIPTED}:Lawful").wait(120).inside is not None


def test_a_driver_that_found_another_at_work_is_not_the_one_that_is_waited_for(
    ladder: Ladder, tmp_path: Path
) -> None:
    submission = submit(ladder, tmp_path, f"{SCRIPTED}:Endless")
    with pytest.raises(LeaseHeld, match="is at work on"):  # also in the seconds before it has its lease
        submit(ladder, tmp_path, f"{SCRIPTED}:Lawful")
    until(lambda: running(submission))
    late = [sys.executable, "-m", "ladder.cluster.submission", str(tmp_path), f"{SCRIPTED}:Lawful"]
    assert subprocess.run(late, capture_output=True).returncode == 2  # two submissions at the same moment
    with pytest.raises(TimeoutError, match="is at work after"):
        submission.wait(0.1)
    assert submission.errors() == {}
    submission.stop(60)


def test_a_driver_that_was_killed_is_told_and_followed_by_another(ladder: Ladder, tmp_path: Path) -> None:
    killed = submit(ladder, tmp_path, f"{SCRIPTED}:Fatal")
    with pytest.raises(RunFailed, match=r"the driver \(pid \d+\) was killed; submit the ladder again"):
        killed.wait(60)
    assert "was killed" in killed.errors()["driver"]
    assert submit(ladder, tmp_path, f"{SCRIPTED}:Lawful").wait(120)
    assert "took over the lease" in (tmp_path / "driver.log").read_text()


def test_sigterm_lets_the_driver_leave(ladder: Ladder, tmp_path: Path) -> None:
    submission = submit(ladder, tmp_path, f"{SCRIPTED}:Endless")
    until(lambda: running(submission))
    os.kill(submission.status()["driver"]["pid"], signal.SIGTERM)
    with pytest.raises(RunFailed, match="stopped by a signal"):
        submission.wait(60)
    assert "running" not in [run["state"] for run in submission.status()["runs"]]


@pytest.mark.parametrize(
    ("backend", "line"),
    [("Broken", "w8 failed: ValueError: width must divide"), ("Unreachable", "the cluster did not start")],
)
def test_what_went_wrong_is_one_line(backend: str, line: str, ladder: Ladder, tmp_path: Path) -> None:
    submission = submit(ladder, tmp_path, f"{SCRIPTED}:{backend}")
    with pytest.raises(RunFailed, match=line):
        submission.wait(60)
    errors = submission.errors()
    assert line in errors["driver"]
    assert ("w8" in errors) == (backend == "Broken")


def test_a_target_that_the_monitor_stopped_is_told_apart(ladder: Ladder, tmp_path: Path) -> None:
    submission = submit(ladder, tmp_path, f"{SCRIPTED}:Alarmed")
    with pytest.raises(RunStopped, match="w24 stopped: runaway: grad_norm rises"):
        submission.wait(120)
    assert json.loads((tmp_path / "drivers/0001-end.json").read_text())["code"] == 3


def test_the_driver_outlives_who_submitted_it(ladder: Ladder, tmp_path: Path) -> None:
    code = (
        "import sys; from ladder import Ladder; from ladder.cluster.submission import submit; "
        "submit(Ladder.from_json(sys.argv[1]), sys.argv[2], sys.argv[3])"
    )
    words = [ladder.to_json(), str(tmp_path), f"{SCRIPTED}:Lawful"]
    subprocess.run([sys.executable, "-c", code, *words], check=True)
    assert Submission.open(tmp_path).wait(120).forecast_sha256


def test_a_wrong_call_says_what_is_wrong(ladder: Ladder, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="use a folder"):
        submit(ladder, "memory://elsewhere")
    with pytest.raises(StoreError, match="nothing was submitted"):
        Submission.open(tmp_path / "empty")
    with pytest.raises(RunFailed, match="nosuch"):
        submit(ladder, tmp_path / "s", "nosuch:Backend").wait(60)
    assert "nosuch" in json.loads((tmp_path / "s/drivers/0001-end.json").read_text())["line"]
