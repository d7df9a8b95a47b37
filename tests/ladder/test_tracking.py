"""What a mirror sends, and what it does not send again; the client is a stand-in that notes what it is told.

The real client is driven in tests/ladder/cluster/test_mirror.py.
"""

import sys
import types
from pathlib import Path

import pytest

from ladder import Store, tracking
from ladder.store import RunRecord
from ladder.tracking import RunMirror, Unreachable, default_mode, new_identity, run_id
from tests.ladder.examples import LADDER, trained


class Client:
    """A `wandb` module of which parts can be made to fail."""

    def __init__(self) -> None:
        self.rows: list[dict] = []
        self.begun: list[dict] = []
        self.ended: list[int] = []
        self.fail = ""

    def init(self, **settings: object) -> "Client":
        if self.fail == "init":
            raise RuntimeError("no\nservice")
        self.begun.append(settings)
        return self

    def define_metric(self, name: str, **more: str) -> None: ...

    def log(self, row: dict) -> None:
        if self.fail == "log" and row["step"] == 3:
            raise OSError("disk full")
        self.rows.append(row)

    def finish(self, exit_code: int) -> None:
        self.ended.append(exit_code)

    dir = "/nowhere/run/files"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    client, module = Client(), types.ModuleType("wandb")
    module.init, module.Settings = client.init, lambda **settings: settings  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    return client


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    store = Store(tmp_path)
    store.create(LADDER)
    return store.run("d8")


def mirror(record: RunRecord, tmp_path: Path, mode: tracking.Mode = "offline") -> RunMirror:
    (tmp_path / "wandb").mkdir(exist_ok=True)
    return RunMirror(record, mode, ladder="tiny", identity="abc", folder=tmp_path)


def steps(client: Client) -> list[int]:
    return [row["step"] for row in client.rows]


def test_the_newest_row_waits_for_its_parts(client: Client, record: RunRecord, tmp_path: Path) -> None:
    attempt, mirrored = trained(record, 0, 3), mirror(record, tmp_path)
    mirrored.catch_up()
    assert steps(client) == [1, 2]
    attempt.row({"step": 3, "tokens": 96, "eval_loss": 2.0})
    attempt.flush()
    mirrored.catch_up(to_the_end=True)
    assert steps(client) == [1, 2, 3] and client.rows[-1]["eval_loss"] == 2.0


def test_steps_that_are_trained_again_are_not_sent_again(
    client: Client, record: RunRecord, tmp_path: Path
) -> None:
    mirrored = mirror(record, tmp_path)
    trained(record, 0, 6)
    mirrored.catch_up()
    trained(record, 3, 9)
    mirrored.catch_up()
    mirrored.catch_up()
    assert steps(client) == [1, 2, 3, 4, 5, 6, 7, 8] and len(client.begun) == 1


def test_a_row_that_could_not_be_sent_is_sent_at_the_next_look(
    client: Client, record: RunRecord, tmp_path: Path
) -> None:
    trained(record, 0, 6)
    mirrored, client.fail = mirror(record, tmp_path), "log"
    with pytest.raises(OSError, match="disk full"):
        mirrored.catch_up()
    client.fail = ""
    mirrored.catch_up()
    assert steps(client) == [1, 2, 3, 4, 5]


def test_online_sends_what_the_service_lacks(
    client: Client, record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(tracking, "steps_on_server", lambda id: asked.append(id) or {1, 2, 4})
    trained(record, 0, 6)
    mirrored = mirror(record, tmp_path, "online")
    mirrored.catch_up(to_the_end=True)
    assert steps(client) == [3, 5, 6] and mirrored.sent == 3
    assert client.begun[0]["id"] == asked[0] == mirrored.id and client.begun[0]["resume"] == "allow"


def test_a_service_that_is_not_there_is_told_from_anything_else(
    client: Client, record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "steps_on_server", lambda id: set())
    trained(record, 0, 6)
    mirrored, client.fail = mirror(record, tmp_path, "online"), "init"
    with pytest.raises(Unreachable, match=r"^W&B does not take the run: no service$"):
        mirrored.catch_up()
    assert not mirrored.is_open
    with pytest.raises(RuntimeError, match="no\nservice"):
        mirror(record, tmp_path, "offline").catch_up()


def test_offline_files_are_written_anew_when_a_run_goes_on_and_left_alone_when_not(
    client: Client, record: RunRecord, tmp_path: Path
) -> None:
    def mirror_once() -> None:
        mirrored = mirror(record, tmp_path)
        mirrored.catch_up()
        mirrored.catch_up(to_the_end=True)
        mirrored.close()

    trained(record, 0, 4)
    mirror_once()
    old = tmp_path / "wandb" / f"offline-run-1-{run_id('abc', record)}"
    old.mkdir()
    mirror_once()
    assert steps(client) == [1, 2, 3, 4] and old.exists()
    trained(record, 4, 6)
    mirror_once()
    assert steps(client) == [1, 2, 3, 4, 1, 2, 3, 4, 5, 6] and not old.exists()


@pytest.mark.parametrize(("state", "code"), [("finished", 0), ("stopped", 0), ("failed", 1)])
def test_the_run_ends_there_as_it_ended_here(
    client: Client, record: RunRecord, tmp_path: Path, state: str, code: int
) -> None:
    attempt, mirrored = trained(record, 0, 100), mirror(record, tmp_path)
    mirrored.catch_up()
    assert not mirrored.has_ended
    attempt.finish(state)
    assert mirrored.has_ended == (state == "finished")
    mirrored.close()
    mirrored.close()
    assert client.ended == [code]


def test_a_run_keeps_its_id_unless_its_spec_or_its_store_is_another(
    record: RunRecord, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    ids = [run_id("abc", record), run_id("abc", store.run("d8")), run_id("abd", record)]
    ids.append(run_id("abc", store.run("d8-r1")))
    assert ids[0] == ids[1] and len(set(ids)) == 3 and ids[0].startswith("d8-")
    assert new_identity("/a") == new_identity("/a") != new_identity("/b")


@pytest.mark.parametrize(
    ("said", "mode"), [("", "offline"), ("offline", "offline"), ("disabled", "off"), ("online", "online")]
)
def test_the_mode_is_offline_unless_the_environment_says_another(
    said: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", said)
    assert default_mode() == mode
