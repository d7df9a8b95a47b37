"""ladder stop: who is asked, what comes of it, and that nobody waits for ever."""

import threading
import time

import pytest

from ladder.cli import stop
from ladder.store import notes
from tests.ladder.examples import trained


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(stop, "LOOK_S", 0.02)


@pytest.fixture
def obedient(store):
    """An attempt at d8 that leaves when it is asked to."""
    life = trained(store.run("d8"), 0, 40)

    def leave():
        while not notes.asked_to_stop(store.files, "d8", 2):
            time.sleep(0.02)
        life.finish("stopped", "asked to stop")

    thread = threading.Thread(target=leave, daemon=True)
    thread.start()
    yield store
    thread.join(30)


def test_a_running_run_is_asked_by_its_attempt_and_waited_for(obedient, said):
    code, out, _ = said("stop", obedient.url, "d8")
    assert code == 0 and out == "d8: stopped at step 40/100 (asked to stop)\n"
    assert not notes.asked_to_stop(obedient.files, "d8", 1)


def test_who_does_not_leave_in_time_is_said_to_run_on(store, said):
    code, out, _ = said("stop", store.url, "d8", "--wait", "0.1")
    assert code == 1 and out.startswith("d8: still running at step 40/100: the request stands")
    assert notes.asked_to_stop(store.files, "d8", 1)


def test_what_does_not_run_needs_no_stop(store, said):
    assert said("stop", store.url, "d8-r1")[:2] == (0, "d8-r1: finished at step 100/100: nothing to stop\n")
    assert said("stop", store.url, "d8-long")[:2] == (0, "d8-long: queued at step 0/200: nothing to stop\n")


def test_a_queued_run_of_a_driver_at_work_will_not_be_started(store, said):
    with store.lease("driver"):
        code, out, _ = said("stop", store.url, "d8-long")
    assert (code, out) == (0, "d8-long: will not be started by this driver\n")
    assert notes.asked_to_stop(store.files, "d8-long", 1)


def test_all_asks_the_driver_too_and_names_it_when_it_stays(obedient, said, answered):
    with obedient.lease("driver"):
        code, out, _ = said("stop", obedient.url, "--all", "--wait", "0.5")
        assert code == 1 and "not left" in out.splitlines()[-1]
        assert notes.driver_asked_to_leave(obedient.files, obedient.driver())
    code, found = answered("stop", obedient.url, "--all")
    assert code == 0 and found["driver_left"]
    assert [run["state"] for run in found["runs"]] == ["stopped", "finished", "queued", "queued"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a run, or say --all"),
        (["d8", "--all"], "name a run, or say --all"),
        (["d9"], "has no run 'd9'"),
        (["d8", "--wait", "nan"], "--wait nan: give seconds"),
    ],
)
def test_a_wrong_call_is_one_line(words, message, store, said):
    code, _, complaint = said("stop", store.url, *words)
    assert code == 2 and message in complaint and len(complaint.splitlines()) == 1
