"""What one run does where it is placed: open its record, train, be watched, close its record.

The same class runs inside a Ray actor (gang.py) and in a thread of this process (local.py). A job is
plain JSON values: a worker needs `ladder` installed, never the experiment file.
"""

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder.spec import RunSpec
from ladder.store import Attempt, RunRecord, Store


@dataclass(frozen=True)
class Job:
    """One launch of one run, watched against the frozen forecast at the path `forecast`, if there is one."""

    run: str
    spec: str  # RunSpec as JSON
    store: str
    corpus: str  # folder of token shards
    cpus: int
    devices: int
    provenance: dict[str, Any]
    forecast: str | None = None


@dataclass(frozen=True)
class Ended:
    """How a launch ended: finished, stopped (asked to leave, or stopped by the monitor) or failed."""

    run: str
    state: str
    reason: str = ""


class Work:
    def __init__(self, job: Job):
        self.job = job
        self._leave = threading.Event()
        self._last: dict[str, Any] = {}

    def run(self) -> Ended:
        """Train to the end, or to the first reason to stop; a failure is recorded and returned."""
        job = self.job
        record = Store(job.store).run(job.run)
        try:
            spec = RunSpec.from_json(job.spec)
            with record.begin(spec, job.provenance) as attempt:
                return self._train(spec, record, attempt)
        except Exception as error:
            return Ended(job.run, "failed", _reason(error))

    def _train(self, spec: RunSpec, record: RunRecord, attempt: Attempt) -> Ended:
        # jax is imported here, by the process that trains, and not by whoever holds a Job
        from ladder import corpus
        from ladder.train.loop import train

        try:
            shards = corpus.open_corpus(Path(self.job.corpus))
            watch = self._watch(record, attempt)
            outcome = train(spec, shards, attempt, watch=watch, should_stop=self._leave.is_set)
        except Exception as error:
            attempt.finish("failed", _reason(error))
            return Ended(self.job.run, "failed", _reason(error))
        attempt.finish(outcome.state, outcome.reason)
        return Ended(self.job.run, outcome.state, outcome.reason)

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


def _reason(error: BaseException) -> str:
    """One line for the run table: the error, and the place in our code that raised it."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename]
    where = f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{type(error).__name__}: {text:.500}{where}"
