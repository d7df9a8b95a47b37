"""The queue of one driver: starts what fits, watches that it moves, tries again what failed by accident.

It keeps nothing that matters in memory: what a run has reached is in its record, and verdicts on failures
are written beside it, so that a driver can end anywhere and another one go on.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from ladder.cluster.failures import BUDGETS, Budget, Death, Failure, Kind, Raised, explain, judge
from ladder.cluster.signals import held_back
from ladder.cluster.texts import Text, key, text_of
from ladder.cluster.work import LOOK_S, BackendLost, Ended, Job, seen_by
from ladder.corpus.remote import fetch
from ladder.planning import not_here
from ladder.spec import Resources, RunSpec
from ladder.store import RunRecord, Store, StoreError, notes, provenance
from ladder.store.process import this_process
from ladder.train.data import Batches
from ladder.values import SpecError

PATIENCE_S = 0.5  # how long one look at the running launches lasts
STALL_S = 600.0  # without a completed step; a compilation counts
SLOW = 3.0  # a step may also take this many times the longest wait between two looks that saw one
LEAVE_S = 120.0  # for a checkpoint, when everybody is asked to leave


class RunFailed(RuntimeError):
    """At least one run ended without finishing; the text names each with its reason."""

    exit_code = 1


class RunStopped(RunFailed):
    """The monitor stopped what did not finish."""

    exit_code = 3


class GateStopped(RunFailed):
    """A rung landed outside the prediction that was frozen before it started. `record`, for the last line of
    JSON: stopped_by_gate, with the rung, its loss, and the band."""

    def __init__(self, text: str, record: dict):
        super().__init__(text)
        self.record = record


class Backend(Protocol):
    """Where launches run.

    `start` raises BackendLost when nothing can be started any more. `poll` waits up to timeout_s for launches
    to end, and does wait when there are none. `peek` shows the newest row values of the running ones. `stop`
    asks all of them to checkpoint and leave; `kill` ends one without asking, and `poll` does not report it
    any more.
    """

    cpus: int

    def start(self, job: Job) -> None: ...
    def poll(self, timeout_s: float) -> list[Ended]: ...
    def peek(self) -> dict[str, dict]: ...
    def kill(self, run: str) -> None: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...


@dataclass
class Launch:
    """A run of the ladder and what is known of it now."""

    run: str
    spec: RunSpec
    resources: Resources
    state: str = "queued"
    reason: str = ""
    seen: dict[str, Any] = field(default_factory=dict)  # newest row values: step, train_ce, tokens_per_s
    by_monitor: bool = False  # stopped by its word
    attempt: int = 0  # the newest one before this start
    due: float = 0.0  # not to be started before; monotonic seconds, as all times here
    moved: float = 0.0  # when its step was last seen to change
    slowest_s: float = 0.0  # the longest wait for such a change

    @property
    def cpus(self) -> int:
        """Of all its hosts."""
        return self.resources.cpus * self.resources.hosts

    def started(self) -> None:
        self.state, self.reason, self.seen = "running", "", {}
        self.moved = time.monotonic()

    def saw(self, seen: dict[str, Any]) -> None:
        if seen.get("step") != self.seen.get("step"):
            self.slowest_s = max(self.slowest_s, time.monotonic() - self.moved)
            self.moved = time.monotonic()
        self.seen = seen

    def stalled_s(self, limit_s: float) -> float:
        """Seconds since the last step when they are too many, else 0."""
        since = time.monotonic() - self.moved
        return since if since > max(limit_s, SLOW * self.slowest_s) else 0.0


class Training:
    """Brings launches to their end on one backend, which is made when the first one has to train."""

    def __init__(
        self,
        store: Store,
        backend: Callable[[], Backend],
        say: Callable[[str], None],
        show: Callable[[list[Launch]], None],
        budgets: Mapping[Kind, Budget] = BUDGETS,
        stall_s: float = STALL_S,
    ):
        self.store, self.say, self.show = store, say, show
        self.budgets, self.stall_s = budgets, stall_s
        self._make_backend = backend
        self._provenance = provenance()
        self._texts: dict[str, Text] = {}
        self._history: dict[str, list[Failure]] = {}
        self._looked = 0.0

    def finish(self, launches: list[Launch], forecast: str | None = None) -> None:
        """Bring every launch to `finished`, skipping those that already are with this fingerprint.

        Raises RunFailed when one is given up or stopped (RunStopped: by the monitor's word); the others are
        brought to their end first. StoreError for a finished run whose rows are not whole.
        """
        for launch in launches:
            record = self._record(launch)
            status = record.status()
            if status["state"] == "finished":
                if (whole := record.whole()) != launch.spec.steps:
                    raise StoreError(
                        f"{launch.run} finished, but its rows are whole only to step {whole} of "
                        f"{launch.spec.steps}: restore {record.folder} from a copy, or delete it to train "
                        "the run again"
                    )
                launch.state = "finished"
                launch.seen = {"step": launch.spec.steps}
        waiting = [launch for launch in launches if launch.state != "finished"]
        if not waiting:
            self.say(f"{', '.join(launch.run for launch in launches)}: finished before, skipped")
            return
        if reasons := list(filter(None, (not_here(each.run, each.resources) for each in waiting))):
            raise SpecError("; ".join(reasons))
        if not self._has_backend:
            self.say("starting the cluster; a run first compiles for some seconds")
        for launch in waiting:
            if launch.cpus > self._backend.cpus:
                raise RunFailed(
                    f"{launch.run} asks for {launch.cpus} CPUs, the cluster has {self._backend.cpus}: "
                    "lower its Resources(cpus=...) or use a larger machine"
                )
        for launch in waiting:
            # before the first start: what is wrong with the text is wrong for all
            text = self.text(launch.spec)
            for warning in Batches(fetch(text.folder, text.sha256, self.say), launch.spec).warnings:
                self.say(f"{launch.run}: {warning}")
            # what somebody asked of an earlier driver is not meant for this one
            notes.withdraw(self.store.files, launch.run, self._newest(launch) + 1)
            self._history[launch.run] = _since_given_up(notes.failures(self.store.files, launch.run))
        self._drain(waiting, launches, forecast)
        failed = [launch for launch in launches if launch.state != "finished"]
        if failed:
            stopped = all(launch.by_monitor for launch in failed)
            told = "; ".join(f"{launch.run} {launch.state}: {launch.reason}" for launch in failed)
            asked = all(launch.state == "stopped" and not launch.by_monitor for launch in failed)
            told += "; the same command goes on from here" if asked else ""
            raise (RunStopped if stopped else RunFailed)(told)

    def text(self, spec: RunSpec) -> Text:
        """The token shards of a run, found or built once for each different text and vocabulary."""
        if key(spec) not in self._texts:
            self._texts[key(spec)] = text_of(self.store, spec, self.say)
        return self._texts[key(spec)]

    def close(self) -> None:
        if self._has_backend:
            self._backend.close()

    @property
    def _has_backend(self) -> bool:
        return "_backend" in vars(self)

    @cached_property
    def _backend(self) -> Backend:
        try:
            return self._make_backend()
        except SpecError:
            raise
        except Exception as error:
            first = next(iter(str(error).strip().splitlines()), "")
            raise RunFailed(f"the cluster did not start: {type(error).__name__}: {first}") from error

    def _drain(self, queue: list[Launch], launches: list[Launch], forecast: str | None) -> None:
        running: dict[str, Launch] = {}
        with held_back() as asked_to_leave:
            while (queue or running) and not asked_to_leave():
                try:
                    self._start(queue, running, forecast)
                except BackendLost as error:
                    self._replace(str(error), queue, running)
                self._look(queue, running)
                self.show(launches)
                self._look_for_request(running)
            if running:
                self._leave(running)

    def _look(self, queue: list[Launch], running: dict[str, Launch]) -> None:
        """Which launches have ended, and which do not move; what is tried again goes to the queue's head."""
        backend = self._backend
        for ended in backend.poll(PATIENCE_S):
            launch = running.pop(ended.run)
            launch.state, launch.reason, launch.by_monitor = ended.state, ended.reason, ended.by_monitor
            if ended.state == "failed" and self._try_again(launch, ended):
                queue.insert(0, launch)
        for run, seen in backend.peek().items():
            running[run].saw(seen)
        for launch in list(running.values()):
            if since := launch.stalled_s(self.stall_s):
                backend.kill(launch.run)
                del running[launch.run]
                death = Death(0, f"no step for {since:.0f} s, killed")
                if self._try_again(launch, Ended(launch.run, "failed", death.text, deaths=(death,))):
                    queue.insert(0, launch)

    def _start(self, queue: list[Launch], running: dict[str, Launch], forecast: str | None) -> None:
        """Start what is due and fits, in the order of the queue."""
        free = self._backend.cpus - sum(launch.cpus for launch in running.values())
        for launch in list(queue):
            if launch.cpus > free or launch.due > time.monotonic():
                continue
            queue.remove(launch)
            if self._record(launch).status()["state"] == "finished":  # a leftover brought it to its end
                launch.state, launch.reason = "finished", ""
                continue
            launch.attempt = self._newest(launch)
            if notes.asked_to_stop(self.store.files, launch.run, launch.attempt + 1):
                launch.state, launch.reason = "stopped", "asked to stop before it was started"
                continue
            try:
                self._backend.start(self._job(launch, forecast))
            except BackendLost:
                running[launch.run] = launch  # lost with the others
                raise
            except Exception as error:
                reason = f"could not be placed: {type(error).__name__}: {error}"
                if self._try_again(launch, Ended(launch.run, "failed", reason, raised=(seen_by(error),))):
                    queue.append(launch)
                continue
            free -= launch.cpus
            running[launch.run] = launch
            launch.started()

    def _replace(self, why: str, queue: list[Launch], running: dict[str, Launch]) -> None:
        """Another backend in place of one that is lost, and with it all that ran there."""
        self.say(f"the cluster is lost ({why}): starting another")
        with contextlib.suppress(Exception):
            self._backend.close()
        del self._backend
        for launch in running.values():
            death = Death(0, f"the cluster was lost: {why}")
            if self._try_again(launch, Ended(launch.run, "failed", death.text, deaths=(death,))):
                queue.append(launch)
        running.clear()

    def _job(self, launch: Launch, forecast: str | None) -> Job:
        text = self.text(launch.spec)
        return Job(
            run=launch.run,
            spec=launch.spec.to_json(),
            store=self.store.url,
            corpus=text.folder,
            cpus=launch.resources.cpus,
            hosts=launch.resources.hosts,
            checkpoint_s=launch.resources.checkpoint_s,
            devices=launch.spec.parallel.devices,
            provenance=self._provenance | {"corpus_sha256": text.sha256},
            forecast=forecast,
        )

    def _try_again(self, launch: Launch, ended: Ended) -> bool:
        """Judge a failure, keep the verdict in the store, and set when the launch is due again."""
        attempt = self._newest(launch)
        checkpoint, step = None, None
        if attempt > launch.attempt:
            checkpoint, step = self._record(launch).reached(attempt)
            step = max((s for s in (step, launch.seen.get("step")) if s is not None), default=None)
        raised = ended.raised
        if not (raised or ended.deaths):
            raised = (Raised(0, 0.0, (), ended.reason),)
        failure = explain(ended.deaths, raised, step, checkpoint)
        history = self._history[launch.run]
        verdict = judge(failure, history, self.budgets)
        history.append(verdict.failure)
        notes.keep_failure(
            self.store.files,
            launch.run,
            {"attempt": attempt, "retry": verdict.retry, "wait_s": verdict.wait_s, "reason": verdict.reason}
            | vars(verdict.failure),
        )
        launch.state, launch.reason = ("queued" if verdict.retry else "failed"), verdict.reason
        launch.due = time.monotonic() + verdict.wait_s
        self.say(f"{launch.run}: {verdict.reason}")
        return verdict.retry

    def _look_for_request(self, running: dict[str, Launch]) -> None:
        """Leave when somebody asks the driver to, through the store."""
        if time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        if notes.driver_asked_to_leave(self.store.files, this_process()):
            self._leave(running)
            notes.forget_driver(self.store.files, this_process())
            raise RunFailed("stopped on request; the same command goes on from here")

    def _leave(self, running: dict[str, Launch]) -> None:
        """Ask what runs to checkpoint, and wait for it; what does not answer is killed."""
        self.say("stopping: every run writes a checkpoint first; one that compiles, after that")
        backend = self._backend
        backend.stop()
        until = time.monotonic() + LEAVE_S
        while running and time.monotonic() < until:
            for ended in backend.poll(PATIENCE_S):
                launch = running.pop(ended.run)
                launch.state, launch.reason = ended.state, ended.reason
        for run in running:
            self.say(f"{run} did not leave within {LEAVE_S:.0f} s: killed, its last checkpoint stands")
            backend.kill(run)

    def _record(self, launch: Launch) -> RunRecord:
        return self.store.run(launch.run)

    def _newest(self, launch: Launch) -> int:
        return max(self._record(launch).attempts(), default=0)


def _since_given_up(verdicts: list[dict]) -> list[Failure]:
    """Failures that still count: a person who starts a run that was given up starts afresh."""
    given_up = [at for at, verdict in enumerate(verdicts) if not verdict["retry"]]
    kept = verdicts[given_up[-1] + 1 :] if given_up else verdicts
    return [Failure(**{name: verdict[name] for name in Failure.__dataclass_fields__}) for verdict in kept]
