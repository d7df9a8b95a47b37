"""One contract for everything that places runs: in this process, and on a Ray cluster."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ladder import Ladder, Store, corpus
from ladder.cluster.failures import explain
from ladder.cluster.local import InProcess
from ladder.cluster.training import Backend
from ladder.cluster.work import Ended, Job
from ladder.store import notes

LOOKS = 1200  # of a tenth of a second, before a test that waits is called hung


@pytest.fixture(scope="module", params=["in process", pytest.param("ray", marks=pytest.mark.slow)])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    if request.param == "in process":
        yield InProcess()
        return
    from ladder.cluster.gang import RayCluster

    cluster = RayCluster()
    yield cluster
    cluster.close()


@pytest.fixture
def short(micro: Ladder, tmp_path: Path) -> tuple[Job, Store]:
    return declared(micro, tmp_path / "short", steps=20)


@pytest.fixture
def endless(micro: Ladder, tmp_path: Path) -> tuple[Job, Store]:
    return declared(micro, tmp_path / "endless", steps=10**6)


def declared(ladder: Ladder, folder: Path, steps: int) -> tuple[Job, Store]:
    """A job for the first rung, cut to `steps`, and the store of its ladder."""
    rung = ladder.rungs[0].replace(run=ladder.rungs[0].run.replace(steps=steps))
    store = Store(folder)
    store.create(ladder.replace(rungs=(rung, *ladder.rungs[1:])))
    text = corpus.build(rung.run.data, 257, say=lambda _: None)
    job = Job(
        run=rung.name,
        spec=rung.run.to_json(),
        store=store.url,
        corpus=str(text.folder),
        cpus=1,
        devices=1,
        provenance={"corpus_sha256": text.sha256},
    )
    return job, store


def until(found: Callable[[], object]) -> object:
    for _ in range(LOOKS):
        if value := found():
            return value
        time.sleep(0.1)
    raise AssertionError("it never came")


def end(backend: Backend) -> Ended:
    return until(lambda: backend.poll(0.5))[0]


def step(backend: Backend, job: Job) -> int:
    return backend.peek().get(job.run, {}).get("step", 0)


def test_with_nothing_to_do_it_says_nothing(backend: Backend) -> None:
    assert backend.poll(0.01) == [] and backend.peek() == {}
    backend.stop()


def test_a_run_trains_to_its_end_and_is_reported_once(backend: Backend, short: tuple[Job, Store]) -> None:
    job, store = short
    backend.start(job)
    assert end(backend) == Ended(job.run, "finished")
    assert backend.poll(0.01) == [] and backend.peek() == {}
    status = store.run(job.run).status()
    assert status["state"] == "finished" and status["step"] == status["steps"]


def test_a_run_writes_checkpoints_as_often_as_its_resources_say(
    backend: Backend, short: tuple[Job, Store]
) -> None:
    job, store = short
    backend.start(replace(job, checkpoint_s=1e-3))
    assert end(backend) == Ended(job.run, "finished")
    kept = sorted(int(path.name) for path in Path(store.run(job.run).checkpoints).iterdir())
    assert len(kept) == 2 and kept[0] < kept[1] == 20  # by the minute there would be the last one alone


def test_a_failure_arrives_with_its_kind(backend: Backend, short: tuple[Job, Store]) -> None:
    job, store = short
    backend.start(replace(job, provenance={"corpus_sha256": "0" * 64}))
    ended = end(backend)
    assert ended.state == "failed" and not ended.deaths
    assert explain(ended.deaths, ended.raised, None, None).kind == "user error"
    assert store.run(job.run).status()["reason"] == ended.reason
    assert "declared on 000000000000" in ended.reason and store.run(job.run).rows() == []


def test_who_is_asked_to_stop_leaves_a_checkpoint(backend: Backend, endless: tuple[Job, Store]) -> None:
    job, store = endless
    backend.start(job)
    until(lambda: step(backend, job))
    backend.stop()
    assert end(backend) == Ended(job.run, "stopped", "asked to stop")
    status = store.run(job.run).status()
    assert status["state"] == "stopped"
    assert (Path(store.run(job.run).checkpoints) / str(status["step"])).is_dir()


def test_a_request_in_the_store_stops_the_attempt_that_it_names(
    backend: Backend, endless: tuple[Job, Store]
) -> None:
    job, store = endless
    notes.ask_to_stop(store.files, job.run, 2)
    backend.start(job)
    until(lambda: step(backend, job))
    notes.ask_to_stop(store.files, job.run, 1)
    assert end(backend).state == "stopped"
    assert store.run(job.run).attempts() == [1]


def test_who_is_killed_is_not_heard_of_again_and_its_successor_wins(
    backend: Backend, endless: tuple[Job, Store]
) -> None:
    job, store = endless
    backend.start(job)
    until(lambda: step(backend, job))
    backend.kill(job.run)
    backend.kill(job.run)  # twice does no harm
    assert backend.peek() == {}
    backend.start(job)
    until(lambda: step(backend, job))
    backend.stop()
    assert end(backend).state == "stopped" and backend.poll(0.01) == []
    record = store.run(job.run)
    assert record.status()["attempt"] == 2
    assert [row["step"] for row in record.rows()] == list(range(1, record.status()["step"] + 1))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["ray"], indirect=True)
def test_a_killed_worker_is_a_death_and_the_cluster_goes_on(
    backend: Backend, endless: tuple[Job, Store]
) -> None:
    job, store = endless
    backend.start(job)
    until(lambda: step(backend, job))
    os.kill(worker(store, job), signal.SIGKILL)
    ended = end(backend)
    assert ended.state == "failed" and not ended.raised
    assert explain(ended.deaths, ended.raised, 10, 0).kind == "infrastructure"
    assert "its worker died: " in ended.reason and "\n" not in ended.reason
    backend.start(job)
    until(lambda: step(backend, job))
    backend.stop()
    assert end(backend).state == "stopped"


def worker(store: Store, job: Job) -> int:
    return json.loads(store.read(f"runs/{job.run}/attempts/0001/attempt.json"))["process"]["pid"]
