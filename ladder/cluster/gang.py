"""The Ray backend: a gang of actors for each run, on a cluster that it starts itself.

A gang has one actor for each host of the run; several are placed as one group, all or none, and joined by
jax.distributed. Ray's own restarts are off: what a
failure means is the driver's business. Facts behind the settings (Ray 2.60): authentication must be chosen
before ray is imported; `num_cpus` binds nothing, so a run is held to its cores by affinity and thread flags,
which need a fresh worker process of their own.
"""

import contextlib
import logging
import os
import re
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from ladder.cluster.authentication import choose_authentication
from ladder.cluster.distributed import Place, check_loopback, free_port
from ladder.cluster.failures import Death, Raised
from ladder.cluster.signals import held_back
from ladder.cluster.work import BackendLost, Ended, Job, Work

START_S = 120.0  # a gang that does not answer by then has failed, instead of waiting for ever
LAST_WORDS_S = 5.0  # for the members of a failed gang to say what they met; most just hang, and are killed


@dataclass
class _Gang:
    """The actors of one run, and what those that have ended met."""

    run: str
    group: Any  # None of a gang of one
    cores: list[int]
    actors: list[Any] = field(default_factory=list)  # by rank
    pending: dict[Any, int] = field(default_factory=dict)  # reference of _Host.run -> rank
    word: Ended | None = None  # of rank 0, when it did not fail: the record is closed, the run has ended
    deaths: list[Death] = field(default_factory=list)
    raised: list[Raised] = field(default_factory=list)
    until: float = float("inf")  # when a failed gang is not waited for any more; monotonic seconds
    asked: Any = None  # reference of the last question where it stands
    answer_by: float = field(default_factory=lambda: time.monotonic() + START_S)  # for the first time

    def heard(self, rank: int, met: Ended | Death) -> None:
        if isinstance(met, Death):
            self.deaths.append(met)
        elif met.state == "failed":
            self.raised += met.raised
        elif rank == 0:
            self.word = met
        if self.deaths or self.raised:
            self.until = min(self.until, time.monotonic() + LAST_WORDS_S)

    def ended(self) -> Ended | None:
        """How the run ended; None while it is at work, or failing."""
        if self.word:
            return self.word
        if time.monotonic() > self.answer_by:
            self.answer_by = float("inf")
            self.heard(0, Death(0, f"it did not answer within {START_S:.0f} s of its start"))
        if self.pending and time.monotonic() < self.until:
            return None
        told = [death.text for death in self.deaths] or [
            r.text for r in sorted(self.raised, key=lambda r: r.at)
        ]
        return Ended(self.run, "failed", told[0], tuple(self.deaths), tuple(self.raised))


