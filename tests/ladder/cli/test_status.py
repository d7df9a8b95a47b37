"""ladder status: the same facts as a table and as JSON, from the store alone."""

import json
import os
import subprocess
import sys

import pytest

from ladder import Store
from ladder.cli.status import duration
from ladder.store import notes
from tests.ladder.examples import ROOT, RUN, trained


def test_every_run_has_a_line_with_what_is_known(store, said):
    code, out, _ = said("status", store.url)
    lines = out.splitlines()
    assert code == 0
    assert lines[0] == f"tiny in {store.url}, no driver at work"
    assert lines[1].split() == ["run", "state", "attempt", "step", "loss", "tok/s", "eta"]
    assert lines[2].split() == ["d8", "running", "1", "40/100", "-", "320", "6", "s"]
    assert lines[3].split() == ["d8-r1", "finished", "1", "100/100", "0.2500", "-", "-"]
    assert lines[4].split() == ["d8-long", "queued", "-", "0/200", "-", "-", "-"]
    assert lines[5].split() == ["target", "waiting-for-gate", "-", "0/400", "-", "-", "-"]
    assert lines[6] == "target: its forecast is frozen after the rungs"


def test_json_holds_the_same_and_no_invented_value(store, answered):
    code, found = answered("status", store.url)
    assert code == 0
    assert [run["state"] for run in found["runs"]] == ["running", "finished", "queued", "waiting-for-gate"]
    running = found["runs"][0]
    assert (running["step"], running["steps"], running["tokens_per_s"], running["eta_s"]) == (40, 100, 320, 6)
    assert running["loss"] is None and found["driver"] is None


def test_a_frozen_forecast_opens_the_gate(store, answered):
    store.write("forecast.json", "{}")
    assert answered("status", store.url)[1]["runs"][-1]["state"] == "queued"


def test_a_loss_that_is_no_number_stays_one_in_strict_json(store, said):
    life = trained(store.run("d8-long"), 0, 5)
    life.row({"step": 6, "eval_loss": float("nan")})
    life.flush()
    found = json.loads(said("status", store.url, "--json")[1], parse_constant=pytest.fail)
    assert found["runs"][2]["loss"] == "nan"


def test_a_failure_that_is_tried_again_reads_queued_and_one_given_up_failed(store, answered):
    run = store.run("d8-long")
    trained(run, 0, 5).finish("failed", "boom")
    notes.keep_failure(store.files, run.id, {"attempt": 1, "retry": True, "reason": "again in 1 s"})
    assert (
        answered("status", store.url)[1]["runs"][2] | {"state": "queued", "reason": "again in 1 s"}
        == (answered("status", store.url)[1]["runs"][2])
    )
    life = run.begin(run.spec, {})
    assert run.status()["state"] == "running"
    life.finish("failed", "boom")
    notes.keep_failure(store.files, run.id, {"attempt": 2, "retry": False, "reason": "given up"})
    assert (run.status()["state"], run.status()["reason"]) == ("failed", "given up")


def test_who_drives_is_named(store, said, answered):
    with store.lease("ladder run tiny"):
        assert f"driven by pid {os.getpid()} on" in said("status", store.url)[1]
        assert answered("status", store.url)[1]["driver"]["owner"] == "ladder run tiny"


def test_a_killed_process_is_gone_even_before_its_parent_asks(store):
    """Else a dead driver's lease would be held, and its runs running, until somebody reaps it."""
    code = (
        "import sys, time; from ladder import Store; store = Store(sys.argv[1]); "
        "lease = store.lease('short-lived'); lease.__enter__(); run = store.run('d8-long'); "
        "life = run.begin(run.spec, {}); print('ready', flush=True); time.sleep(600)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, store.url], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout.readline() == "ready\n"
        assert store.driver() and store.run("d8-long").status()["state"] == "running"
        os.kill(child.pid, 9)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and not reaped
        assert store.driver() is None
        assert "ended without closing attempt 1" in store.run("d8-long").status()["reason"]
    finally:
        child.communicate()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "nowhere", "holds no ladder"),
        (lambda folder: newer(folder), "made by a newer version (format 99"),
        (lambda folder: torn(folder), "torn line in the middle"),
    ],
)
def test_a_store_that_cannot_be_read_is_one_line(make, message, tmp_path, said):
    code, out, complaint = said("status", make(tmp_path), "--json")
    assert code == 2 and message in complaint and len(complaint.splitlines()) == 1
    assert json.loads(out) == {"error": complaint.strip().removeprefix("ladder status: "), "exit_code": 2}


def newer(folder):
    Store(folder).write("ladder.json", json.dumps({"format": 99, "ladder": {}}))
    return folder


def torn(folder):
    from tests.ladder.examples import LADDER

    store = Store(folder)
    store.create(LADDER)
    life = store.run("d8").begin(RUN, {})
    life.resumed(0)
    store.write("runs/d8/attempts/0001/metrics-00000001.jsonl", '{"step": 1}\n{"st\n{"step": 3}\n')
    return folder


@pytest.mark.parametrize(
    ("seconds", "text"), [(6.2, "6 s"), (600, "10 min"), (5400, "1 h 30 min"), (100_000, "27 h 47 min")]
)
def test_a_time_left_is_said_in_units_of_its_size(seconds, text):
    assert duration(seconds) == text
