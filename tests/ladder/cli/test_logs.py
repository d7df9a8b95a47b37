"""ladder logs: the history of a run in lines, and followed to its end."""

import json
import subprocess
import sys
import threading

import pytest

from ladder.cli import logs, main
from ladder.store import notes
from tests.ladder.examples import ROOT, trained


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(logs, "LOOK_S", 0.02)


def test_rows_and_events_stand_in_order_of_attempt_and_step(store, said):
    trained(store.run("d8"), 30, 32).finish("failed", "boom")
    code, out, _ = said("logs", store.url, "d8")
    lines = out.splitlines()
    assert code == 0 and len(lines) == 1 + 40 + 1 + 1 + 2
    assert lines[0].split("Z  ")[1] == "[1] step 0  START"
    assert lines[1] == "[1] step 1  train_ce 1  tokens_per_s 320"
    assert lines[41].split("Z  ")[1] == "[1] step 40  SPIKE  train_ce 9.1"
    assert lines[42].split("Z  ")[1] == "[2] step 30  RESTART  from step 30"
    assert lines[44] == "[2] step 32  train_ce 0.03125"


def test_json_gives_one_value_a_line(store, said):
    values = [json.loads(line) for line in said("logs", store.url, "d8", "--json")[1].splitlines()]
    assert values[1] == {
        "attempt": 1,
        "kind": "row",
        "content": {"step": 1, "tokens": 32, "train_ce": 1.0, "tokens_per_s": 320.0},
    }


def test_following_ends_with_the_run_and_misses_nothing(store, capsys):
    run = store.run("d8-long")
    with store.lease("driver"):
        follower = threading.Thread(target=main, args=(["logs", "-f", store.url, run.id],))
        follower.start()
        life = trained(run, 0, 3)
        life.row({"step": 4, "train_ce": 2.0})
        life.finish("failed", "boom")
        notes.keep_failure(store.files, run.id, {"attempt": 1, "retry": True, "reason": "again in 1 s"})
        trained(run, 2, 5).finish("finished")
        follower.join(60)
    assert not follower.is_alive()
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split()[0] + line.split()[2] for line in lines if line.startswith("[")]
    assert rows == ["[1]1", "[1]2", "[1]3", "[1]4", "[2]3", "[2]4", "[2]5"]
    assert lines[-1] == "d8-long finished"


@pytest.mark.parametrize("run", ["d8-long", "d8-r1"])
def test_following_what_has_ended_or_nobody_will_start_ends_at_once(run, store, said):
    code, out, _ = said("logs", "-f", store.url, run)
    assert code == 0 and out.splitlines()[-1] == f"{run} {'queued' if run == 'd8-long' else 'finished'}"


def test_ctrl_c_leaves_the_log_quietly(store, said, monkeypatch):
    monkeypatch.setattr(logs.time, "sleep", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    code, out, complaint = said("logs", "-f", store.url, "d8")
    assert code == 0 and complaint == "" and out.splitlines()[-1].endswith("train_ce 9.1")


def test_a_reader_that_closes_the_pipe_is_no_traceback(store):
    trained(store.run("d8"), 0, 99, note="x" * 2000)
    command = [sys.executable, "-c", "import sys; from ladder.cli import main; sys.exit(main(sys.argv[1:]))"]
    child = subprocess.Popen(
        [*command, "logs", store.url, "d8"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    child.stdout.readline()
    child.stdout.close()
    assert (child.stderr.read(), child.wait()) == (b"", 1)
    child.stderr.close()


def test_an_unknown_run_is_one_line_that_names_the_known(store, said):
    code, _, complaint = said("logs", store.url, "d9")
    assert code == 2 and "has no run 'd9'; it has d8, d8-r1, d8-long, target" in complaint