class RayCluster:
    """A local Ray cluster with the processors that this process may use."""

    def __init__(self) -> None:
        choose_authentication()
        check_loopback()
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray
        import ray.exceptions
        import ray.util.scheduling_strategies

        self._ray = ray
        self._free = sorted(os.sched_getaffinity(0))
        self.cpus = len(self._free)
        # Ctrl-C in the middle of it crashed the interpreter (Ray 2.60), and it takes SIGTERM for itself
        with held_back():
            ray.init(
                "local",  # never one that happens to run here
                num_cpus=self.cpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        self._gangs: dict[str, _Gang] = {}

    def start(self, job: Job) -> None:
        cpus = job.cpus * job.hosts
        if self._alive_cpus() < cpus:
            raise BackendLost("no node of the cluster answers")
        # not waited for: whoever looks after the other runs calls this
        group = self._group(job) if job.hosts > 1 else None
        gang = self._gangs[job.run] = _Gang(job.run, group, self._free[:cpus])
        self._free = self._free[cpus:]
        try:
            for rank in range(job.hosts):
                cores = gang.cores[rank * job.cpus : (rank + 1) * job.cpus]
                gang.actors.append(self._actor(job, group, rank, cores))
            # a reference: the members wait for it, and not this process
            coordinator = gang.actors[0].coordinator.remote() if job.hosts > 1 else None
            gang.pending = {actor.run.remote(coordinator): rank for rank, actor in enumerate(gang.actors)}
        except BaseException:
            self.kill(job.run)
            raise

    def _alive_cpus(self) -> float:
        try:
            return self._ray.cluster_resources().get("CPU", 0)
        except Exception:  # the head is gone, and Ray has no one error for that
            return 0

    def _group(self, job: Job) -> Any:
        nodes = sum(node["Alive"] for node in self._ray.nodes())
        strategy = "STRICT_SPREAD" if nodes > 1 else "PACK"
        return self._ray.util.placement_group([{"CPU": job.cpus}] * job.hosts, strategy=strategy)

    def _actor(self, job: Job, group: Any, rank: int, cores: list[int]) -> Any:
        options: dict[str, Any] = {
            "num_cpus": job.cpus,
            "max_restarts": 0,
            "max_concurrency": 3,  # run, peek, stop
            "runtime_env": {"env_vars": environment(job)},
        }
        if group:
            options["scheduling_strategy"] = (
                self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                    group, placement_group_bundle_index=rank
                )
            )
        return self._ray.remote(_Host).options(**options).remote(asdict(job), rank, cores)

    def poll(self, timeout_s: float) -> list[Ended]:
        pending = {ref: gang for gang in self._gangs.values() for ref in gang.pending}
        if not pending:
            time.sleep(timeout_s)
            return []
        soonest = min(gang.until for gang in self._gangs.values()) - time.monotonic()
        done, _ = self._ray.wait(list(pending), num_returns=1, timeout=max(0.0, min(timeout_s, soonest)))
        for reference in done:
            gang = pending[reference]
            rank = gang.pending.pop(reference)
            gang.heard(rank, self._met(rank, reference, len(gang.actors)))
        ended = [word for gang in self._gangs.values() if (word := gang.ended())]
        for word in ended:
            self.kill(word.run)
        return ended

    def _met(self, rank: int, reference: Any, hosts: int) -> Ended | Death:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            # the method itself catches every exception: what arrives as one is the end of its process
            who = "its worker" if hosts == 1 else f"the worker of rank {rank}"
            return Death(rank, f"{who} died: {_told(error)}", getattr(error, "preempted", False))

    def kill(self, run: str) -> None:
        if gang := self._gangs.pop(run, None):
            for actor in gang.actors:
                self._ray.kill(actor)
            if gang.group:
                self._ray.util.remove_placement_group(gang.group)
            self._free = sorted(self._free + gang.cores)

    def peek(self) -> dict[str, dict]:
        """What the runs have answered since the last look; one that is starting holds nobody up."""
        seen = {}
        for run, gang in self._gangs.items():
            gang.asked = gang.asked or gang.actors[0].peek.remote()
            ready, _ = self._ray.wait([gang.asked], timeout=0)
            if ready:
                with contextlib.suppress(self._ray.exceptions.RayError):  # it has just died
                    seen[run] = self._ray.get(gang.asked)
                    gang.answer_by = float("inf")
                gang.asked = gang.actors[0].peek.remote()
        return seen

    def stop(self) -> None:
        for gang in self._gangs.values():
            gang.actors[0].stop.remote()  # the first decides for all

    def close(self) -> None:
        with held_back():
            self._ray.shutdown()


def _told(error: Exception) -> str:
    """Ray explains a death on several lines: the last that is no key and value, without Ray's guesses."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not re.match(r"\w+: \S+$", line)]
    return " ".join(told[-1:] or lines[:1]).partition(" Some common causes")[0][:500]


def environment(job: Job) -> dict[str, str]:
    """Variables that hold a run to its processors; read by XLA and the BLAS when they are loaded."""
    devices = job.devices // job.hosts
    threads = max(1, job.cpus // devices)
    flags = [f"--xla_force_host_platform_device_count={devices}"]
    if threads == 1:
        flags += ["--xla_cpu_multi_thread_eigen=false", "intra_op_parallelism_threads=1"]
    return {"XLA_FLAGS": " ".join(flags), "OMP_NUM_THREADS": str(threads), "JAX_PLATFORMS": "cpu"}


def end_with(parent: int) -> None:
    """End this process when its parent has ended.

    Ray's workers see that they are orphans when process 1 adopts them. Where another one does (systemd of a
    user's session, the init of some containers) they would live on, and train, and hold their memory.
    """
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


class _Host:
    """One member of a run's gang, inside a Ray actor."""

    def __init__(self, job: dict, rank: int, cores: list[int]):
        os.sched_setaffinity(0, cores)
        threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
        self._job, self._rank = Job(**job), rank
        self._work = Work(self._job)

    def coordinator(self) -> str:
        """Where the members meet: this host, and a port that nobody listens on."""
        import ray.util

        return f"{ray.util.get_node_ip_address()}:{free_port()}"

    def run(self, coordinator: str | None) -> Ended:
        return self._work.run(Place(self._rank, self._job.hosts, coordinator) if coordinator else None)

    def peek(self) -> dict:
        return self._work.peek()

    def stop(self) -> None:
        self._work.stop()
