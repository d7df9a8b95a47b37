"""A backend that trains nothing: each launch goes as its script says, through real attempts in the store.

Used by the tests of the driver in this process, and by name in a submitted driver's process.
"""

import os
import time
from collections.abc import Callable, Iterator

from ladder.accounting import eval_points
from ladder.cluster.failures import Death
from ladder.cluster.work import Ended, Job, seen_by
from ladder.spec import RunSpec
from ladder.store import Attempt, Store, notes

Script = Callable[[Job, int], Iterator[Ended | int]]  # a step reached, or the end; asked once a poll


class Scripted:
    """`script(job, life)` is run for each start; life counts the starts of a run from 1."""

    cpus = 2

    def __init__(self, script: Script):
        self.script = script
        self.starts: list[str] = []
        self.killed: list[str] = []
        self._running: dict[str, tuple[Attempt, Iterator[Ended | int], Job]] = {}
        self._steps: dict[str, int] = {}
        self._asked = False

    def start(self, job: Job) -> None:
        self.starts.append(job.run)
        attempt = Store(job.store).run(job.run).begin(RunSpec.from_json(job.spec), job.provenance)
        attempt.resumed(0)
        self._running[job.run] = attempt, self.script(job, self.starts.count(job.run)), job

    def poll(self, timeout_s: float) -> list[Ended]:
        time.sleep(min(timeout_s, 0.01))
        ended = []
        for run, (attempt, script, job) in list(self._running.items()):
            asked = self._asked or notes.asked_to_stop(Store(job.store).files, run, attempt.number)
            now = Ended(run, "stopped", "asked to stop") if asked else next(script)
            if isinstance(now, int):
                self._steps[run] = now
                continue
            if not now.deaths:
                attempt.finish(now.state, now.reason)
            ended.append(now)
            del self._running[run]
            self._steps.pop(run, None)
        return ended

    def peek(self) -> dict[str, dict]:
        return {run: {"step": step} for run, step in self._steps.items()}

    def kill(self, run: str) -> None:
        self.killed.append(run)
        self._running.pop(run, None)
        self._steps.pop(run, None)

    def stop(self) -> None:
        self._asked = True

    def close(self) -> None:
        pass


def finishes(job: Job, life: int) -> Iterator[Ended | int]:
    yield Ended(job.run, "finished")


def dies(job: Job, preempted: bool = False) -> Ended:
    death = Death(0, "its worker died", preempted)
    return Ended(job.run, "failed", death.text, deaths=(death,))


def raises(job: Job, error: Exception) -> Ended:
    return Ended(job.run, "failed", str(error), raised=(seen_by(error),))


def endless(job: Job, life: int) -> Iterator[Ended | int]:
    step = 0
    while True:
        step += 1
        yield step


class Lawful(Scripted):
    """For a submitted driver: every run keeps to a law of compute, so that the ladder comes to its end."""

    def __init__(self) -> None:
        super().__init__(self.train)

    def train(self, job: Job, life: int) -> Iterator[Ended | int]:
        attempt, _, _ = self._running[job.run]
        spec = RunSpec.from_json(job.spec)
        flops = {point["step"]: point["flops"] for point in eval_points(spec, job.run)}
        for step in range(1, spec.steps + 1):
            evaluated = {"eval_loss": 1.0 + 900.0 * flops[step] ** -0.3} if step in flops else {}
            attempt.row({"step": step, "tokens": step * spec.batch_tokens} | evaluated)
            if evaluated:
                yield step
        yield Ended(job.run, "finished")


class Endless(Scripted):
    """For a submitted driver: its runs go on until they are asked to stop."""

    def __init__(self) -> None:
        super().__init__(endless)


class Broken(Scripted):
    """For a submitted driver: its first run is a user's error."""

    def __init__(self) -> None:
        super().__init__(self.fail)

    def fail(self, job: Job, life: int) -> Iterator[Ended | int]:
        yield raises(job, ValueError("width must divide"))


class Unreachable:
    def __init__(self) -> None:
        raise ConnectionError("no cluster answers\nat this address")


class Fatal(Scripted):
    """For a submitted driver: the driver's own process is killed while it trains."""

    def __init__(self) -> None:
        super().__init__(self.die)

    def die(self, job: Job, life: int) -> Iterator[Ended | int]:
        yield 1
        os.kill(os.getpid(), 9)


class Alarmed(Lawful):
    """For a submitted driver: the monitor stops its target."""

    def train(self, job: Job, life: int) -> Iterator[Ended | int]:
        if job.forecast:
            yield Ended(job.run, "stopped", "runaway: grad_norm rises", by_monitor=True)
        yield from super().train(job, life)
