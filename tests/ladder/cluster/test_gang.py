"""A run on two hosts: the numbers of one, and one member's end is the gang's, not the run's."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ladder import Ladder, ParallelSpec, Resources, Store
from ladder.cluster import gang, training
from ladder.cluster.distributed import Place, join
from ladder.cluster.failures import Budget, Death, explain
from ladder.cluster.gang import RayCluster
from ladder.cluster.local import InProcess
from ladder.cluster.training import Backend, Launch, RunFailed, Training
from ladder.cluster.work import Ended, seen_by
from ladder.store import RunRecord

STEPS = 300
AT_ONCE = {"infrastructure": Budget(tries=3, wait_s=0.0, longest_s=0.0)}
FINISHED = Ended("r", "finished")


def members(*met: Ended | Death, pending: int = 0) -> Ended | None:
    """How a gang ends whose ranks met this, in this order, while the last ones have not answered."""
    one = gang._Gang("r", None, [], [], {object(): len(met) + k for k in range(pending)})
    for rank, word in enumerate(met):
        one.heard(rank, word)
    return one.ended()


def failed(rank: int, error: Exception) -> Ended:
    return Ended("r", "failed", str(error), raised=(seen_by(error, rank),))


def test_the_word_of_the_first_rank_ends_a_run_and_that_of_another_does_not() -> None:
    assert members(FINISHED, pending=1) == FINISHED
    one = gang._Gang("r", None, [], [], {object(): 0})
    one.heard(1, FINISHED)
    assert one.ended() is None


def test_after_a_failure_the_others_are_heard_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    assert members(failed(0, ValueError("x")), pending=1) is None
    monkeypatch.setattr(gang, "LAST_WORDS_S", 0.0)
    late = members(failed(0, ValueError("x")), pending=1)
    assert late and late.state == "failed"


def test_a_gang_that_never_answers_has_failed_by_accident(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang, "START_S", -1.0)
    monkeypatch.setattr(gang, "LAST_WORDS_S", 0.0)
    one = members(pending=1)
    assert one and one.state == "failed" and "did not answer within" in one.reason
    assert explain(one.deaths, one.raised, None, None).kind == "infrastructure"


def test_what_every_member_met_is_reported() -> None:
    symptom = RuntimeError("Gloo AllReduce failed: Connection closed by peer")
    one = members(failed(0, symptom), failed(1, ValueError("bad row")))
    assert one and [raised.rank for raised in one.raised] == [0, 1]
    assert explain(one.deaths, one.raised, 3, 0).kind == "user error"
    died = members(failed(0, symptom), Death(1, "the worker of rank 1 died"))
    assert died and died.reason == "the worker of rank 1 died"
    assert explain(died.deaths, died.raised, 3, 0).kind == "infrastructure"


@pytest.mark.parametrize("occupant", ["every address", "loopback alone", "one that shares its port"])
def test_a_port_that_is_taken_is_said_and_is_infrastructure(occupant: str) -> None:
    with socket.socket(socket.AF_INET6 if occupant == "every address" else socket.AF_INET) as taken:
        if occupant == "one that shares its port":
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1" if occupant == "loopback alone" else "", 0))
        taken.listen()
        with pytest.raises(ConnectionError, match=r"rank 0 of 2 at .* taken meanwhile .*in use") as error:
            join(Place(0, 2, f"127.0.0.1:{taken.getsockname()[1]}"), 2)
    assert explain((), (seen_by(error.value),), None, None).kind == "infrastructure"


NO_NETWORK = "from ladder.cluster.gang import RayCluster; RayCluster()"


def test_without_a_loopback_network_nothing_hangs() -> None:
    alone = ["unshare", "--map-root-user", "--net", sys.executable, "-c", NO_NETWORK]
    done = subprocess.run(alone, capture_output=True, text=True, timeout=120)
    if "unshare" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert "ConnectionError: 127.0.0.1 does not answer" in done.stderr.splitlines()[-1]


ORPHAN = """
import ctypes, os, subprocess, sys
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans are adopted here, as in a user's session
worker = "import os; from ladder.cluster.gang import end_with; parent = os.getppid(); "
worker += "print(os.getpid(), flush=True); end_with(parent)"  # the parent is known before it is killed
raylet = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {worker!r}])"
parent = subprocess.Popen([sys.executable, "-c", raylet], stdout=subprocess.PIPE)
pid = int(parent.stdout.readline())
parent.kill()
parent.wait()  # the worker is ours from then on
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_worker_ends_with_its_raylet_whoever_adopts_it() -> None:
    done = subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["1"], done.stderr


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    cluster = RayCluster()
    yield cluster
    cluster.close()


