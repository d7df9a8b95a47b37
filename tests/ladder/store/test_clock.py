"""A clock that steps backwards changes time stamps and nothing else."""

import itertools
from datetime import UTC, datetime, timedelta

import pytest

from ladder import Store
from ladder.store import LeaseHeld, notes, process
from ladder.store.tail import Tail
from tests.ladder.examples import LADDER, trained


def history(store):
    """Two attempts, the first tried again, under two drivers; what readers then see, without the times."""
    store.create(LADDER)
    run = store.run("d8")
    with store.lease("first"):
        life = trained(run, 0, 30)
        life.event(30, "spike", "high")
        life.finish("failed", "boom")
        notes.keep_failure(store.files, "d8", {"attempt": 1, "retry": True, "reason": "again"})
    with store.lease("second"):
        with pytest.raises(LeaseHeld), store.lease("third"):
            pass
        queued = run.status()
        notes.ask_to_stop(store.files, "d8", 2)
        life = trained(run, 20, 100, eval_loss=0.25)
        asked = [notes.asked_to_stop(store.files, "d8", attempt) for attempt in (1, 2)]
        driver = store.driver()["owner"]
    running = store.overview()
    life.finish("finished")
    entries = [(e.attempt, e.kind, {**e.content, "time": ""}) for e in Tail(run).new()]
    return queued, asked, driver, running["runs"], run.status(), run.rows(), entries


def test_every_reader_sees_the_same(tmp_path, monkeypatch):
    plain = history(Store(tmp_path / "plain"))

    class Backwards(datetime):
        ticks = itertools.count()

        @classmethod
        def now(cls, zone=None):
            return datetime(2026, 12, 1, tzinfo=UTC) - timedelta(hours=next(cls.ticks))

    monkeypatch.setattr(process, "datetime", Backwards)
    monkeypatch.setattr("time.time", lambda: Backwards.now().timestamp())
    assert history(Store(tmp_path / "backwards")) == plain
    assert next(Backwards.ticks) > 8
