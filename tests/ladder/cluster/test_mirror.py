"""The real wandb client against a service on this machine: what W&B shows beside what the store holds."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ladder import Ladder, Store
from ladder.cli import main
from ladder.cluster import mirror
from ladder.cluster.driver import run_ladder
from ladder.cluster.local import InProcess
from ladder.cluster.mirror import MirrorError, mirrored, sync
from ladder.store import RunRecord
from tests.ladder.examples import LADDER, trained
from tests.loopback.server import KEY, Loopback

OF_AN_ATTEMPT = ("attempt", "tokens_per_s")  # a step that is trained again may differ in these alone


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Loopback]:
    with Loopback() as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "NETRC"):
            monkeypatch.setenv(name, str(tmp_path / name.lower()))
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "store")
    store.create(LADDER)
    return store


def shown(service: Loopback, record: RunRecord) -> list[dict]:
    """Rows of a run on the service, in order of step; repeated steps repeat here."""
    runs = [run for run in service.runs.values() if run.name == record.id]
    rows = [row for run in runs for row in run.rows]
    return sorted(map(comparable, rows), key=lambda row: row["step"])


def held(record: RunRecord) -> list[dict]:
    return [comparable(row) for row in record.rows()]


def comparable(row: dict) -> dict:
    return {key: "NaN" if value != value else value for key, value in row.items() if key not in OF_AN_ATTEMPT}


def until(there: Callable[[], object]) -> None:
    """Wait for it; the test's own timeout is the bound."""
    while not there():
        time.sleep(0.05)


def minutes_later(store: Store) -> None:
    """What was sent a moment ago was sent an hour ago: nobody waits for it to be shown."""
    for stamp in Path(store.url, "wandb").glob("*.online"):
        os.utime(stamp, (0, time.time() - 3600))


