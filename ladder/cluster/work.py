"""What one run does where it is placed: open its record, train, be watched, close its record.

The same class runs inside a Ray actor (gang.py) and in a thread of this process (local.py). A job is
plain JSON values: a worker needs `ladder` installed, never the experiment file. Of a gang every member
trains and takes part in checkpoints; rank 0 alone opens an attempt and writes rows, events and its end.
"""

import contextlib
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ladder.cluster.distributed import Place, join
from ladder.cluster.failures import Death, Raised
from ladder.spec import RunSpec
from ladder.store import Attempt, RunRecord, Store
from ladder.store.attempt import Ending
from ladder.store.notes import asked_to_stop

LOOK_S = 1.0  # between two looks for a request to stop; they happen beside the training, never within it


@dataclass(frozen=True)
class Job:
    """One launch of one run, watched against the frozen forecast at the path `forecast`, if there is one.

    On a cluster `hosts` members share its devices evenly.
    """

    run: str
    spec: str  # RunSpec as JSON
    store: str
    corpus: str  # folder or URL of token shards
    cpus: int  # of each host
    devices: int  # of all hosts
    provenance: dict[str, Any]  # with corpus_sha256: other tokens are refused
    forecast: str | None = None
    hosts: int = 1
    checkpoint_s: float = 60.0


class BackendLost(RuntimeError):
    """What launches run on is gone: none can be started, and those that ran are lost."""


@dataclass(frozen=True)
class Ended:
    """How a launch ended: finished, stopped (asked to leave, or stopped by the monitor) or failed.

    A member of a gang ends in the same words. Of a failed launch, `deaths` and `raised` say what its members
    met; `failures.explain` reads them.
    """

    run: str
    state: Ending
    reason: str = ""
    deaths: tuple[Death, ...] = ()
    raised: tuple[Raised, ...] = ()
    by_monitor: bool = False  # stopped by its word


class _Member:
    """Stands in for the attempt with every rank but the first: the record is not theirs to write."""

    def __init__(self, checkpoints: str):
        self.checkpoints = checkpoints

    def resumed(self, step: int) -> None: ...
    def row(self, row: dict) -> None: ...
    def event(self, step: int, kind: str, detail: str = "", registered: bool = True) -> None: ...
    def flush(self) -> None: ...
    def check_current(self) -> None: ...


