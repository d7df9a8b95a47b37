"""The Ray backend: a placement group and an actor for each run, on a cluster that it starts itself.

Ray's own restarts are off: what a failure means is the driver's business. Facts behind the settings
(Ray 2.60): authentication must be chosen before ray is imported; `num_cpus` binds nothing, so a run is
held to its cores by affinity and thread flags, which need a fresh worker process of their own.
"""

import logging
import os
import re
import time
from dataclasses import asdict
from typing import Any

from ladder.cluster.failures import Death
from ladder.cluster.work import Ended, Job, Work

START_S = 120  # an actor that is not up by then says so instead of waiting for ever


class RayCluster:
    """A local Ray cluster with the processors that this process may use."""

    def __init__(self) -> None:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray
        import ray.exceptions
        import ray.util.scheduling_strategies

        self._ray = ray
        self._free = sorted(os.sched_getaffinity(0))
        self.cpus = len(self._free)
        ray.init(
            "local",  # never one that happens to run here
            num_cpus=self.cpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        self._actors: dict[str, tuple[Any, Any, list[int]]] = {}  # run -> actor, placement group, cores
        self._pending: dict[Any, str] = {}  # reference of Work.run -> run

    def start(self, job: Job) -> None:
        ray = self._ray
        cores, self._free = self._free[: job.cpus], self._free[job.cpus :]
        group = ray.util.placement_group([{"CPU": job.cpus}], strategy="STRICT_PACK")
        try:
            ray.get(group.ready(), timeout=START_S)
        except BaseException:
            ray.util.remove_placement_group(group)
            self._free = sorted(self._free + cores)
            raise
        actor = (
            ray.remote(_Host)
            .options(
                num_cpus=job.cpus,
                max_restarts=0,
                max_concurrency=3,  # run, peek, stop
                scheduling_strategy=ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group),
                runtime_env={"env_vars": environment(job)},
            )
            .remote(asdict(job), cores)
        )
        self._actors[job.run] = (actor, group, cores)
        self._pending[actor.run.remote()] = job.run

    def poll(self, timeout_s: float) -> list[Ended]:
        ray = self._ray
        if not self._pending:
            time.sleep(timeout_s)
            return []
        done, _ = ray.wait(list(self._pending), num_returns=1, timeout=timeout_s)
        ended = []
        for reference in done:
            run = self._pending.pop(reference)
            try:
                ended.append(ray.get(reference))
            except ray.exceptions.RayError as error:
                # the method itself catches every exception: what arrives as one is the end of its process
                death = Death(0, f"its worker died: {_told(error)}", getattr(error, "preempted", False))
                ended.append(Ended(run, "failed", death.text, deaths=(death,)))
            self._release(run)
        return ended

    def kill(self, run: str) -> None:
        self._pending = {reference: name for reference, name in self._pending.items() if name != run}
        if run in self._actors:
            self._release(run)

    def _release(self, run: str) -> None:
        actor, group, cores = self._actors.pop(run)
        self._ray.kill(actor)
        self._ray.util.remove_placement_group(group)
        self._free = sorted(self._free + cores)

    def peek(self) -> dict[str, dict]:
        asked = {run: actor.peek.remote() for run, (actor, _, _) in self._actors.items()}
        seen = {}
        for run, reference in asked.items():
            # an actor that is still starting, or has just died, has nothing to show: the bar stays as it is
            ready, _ = self._ray.wait([reference], timeout=0.5)
            if ready:
                try:
                    seen[run] = self._ray.get(reference)
                except self._ray.exceptions.RayError:
                    continue
        return seen

    def stop(self) -> None:
        for actor, _, _ in self._actors.values():
            actor.stop.remote()

    def close(self) -> None:
        self._ray.shutdown()


def _told(error: Exception) -> str:
    """Ray explains a death on several lines: the last that is no key and value, without Ray's guesses."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not re.match(r"\w+: \S+$", line)]
    return " ".join(told[-1:] or lines[:1]).partition(" Some common causes")[0][:500]


def environment(job: Job) -> dict[str, str]:
    """Variables that hold a run to its processors; read by XLA and the BLAS when they are loaded."""
    threads = max(1, job.cpus // job.devices)
    flags = [f"--xla_force_host_platform_device_count={job.devices}"]
    if threads == 1:
        flags += ["--xla_cpu_multi_thread_eigen=false", "intra_op_parallelism_threads=1"]
    return {"XLA_FLAGS": " ".join(flags), "OMP_NUM_THREADS": str(threads), "JAX_PLATFORMS": "cpu"}


class _Host:
    """One run's work on one host, inside a Ray actor."""

    def __init__(self, job: dict, cores: list[int]):
        os.sched_setaffinity(0, cores)
        self._work = Work(Job(**job))

    def run(self) -> Ended:
        return self._work.run()

    def peek(self) -> dict:
        return self._work.peek()

    def stop(self) -> None:
        self._work.stop()
