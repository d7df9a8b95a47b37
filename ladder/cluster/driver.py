"""Drive a ladder through its steps: corpus, rungs, fit, frozen forecast, watched target, report.

Every step leaves a file in the store and is skipped when its file already answers, so a driver that was
stopped anywhere goes on when it is started again.
"""

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import pandas as pd

from analysis import Forecast, ScalingFit, fit, forecast
from analysis.fitting import refuse_too_little
from analysis.laws import choose
from ladder import corpus
from ladder.accounting import eval_points
from ladder.cluster.work import Ended, Job
from ladder.spec import Ladder, Resources, Rung, RunSpec
from ladder.store import Store, StoreError, provenance
from ladder.train.data import Batches
from ladder.values import SpecError, digest

FORECAST = "forecast.json"
PATIENCE_S = 0.5  # how long one look at the running launches lasts


class RunFailed(RuntimeError):
    """At least one run ended without finishing; the text names each with its reason."""

    exit_code = 1


class RunStopped(RunFailed):
    """The monitor stopped the target."""

    exit_code = 3


class Backend(Protocol):
    """Where launches run. `poll` waits up to timeout_s for launches to end; `peek` shows the running ones."""

    cpus: int

    def start(self, job: Job) -> None: ...
    def poll(self, timeout_s: float) -> list[Ended]: ...
    def peek(self) -> dict[str, dict]: ...
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


@dataclass(frozen=True)
class Result:
    """What a ladder came to: the target's final loss beside the frozen 90 % band, and the monitor's word.

    lo90, hi90 and inside are None where the target is too far beyond the rungs for a band.
    """

    target_loss: float
    median: float
    lo90: float | None
    hi90: float | None
    inside: bool | None
    state: str
    forecast_sha256: str
    report: str
    wall_s: float

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Training:
    """The queue of one driver: starts what fits, smallest rung first, and waits for all of it."""

    def __init__(
        self,
        store: Store,
        backend: Callable[[], Backend],
        say: Callable[[str], None],
        show: Callable[[list[Launch]], None],
    ):
        self.store, self.say, self.show = store, say, show
        self._make_backend = backend
        self._backend: Backend | None = None
        self._provenance = provenance()
        self._corpora: dict[tuple[str, int], corpus.Corpus] = {}

    def finish(self, launches: list[Launch], forecast: str | None = None) -> None:
        """Bring every launch to `finished`, skipping those that already are with this fingerprint."""
        for launch in launches:
            record = self.store.run(launch.run)
            status = record.status()
            if status["state"] == "finished":
                if status["step"] != launch.spec.steps:
                    raise StoreError(
                        f"{launch.run} finished, but its rows end at step {status['step']} of "
                        f"{launch.spec.steps}: restore {record.folder} from a copy, or delete it to train "
                        "the run again"
                    )
                launch.state = "finished"
                launch.seen = {"step": launch.spec.steps}
        waiting = [launch for launch in launches if launch.state != "finished"]
        if not waiting:
            self.say(f"{_names(launches)}: finished before, skipped")
            return
        if self._backend is None:
            self.say("starting the cluster; a run first compiles for some seconds")
        backend = self._backend = self._backend or self._make_backend()
        for launch in waiting:
            if launch.resources.cpus > backend.cpus:
                raise RunFailed(
                    f"{launch.run} asks for {launch.resources.cpus} CPUs, the cluster has {backend.cpus}: "
                    "lower its Resources(cpus=...) or use a larger machine"
                )
        for launch in waiting:
            # before the first start: what is wrong with the text is wrong for all
            for warning in Batches(self.text(launch.spec), launch.spec).warnings:
                self.say(f"{launch.run}: {warning}")
        try:
            self._drain(backend, waiting, launches, forecast)
        except KeyboardInterrupt:
            self._leave(backend, launches)
            raise
        failed = [launch for launch in launches if launch.state != "finished"]
        if failed:
            stopped = all(launch.state == "stopped" for launch in failed)
            raise (RunStopped if stopped else RunFailed)(
                "; ".join(f"{launch.run} {launch.state}: {launch.reason}" for launch in failed)
            )

    def text(self, spec: RunSpec) -> corpus.Corpus:
        """The token shards of a run, built once for each different text and vocabulary."""
        key = digest(spec.data.model_dump(mode="json", exclude={"phases"})), spec.model.vocab_size
        if key not in self._corpora:
            self._corpora[key] = corpus.build(spec.data, spec.model.vocab_size, say=self.say)
        return self._corpora[key]

    def _drain(
        self,
        backend: Backend,
        waiting: list[Launch],
        launches: list[Launch],
        forecast: str | None,
    ) -> None:
        queue, running = list(waiting), dict[str, Launch]()
        while queue or running:
            free = backend.cpus - sum(launch.resources.cpus for launch in running.values())
            for launch in [launch for launch in queue if launch.resources.cpus <= free]:
                if launch.resources.cpus > free:
                    continue  # an earlier one of this round took the place
                free -= launch.resources.cpus
                queue.remove(launch)
                backend.start(self._job(launch, forecast))
                running[launch.run] = launch
                launch.state = "running"
            for ended in backend.poll(PATIENCE_S):
                launch = running.pop(ended.run)
                launch.state, launch.reason = ended.state, ended.reason
            for run, seen in backend.peek().items():
                running[run].seen = seen
            self.show(launches)

    def _job(self, launch: Launch, forecast: str | None) -> Job:
        text = self.text(launch.spec)
        return Job(
            run=launch.run,
            spec=launch.spec.to_json(),
            store=self.store.url,
            corpus=str(text.folder),
            cpus=launch.resources.cpus,
            devices=launch.spec.parallel.data,
            provenance=self._provenance | {"corpus_sha256": text.sha256},
            forecast=forecast,
        )

    def _leave(self, backend: Backend, launches: list[Launch]) -> None:
        """Ask what runs to checkpoint, and wait for it."""
        self.say("stopping: every run writes a checkpoint first")
        backend.stop()
        running = {launch.run for launch in launches if launch.state == "running"}
        while running & set(backend.peek()):  # Ctrl-C may have come while one was being taken off the list
            running -= {ended.run for ended in backend.poll(PATIENCE_S)}

    def close(self) -> None:
        if self._backend:
            self._backend.close()