class Case:
    """The first rung on four devices: of one process, or of two hosts."""

    def __init__(self, ladder: Ladder, folder: Path, hosts: int):
        rung = ladder.rungs[0]
        # with one expert a token a last bit can turn a choice, on one host too, and the loss jumps by 1e-4
        model = rung.run.model.replace(top_k=2)
        run = rung.run.replace(model=model, steps=STEPS, parallel=ParallelSpec(data=4))
        self.rung = rung.replace(run=run, resources=Resources(hosts=hosts))
        self.store = Store(folder)
        self.store.create(ladder.replace(rungs=(self.rung, *ladder.rungs[1:])))

    @property
    def record(self) -> RunRecord:
        return self.store.run(self.rung.name)

    def train(self, backend: Backend, show=lambda launch: None) -> list[str]:
        said: list[str] = []
        driver = Training(
            self.store, lambda: backend, said.append, lambda launches: show(launches[0]), AT_ONCE
        )
        driver.finish([Launch(self.rung.name, self.rung.run, self.rung.resources)])
        return said

    def numbers(self) -> list[dict]:
        """Rows without what differs from attempt to attempt."""
        return [
            {key: row[key] for key in row if key not in ("tokens_per_s", "attempt")}
            for row in self.record.rows()
        ]


def worker(cluster: RayCluster, run: str, rank: int) -> int:
    return cluster._ray.get(cluster._gangs[run].actors[rank].__ray_call__.remote(lambda _: os.getpid()))


@pytest.mark.slow
@pytest.mark.timeout(900)
# of jax, when an earlier test used it in this process: what Ray forks execs at once
@pytest.mark.filterwarnings("ignore:os.fork\\(\\) was called:RuntimeWarning")
def test_two_hosts_train_as_one_and_a_killed_member_costs_nothing(
    cluster: RayCluster, micro: Ladder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "PATIENCE_S", 0.1)
    one, whole = Case(micro, tmp_path / "one", hosts=1), Case(micro, tmp_path / "whole", hosts=2)
    one.train(InProcess())
    whole.train(cluster)
    for name in ("train_ce", "train_loss", "grad_norm"):
        ours, theirs = ([row[name] for row in case.numbers()[:20]] for case in (whole, one))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, err_msg=name)

    case = Case(micro, tmp_path / "killed", hosts=2)

    def stop(launch: Launch) -> None:
        if launch.seen.get("step", 0) >= 20:
            cluster.stop()

    with pytest.raises(RunFailed, match="stopped: asked to stop"):
        case.train(cluster, stop)
    checkpoint = case.record.status()["step"]
    assert 20 <= checkpoint < STEPS

    victims = {1: 1, 2: 0}  # the newest attempt before a start: the rank to kill in it

    def kill(launch: Launch) -> None:
        if launch.attempt in victims and launch.seen.get("step", 0) > checkpoint:
            os.kill(worker(cluster, launch.run, victims.pop(launch.attempt)), signal.SIGKILL)

    said = case.train(cluster, kill)
    failures = [line for line in said if line.startswith("w8: ")]
    assert not victims and len(failures) == 2, said
    for rank, line in zip((1, 0), failures, strict=True):
        assert f"the worker of rank {rank} died: " in line and "infrastructure" in line
    assert case.record.attempts() == [1, 2, 3, 4]
    assert [case.record.reached(attempt)[0] for attempt in (2, 3, 4)] == [checkpoint] * 3
    assert case.numbers() == whole.numbers()