def test_attempts_make_one_history_with_the_rows_of_the_store(
    service: Loopback,
    store: Store,
    capfd: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    record, said = store.run("d8"), []
    with mirrored(store, "online", said.append):
        trained(record, 0, 20)
    assert shown(service, record) == held(record) and len(held(record)) == 20
    minutes_later(store)
    with mirrored(store, "online", said.append):
        trained(record, 12, 30, grad_norm=math.nan).event(25, "verdict", "loss too high", state="precursor")
    assert [row["step"] for row in shown(service, record)] == list(range(1, 31))
    assert shown(service, record)[20:] == held(record)[20:]
    (run,) = service.runs.values()
    assert (run.group, run.name, run.project) == ("tiny", "d8", "scaling-ladder")
    assert (
        run.config["steps"]["value"] == 100 and run.config["fingerprint"]["value"] == record.spec.fingerprint
    )
    # wandb's own words for: the axis of every key is the key "tokens"
    assert {"1": "tokens", "6": [3], "7": []} in run.config["_wandb"]["value"]["m"]
    assert {"2": "*", "5": 1, "6": [1], "7": []} in run.config["_wandb"]["value"]["m"]
    assert [(alert["title"], alert["text"]) for alert in service.alerts] == [
        ("tiny d8: precursor", "step 25: loss too high")
    ]
    # silent and tidy: nothing on the terminal, nothing in the working directory, the key nowhere
    assert said == [] and capfd.readouterr() == ("", "") and list(here.iterdir()) == []
    assert not [p for p in Path(store.url).rglob("*") if p.is_file() and KEY.encode() in p.read_bytes()]


@pytest.mark.slow
def test_rows_are_shown_while_the_run_goes_on(service: Loopback, store: Store) -> None:
    record = store.run("d8")
    with mirrored(store, "online", print):
        attempt = trained(record, 0, 10)
        # the newest row may still get an evaluation, so it waits for the next one
        until(lambda: [row["step"] for row in shown(service, record)] == list(range(1, 10)))
        attempt.row({"step": 10, "tokens": 320, "eval_loss": 2.5})
        attempt.flush()
    assert shown(service, record) == held(record)
    assert shown(service, record)[-1]["eval_loss"] == 2.5


def test_offline_files_hold_one_whole_history_for_wandb_sync(
    service: Loopback, store: Store, tmp_path: Path
) -> None:
    record, said = store.run("d8"), []
    for start, end in [(0, 20), (12, 30)]:
        with mirrored(store, "offline", said.append):
            trained(record, start, end)
    assert said == [] and service.requests == 0
    (folder,) = Path(store.url, "wandb").glob("offline-run-*")
    subprocess.run(
        [Path(sys.executable).parent / "wandb", "sync", folder], check=True, capture_output=True, cwd=tmp_path
    )
    assert shown(service, record) == held(record) and len(held(record)) == 30


def test_without_the_service_rows_stay_here_and_sync_sends_them_once(
    service: Loopback, store: Store, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "")  # refused at once, where a dead service takes its 15 s
    first, second, said = store.run("d8"), store.run("d8-long"), []
    with mirrored(store, "online", said.append):
        trained(first, 0, 20)
        trained(second, 0, 10)
    (line,) = said
    assert "W&B does not take the run" in line and "No API key" in line
    assert len(list(Path(store.url, "wandb").glob("offline-run-*"))) == 2
    assert main(["sync", store.url]) == 1
    assert "No API key configured" in capsys.readouterr().err

    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert main(["sync", store.url]) == 0
    assert capsys.readouterr().out.split()[-8:] == ["d8", "20", "20", "20", "d8-long", "10", "10", "10"]
    for record in (first, second):
        assert shown(service, record) == held(record)
    opened = [run.opened for run in service.runs.values()]
    assert main(["sync", store.url, "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [(run["run"], run["sent"], run["there"]) for run in runs] == [("d8", 0, 20), ("d8-long", 0, 10)]
    assert [run.opened for run in service.runs.values()] == opened, "nothing to send: nothing begun"


@pytest.mark.slow
def test_a_gap_on_the_service_is_filled(service: Loopback, store: Store) -> None:
    record = store.run("d8")
    trained(record, 0, 20)
    sync(store, print)
    (run,) = service.runs.values()
    arrived = [line for line in run.lines.values() if line["step"] not in (4, 5, 19, 20)]
    run.lines = dict(enumerate(arrived))
    minutes_later(store)
    assert [run["sent"] for run in sync(store, print)] == [4]
    assert shown(service, record) == held(record)


@pytest.mark.parametrize("seconds", [2, pytest.param(60, marks=pytest.mark.slow)])
def test_rows_of_an_outage_arrive_when_the_service_is_back(
    service: Loopback, store: Store, seconds: int
) -> None:
    record, said = store.run("d8"), []
    with mirrored(store, "online", said.append):
        attempt = trained(record, 0, 10)
        until(lambda: len(shown(service, record)) == 9)
        service.health = "dead"
        for step in range(11, 31):
            attempt.row({"step": step, "tokens": 32 * step, "train_ce": 1 / step})
            if step % 5 == 0:
                attempt.flush()
                time.sleep(seconds / 4)
        service.health = "up"
    if said:  # the client was still waiting out a retry when its time was over
        minutes_later(store)
        sync(store, print)
    assert shown(service, record) == held(record) and len(held(record)) == 30


@pytest.mark.slow
def test_a_service_that_never_answers_cannot_hold_the_end(
    service: Loopback, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "FINISH_S", -3)  # 2 s until the process is killed
    record, said = store.run("d8"), []
    with mirrored(store, "online", said.append):
        attempt = trained(record, 0, 10)
        until(lambda: len(shown(service, record)) == 9)
        service.health = "stuck"
        attempt.row({"step": 11, "tokens": 352, "train_ce": 1.0})
        attempt.flush()
    assert said == [f"W&B has not everything; `ladder sync {store.url}` sends the rest"]
    service.health = "up"
    minutes_later(store)
    sync(store, print)
    assert shown(service, record) == held(record)


@pytest.mark.slow
def test_the_mirror_itself_gives_up_on_a_service_that_never_answers(service: Loopback, store: Store) -> None:
    said: list[str] = []
    with mirrored(store, "online", said.append):
        trained(store.run("d8"), 0, 10)
        until(lambda: len(shown(service, store.run("d8"))) == 9)
        service.health = "stuck"
    assert "sends the rest" in said[-1]


@pytest.mark.slow
def test_a_killed_mirror_disturbs_nobody(
    service: Loopback, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen] = []
    start = mirror._start
    monkeypatch.setattr(mirror, "_start", lambda *how: started.append(start(*how)) or started[-1])
    record, said = store.run("d8"), []
    with mirrored(store, "online", said.append):
        trained(record, 0, 10)
        until(lambda: shown(service, record))
        started[0].send_signal(signal.SIGKILL)
        started[0].wait()
        trained(record, 5, 20)
    assert len(said) == 1 and "ladder sync" in said[0]
    minutes_later(store)
    sync(store, print)
    assert [row["step"] for row in shown(service, record)] == list(range(1, 21))


@pytest.mark.slow
def test_two_senders_at_once_are_refused(service: Loopback, store: Store) -> None:
    trained(store.run("d8"), 0, 5)
    with mirrored(store, "online", print):
        until(lambda: service.runs)
        with pytest.raises(MirrorError, match="another process is sending"):
            sync(store, print)


def test_a_disk_without_room_for_the_mirror_is_said(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*how: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mirror, "_start", full)
    said: list[str] = []
    with mirrored(store, "offline", said.append):
        pass
    assert said == ["nothing is mirrored on W&B: [Errno 28] No space left on device"]


def test_sync_of_what_is_no_store_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["sync", str(tmp_path)]) == 2
    assert "holds no ladder" in capsys.readouterr().err


@pytest.mark.slow
def test_a_ladder_that_is_run_online_is_there_to_the_last_row(
    service: Loopback, micro: Ladder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "micro")
    said: list[str] = []
    monkeypatch.setattr("analysis.page.report.report", lambda store: "report.html")
    run_ladder(micro, store, InProcess, say=said.append, wandb="online")
    assert not [line for line in said if "W&B" in line]
    for record in store.runs():
        assert shown(service, record) == held(record)
        assert [run.state for run in service.runs.values() if run.name == record.id] == ["finished"]