class Work:
    def __init__(self, job: Job):
        self.job = job
        self._leave = threading.Event()
        self._last: dict[str, Any] = {}

    def run(self, place: Place | None = None) -> Ended:
        """Train to the end, or to the first reason to stop; a failure is recorded and returned.

        place: of this process in its gang; None when it has all devices to itself.
        """
        job, rank = self.job, place.rank if place else 0
        record = Store(job.store).run(job.run)
        try:
            spec = RunSpec.from_json(job.spec)
            if rank:
                return self._train(spec, _Member(record.checkpoints), place)
            with record.begin(spec, job.provenance) as attempt:
                return self._lead(spec, record, attempt, place)
        except Exception as error:
            return Ended(job.run, "failed", _reason(error), raised=(seen_by(error, rank),))

    def _lead(self, spec: RunSpec, record: RunRecord, attempt: Attempt, place: Place | None) -> Ended:
        try:
            with self._listening(record, attempt.number):
                ended = self._train(spec, attempt, place, self._watch(record, attempt))
        except Exception as error:
            attempt.finish("failed", _reason(error))
            return Ended(self.job.run, "failed", _reason(error), raised=(seen_by(error),))
        attempt.finish(ended.state, ended.reason)
        return ended

    def _train(
        self,
        spec: RunSpec,
        attempt: Attempt | _Member,
        place: Place | None,
        watch: Callable[[dict], Any] | None = None,
    ) -> Ended:
        # jax is imported here, by the process that trains, and not by whoever holds a Job
        from ladder.corpus.remote import fetch
        from ladder.train.loop import train

        shards = fetch(self.job.corpus, self.job.provenance["corpus_sha256"])
        if place:
            join(place, self.job.devices)
        outcome = train(
            spec,
            shards,
            attempt,
            watch=watch,
            should_stop=self._leave.is_set,
            checkpoint_every_s=self.job.checkpoint_s,
        )
        return Ended(self.job.run, outcome.state, outcome.reason, by_monitor=outcome.by_watch)

    @contextlib.contextmanager
    def _listening(self, record: RunRecord, attempt: int) -> Iterator[None]:
        """Leave when somebody asks this attempt to, through the store."""
        done = threading.Event()

        def listen() -> None:
            while not (done.wait(LOOK_S) or self._leave.is_set()):
                with contextlib.suppress(Exception):  # a store that is away for a moment is asked again
                    if asked_to_stop(record.files, record.id, attempt):
                        self._leave.set()

        listener = threading.Thread(target=listen, name=f"{record.id} listener", daemon=True)
        listener.start()
        try:
            yield
        finally:
            done.set()

    def _watch(self, record: RunRecord, attempt: Attempt) -> Callable[[dict], Any]:
        from ladder.train.loop import Action

        def note(row: dict) -> Any:
            self._last |= row
            return Action("continue")

        if not self.job.forecast:
            return note
        judge = watched(self.job.forecast, record, attempt, self._last)
        return lambda row: note(row) and judge(row)

    def peek(self) -> dict[str, Any]:
        """The newest value of every key that a row has carried; of a watched run also the monitor's `state`
        and `reasons`, and `off_forecast`, the last evaluation relative to the forecast's median."""
        return dict(self._last)

    def stop(self) -> None:
        """Ask the run to checkpoint and leave."""
        self._leave.set()


def watched(
    forecast: str, record: RunRecord, attempt: Attempt, shown: dict[str, Any]
) -> Callable[[dict], Any]:
    """Judge each row against a frozen forecast; a change of state becomes an event of the attempt.

    Where the run stands goes into `shown`, for whoever looks.

    Before the first row of a resumed run the monitor sees the rows that the run kept, so that it stands
    where it stood. Rows past the checkpoint are void by then: the loop has said from where it resumes.
    """
    from analysis import Forecast, Monitor
    from analysis.monitor import declared_events
    from ladder.train.loop import Action

    frozen = Forecast.load(forecast)
    monitor = Monitor(frozen)
    for event in declared_events(record.spec):
        monitor.register(event)
    promised = frozen.frame(levels=())
    medians = dict(zip(promised["step"], promised["median"], strict=True))
    state: str | None = None

    def judge(row: dict) -> Any:
        nonlocal state
        if state is None:
            state = "normal"
            for kept in record.rows():
                if kept["step"] < row["step"]:
                    state = monitor.update(kept).state
        verdict = monitor.update(row)
        shown["state"], shown["reasons"] = verdict.state, "; ".join(verdict.reasons)
        if "eval_loss" in row and row["step"] in medians:
            shown["off_forecast"] = row["eval_loss"] / medians[row["step"]] - 1
        if verdict.state != state:
            state = verdict.state
            attempt.event(
                row["step"],
                "verdict",
                "; ".join(verdict.reasons) or "back to normal",
                state=state,
                action=verdict.action,
                evidence=verdict.evidence,
            )
        return Action(verdict.action, f"{verdict.state}: {'; '.join(verdict.reasons)}")

    return judge


def seen_by(error: BaseException, rank: int = 0) -> Raised:
    """An exception as a value. One that the store or the corpus raised because of the system under it
    (a full disk, a lost connection) is of the system's kind."""
    deepest = error.__cause__ if isinstance(error.__cause__, OSError) else error
    types = tuple(kind.__name__ for kind in type(deepest).__mro__)
    return Raised(rank, time.time(), types, _reason(error))


def _reason(error: BaseException) -> str:
    """One line for the run table: the error, and the place in our code that raised it."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename]
    where = f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{type(error).__name__}: {text:.500}{where}"