def run_ladder(
    ladder: Ladder,
    store: Store,
    backend: Callable[[], Backend],
    *,
    say: Callable[[str], None] = print,
    show: Callable[[list[Launch]], None] = lambda launches: None,
) -> Result:
    """Bring `ladder` to its end in `store`. `backend` is called only when something is left to train.

    Raises RunFailed when a run does not finish (RunStopped: by the monitor's word); SpecError, StoreError,
    CorpusError and AnalysisError for what is wrong before or between. KeyboardInterrupt leaves every run with
    a checkpoint.
    """
    from analysis.page.report import report

    if ladder.target is None:
        raise SpecError(f"ladder {ladder.name} has no target: declare target=Rung(...) to forecast one")
    # before anything is trained: what the fit would refuse afterwards
    design = pd.DataFrame(
        eval_points(spec, run)[-1] | {"rung": rung.name} for rung in ladder.rungs for run, spec in rung.runs
    )
    refuse_too_little(zip(design["rung"], design["flops"], strict=True))
    choose("auto", design)
    started = time.monotonic()
    store.create(ladder)
    training = Training(store, backend, say, show)
    with store.lease(f"ladder run {ladder.name}") as lease:
        if lease.note:
            say(lease.note)
        try:
            training.finish([launch for rung in ladder.rungs for launch in launches(rung)])
            found = fit(store.evals(names=[run for rung in ladder.rungs for run, _ in rung.runs]))
            say(found.summary())
            frozen = freeze(found, ladder.target, store, training)
            training.finish(launches(ladder.target), forecast=store.path(FORECAST))
        except RunFailed:
            with contextlib.suppress(StoreError):  # why the run failed says more
                report(store)
            raise
        finally:
            training.close()
        path = report(store)
    return _result(ladder.target, store, frozen, str(path), time.monotonic() - started)


def launches(rung: Rung) -> list[Launch]:
    return [Launch(run, spec, rung.resources) for run, spec in rung.runs]


def freeze(found: ScalingFit, target: Rung, store: Store, training: Training) -> Forecast:
    """Write the forecast before the target starts. Once the target has a row, the file is never replaced."""
    if store.run(target.name).rows():
        if not store.exists(FORECAST):
            raise StoreError(
                f"{store.path(FORECAST)} is missing, and {target.name} has started: one made now would be no "
                "forecast; restore the file from a copy, or use another store (--store DIR)"
            )
        kept = Forecast.load(store.path(FORECAST))
        training.say(
            f"the forecast {kept.sha256[:12]} was frozen before {target.name} started: it is the judge"
        )
        return kept
    regime = {
        "recipe": target.run.fingerprint,
        "data": training.text(target.run).sha256,
        "evaluation": digest(target.run.evaluation.model_dump(mode="json")),
    }
    fresh = forecast(found, pd.DataFrame(eval_points(target.run, target.name)), regime=regime)
    fresh.save(store.path(FORECAST))
    training.say(f"forecast of {target.name}, frozen before it starts: {_band(fresh)}")
    return fresh


def _band(frozen: Forecast) -> str:
    last = frozen.frame(levels=(0.9,)).iloc[-1]
    band = "no band" if frozen.point_only else f"90 % band {last['lo90']:.4f} to {last['hi90']:.4f}"
    return f"{last['median']:.4f}, {band}, sha256 {frozen.sha256[:12]}"


def _result(target: Rung, store: Store, frozen: Forecast, report: str, wall_s: float) -> Result:
    record = store.run(target.name)
    loss = float(record.evals()[-1]["loss"])
    last = frozen.frame(levels=(0.9,)).iloc[-1]
    lo, hi = (None, None) if frozen.point_only else (float(last["lo90"]), float(last["hi90"]))
    verdicts = [event["state"] for event in record.events() if event["kind"] == "verdict"]
    return Result(
        target_loss=loss,
        median=float(last["median"]),
        lo90=lo,
        hi90=hi,
        inside=None if lo is None or hi is None else lo <= loss <= hi,
        state=verdicts[-1] if verdicts else "normal",
        forecast_sha256=frozen.sha256,
        report=report,
        wall_s=round(wall_s, 3),
    )


def _names(launches: list[Launch]) -> str:
    return ", ".join(launch.run for launch in launches)
