"""Lives of one run: who wins a step, who may publish, what a reader is told."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder.store import StaleAttempt, StoreError, attempt
from ladder.store.rows import AttemptRows, merge
from tests.ladder.examples import ROOT, RUN, trained
from tests.reference.merge import merged


def test_the_newest_attempt_wins_and_rows_past_its_start_are_void(store):
    run = store.run("d8")
    first = trained(run, 0, 50, lr=1.0)
    trained(run, 40, 45, lr=2.0)
    first.row({"step": 60, "train_ce": 9.0})  # a leftover that still writes
    first.flush()
    rows = run.rows()
    assert [row["step"] for row in rows] == list(range(1, 46))
    assert [row["attempt"] for row in rows] == [1] * 40 + [2] * 5
    assert [(event["attempt"], event["kind"], event["step"]) for event in run.events()] == [
        (1, "start", 0),
        (2, "restart", 40),
    ]


def test_an_attempt_that_never_started_voids_nothing(store):
    run = store.run("d8")
    trained(run, 0, 20)
    run.begin(RUN, {})
    assert len(run.rows()) == 20


def test_an_attempt_that_says_nothing_started_from_scratch(store):
    run = store.run("d8")
    trained(run, 0, 20)
    life = run.begin(RUN, {})
    life.row({"step": 1, "train_ce": 0.5})
    life.flush()
    assert [(row["step"], row["attempt"]) for row in run.rows()] == [(1, 2)]
    with pytest.raises(StoreError, match="before the first row"):
        life.resumed(5)


@pytest.mark.parametrize(("lost", "whole"), [((1,), 0), ((2,), 30), ((1, 2), 0)])
def test_no_attempt_goes_on_past_rows_that_are_lost(store, lost, whole):
    run = store.run("d8")
    trained(run, 0, 30)
    trained(run, 30, 50)
    for number in lost:
        store.files.fs.rm(store.path(f"runs/d8/attempts/{number:04d}"), recursive=True)
    assert run.whole() == whole
    with pytest.raises(StoreError, match=f"checkpoint of step 50.*whole only to step {whole}: restore"):
        trained(run, 50, 100)
    trained(run, whole, 100)  # an older checkpoint, or the beginning, makes them again
    assert [row["step"] for row in run.rows()] == list(range(1, 101))


@st.composite
def lives(draw):
    """Attempts in order of number, each from any step, each with rows in order of step, some apart."""
    attempts = []
    for number in range(1, draw(st.integers(1, 5)) + 1):
        start = draw(st.none() | st.integers(0, 12))
        steps = sorted(draw(st.lists(st.integers(start, 14), max_size=10))) if start is not None else []
        rows = [{"step": step, f"k{index % 3}": 100 * number + index} for index, step in enumerate(steps)]
        attempts.append((number, start, rows))
    return attempts


@given(lives(), st.randoms(use_true_random=False))
def test_the_merge_equals_its_slow_twin_in_any_order(attempts, random):
    expected = merged(attempts)
    shuffled = list(attempts)
    random.shuffle(shuffled)
    assert merge(AttemptRows(*life) for life in shuffled) == expected


def test_a_leftover_attempt_cannot_publish(store):
    run = store.run("d8")
    first, second = run.begin(RUN, {}), run.begin(RUN, {})
    assert (first.number, second.number) == (1, 2)
    with pytest.raises(StaleAttempt, match="attempt 2"):
        first.finish("finished")
    with pytest.raises(StaleAttempt):
        first.check_current()
    second.check_current()
    assert run.status()["state"] == "running"
    second.finish("finished")
    assert run.status()["state"] == "finished" and run.status()["attempt"] == 2


def test_two_who_open_at_once_get_two_numbers(store, monkeypatch):
    run = store.run("d8")
    run.begin(RUN, {})
    monkeypatch.setattr(attempt, "numbers", lambda *_: [])  # as one who looked before the other opened
    assert run.begin(RUN, {}).number == 2


def test_another_spec_is_refused_with_both_fingerprints(store):
    other = RUN.replace(steps=101)
    for _ in range(2):
        with pytest.raises(StoreError) as error:
            store.run("d8").begin(other, {})
        assert RUN.fingerprint[:12] in str(error.value) and other.fingerprint[:12] in str(error.value)
        store.run("d8").begin(RUN, {})
    assert store.run("d8").begin(RUN.replace(parallel=RUN.parallel.replace(data=2)), {}).number == 3


def test_a_finished_run_is_not_begun_again(store):
    store.run("d8").begin(RUN, {}).finish("finished")
    with pytest.raises(StoreError, match="finished"):
        store.run("d8").begin(RUN, {})


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (RuntimeError("boom"), "failed", "RuntimeError: boom"),
        (KeyboardInterrupt(), "stopped", "interrupted"),
    ],
)
def test_an_error_is_recorded_as_the_reason(store, error, state, reason):
    with pytest.raises(type(error)), store.run("d8").begin(RUN, {}) as life:
        life.row({"step": 1, "train_ce": 1.0})
        raise error
    status = store.run("d8").status()
    assert (status["state"], status["reason"], status["step"]) == (state, reason, 1)


def test_the_error_of_a_leftover_is_not_hidden(store):
    with pytest.raises(RuntimeError, match="boom"), store.run("d8").begin(RUN, {}):
        store.run("d8").begin(RUN, {})
        raise RuntimeError("boom")


def test_status_says_what_is_known_and_nothing_else(store):
    run = store.run("d8")
    unknown = dict.fromkeys(("attempt", "step", "loss", "tokens_per_s", "eta_s"))
    constant = {"run": "d8", "steps": 100, "reason": "", "fingerprint": RUN.fingerprint}
    assert run.status() == {**unknown, **constant, "state": "queued"}
    life = run.begin(RUN, {})
    assert run.status() == {**unknown, **constant, "state": "running", "attempt": 1}
    life.row({"step": 50, "tokens": 1600, "eval_loss": 2.5})
    life.row({"step": 60, "tokens": 1920, "tokens_per_s": 64.0})
    life.flush()
    assert run.status() == {
        **constant,
        "state": "running",
        "attempt": 1,
        "step": 60,
        "loss": 2.5,
        "tokens_per_s": 64.0,
        "eta_s": 40 * 32 / 64,
    }


def test_a_killed_worker_is_failed_and_not_running_for_ever(folder):
    code = (
        "import os, signal, sys; from ladder import Store; "
        "run = Store(sys.argv[1]).run('d8'); run.begin(run.spec, {}); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, folder.url], check=False, cwd=ROOT)
    status = folder.run("d8").status()
    assert status["state"] == "failed" and "ended without closing attempt 1" in status["reason"]


def test_reading_while_another_process_writes_never_fails_and_never_goes_back(folder):
    code = (
        "import sys; from ladder import Store; run = Store(sys.argv[1]).run('d8');\n"
        "with run.begin(run.spec, {}) as life:\n"
        "    for step in range(1, 101):\n"
        "        life.row({'step': step, 'train_ce': 1.0}); life.flush()\n"
        "    life.finish('finished')"
    )
    run, seen = folder.run("d8"), 0
    with subprocess.Popen([sys.executable, "-c", code, folder.url], cwd=ROOT) as writer:
        while writer.poll() is None:
            steps = [row["step"] for row in run.rows()]
            assert steps == list(range(1, len(steps) + 1)) and len(steps) >= seen
            seen = len(steps)
            assert run.status()["state"] in ("queued", "running", "finished")
            time.sleep(0.01)
    assert writer.returncode == 0 and len(run.rows()) == 100 and run.status()["state"] == "finished"


def test_a_folder_whose_attempt_was_never_opened_is_none(folder):
    """A kill between the folder and its first file, or a full disk."""
    run = folder.run("d8")
    trained(run, 0, 20).finish("stopped")
    (Path(run.folder) / "attempts" / "0002").mkdir()
    assert run.status()["attempt"] == 1 and len(run.rows()) == 20
    assert run.begin(RUN, {}).number == 2


def test_what_a_full_disk_refused_leaves_no_gap(folder, monkeypatch):
    run = folder.run("d8")
    life = trained(run, 0, 5)
    with monkeypatch.context() as full:

        def no_space(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        full.setattr(os, "replace", no_space)
        life.row({"step": 6})
        for write in (life.flush, lambda: life.event(6, "alarm")):
            with pytest.raises(StoreError, match=r"cannot write .*0000000.\.jsonl: No space left"):
                write()
    life.event(6, "alarm")
    life.finish("failed", "the disk was full")
    assert [row["step"] for row in run.rows()] == [1, 2, 3, 4, 5, 6]
    assert [event["kind"] for event in run.events()] == ["start", "alarm"]
