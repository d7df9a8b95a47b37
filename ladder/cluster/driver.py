"""Drive a ladder through its steps: corpus, rungs, fit, frozen forecast, watched target, report.

Every step leaves a file in the store and is skipped when its file already answers, so a driver that was
stopped anywhere goes on when it is started again.
"""

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

import pandas as pd

from analysis import Forecast, ScalingFit, fit, forecast
from analysis.fitting import refuse_too_little
from analysis.frame import AnalysisError
from analysis.gates import Held, held_against, overrule, predict
from analysis.laws import choose
from ladder.accounting import eval_points, scaling_flops
from ladder.cluster.failures import BUDGETS, Budget, Kind
from ladder.cluster.mirror import mirrored
from ladder.cluster.signals import all_are_ctrl_c
from ladder.cluster.training import STALL_S, Backend, GateStopped, Launch, RunFailed, Training
from ladder.gating import gate_file, waves
from ladder.spec import Ladder, Rung
from ladder.store import Store, StoreError
from ladder.tracking import Mode, default_mode
from ladder.values import digest

FORECAST = "forecast.json"
RESULT = "result.json"


@dataclass(frozen=True)
class Result:
    """What a ladder came to: the target's final loss beside the frozen 90 % band, and the monitor's word.

    Losses are in `unit`: nats/token or bits/byte. lo90, hi90 and inside are None where the target is too far
    beyond the rungs for a band. gates: each gated rung beside its prediction, in the fields of
    analysis.gates.Held.
    """

    target_loss: float
    median: float
    lo90: float | None
    hi90: float | None
    inside: bool | None
    unit: str
    state: str
    forecast_sha256: str
    report: str
    wall_s: float
    gates: list[dict] = field(default_factory=list)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Trained:
    """What a ladder without a target came to. runs: of each run its rung, FLOPs on the scaling axis, tokens,
    steps, and final loss in `unit`."""

    runs: list[dict]
    unit: str
    report: str
    wall_s: float

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def run_ladder(
    ladder: Ladder,
    store: Store,
    backend: Callable[[], Backend],
    *,
    say: Callable[[str], None] = print,
    show: Callable[[list[Launch]], None] = lambda launches: None,
    budgets: Mapping[Kind, Budget] = BUDGETS,
    stall_s: float = STALL_S,
    wandb: Mode | None = None,
    gated: bool = True,
) -> Result | Trained:
    """Bring `ladder` to its end in `store`. `backend` is called only when something is left to train.

    Without a target the rungs are trained, and nothing is forecast: a sweep.

    Accidents are tried again within `budgets`; a launch without a completed step for `stall_s` is one.
    wandb: how the rows are mirrored; what WANDB_MODE says when None, and offline when it says nothing.
    gated: whether a rung that lands outside its gate (see ladder.gating) stops the ladder; if not, the store
    keeps that it was overruled. Raises RunFailed when a run does not finish (RunStopped: by the monitor's
    word; GateStopped: a gated rung landed outside); SpecError, StoreError,
    CorpusError and AnalysisError for what is wrong before or between. Ctrl-C, SIGTERM and a closed terminal
    raise KeyboardInterrupt when every run has left a checkpoint.
    """
    from analysis.page.report import report

    if ladder.target:
        _refuse_too_little(ladder)
    started = time.monotonic()
    store.create(ladder)
    training = Training(store, backend, say, show, budgets, stall_s)
    mirror = mirrored(store, wandb or default_mode(), say)
    frozen = None
    with all_are_ctrl_c(), store.lease(f"ladder run {ladder.name}") as lease, mirror:
        if lease.note:
            say(lease.note)
        try:
            _finish_rungs(ladder, store, training, gated)
            if ladder.target:
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
    wall_s = round(time.monotonic() - started, 3)
    ended = _result(ladder, store, frozen, path, wall_s) if frozen else _trained(ladder, store, path, wall_s)
    store.write(RESULT, ended.to_json())
    return ended


def _refuse_too_little(ladder: Ladder) -> None:
    """Raise, before anything is trained, what the fit would refuse afterwards."""
    design = pd.DataFrame(
        eval_points(spec, run)[-1] | {"rung": rung.name} for rung in ladder.rungs for run, spec in rung.runs
    )
    refuse_too_little(zip(design["rung"], design["flops"], strict=True))
    choose("auto", design)


def _finish_rungs(ladder: Ladder, store: Store, training: Training, gated: bool) -> None:
    """Wave after wave; a gated rung is predicted before it starts, and judged when it has ended."""
    below: list[Rung] = []
    for wave in waves(ladder):
        if below:
            _predict(ladder, wave[0], below, store, training)
        training.finish([launch for rung in wave for launch in launches(rung)])
        if below:
            _judge(_held(ladder, wave[0], store), store, training, gated)
        below += wave


def _predict(ladder: Ladder, rung: Rung, below: list[Rung], store: Store, training: Training) -> None:
    if store.exists(gate_file(rung.name)):
        return
    if any(store.run(run).begun for run, _ in rung.runs):
        training.say(f"gate: {rung.name} began without a prediction, so it is not held against one")
        return
    try:
        refuse_too_little((each.name, scaling_flops(spec)) for each in below for _, spec in each.runs)
    except AnalysisError as error:
        training.say(f"gate: {rung.name} is not predicted: {error}")
        return
    predict(store, rung, below, _regime(rung, training))
    held = _held(ladder, rung, store)
    training.say(f"gate: {held}, frozen before it starts, sha256 {str(held.sha256)[:12]}")


def _held(ladder: Ladder, rung: Rung, store: Store) -> Held:
    return next(held for held in held_against(store, ladder) if held.rung == rung.name)


def _judge(held: Held, store: Store, training: Training, gated: bool) -> None:
    if held.median is None:  # said before it started
        return
    training.say(f"gate: {held}")
    if not held.outside:
        return
    if held.overruled:
        training.say(f"gate: {held.rung} was overruled before (--no-gate), so the ladder goes on")
        return
    if not gated:
        overrule(store, held)
        training.say(
            f"gate: --no-gate, so the ladder goes on; the store keeps that {held.rung} was overruled"
        )
        return
    raise GateStopped(
        f"stopped by the gate: {held}; a ladder that bends forecasts nothing: look at its rungs "
        "(`ladder report`), or go on with --no-gate",
        {"stopped_by_gate": asdict(held)},
    )


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
    points = pd.DataFrame(eval_points(target.run, target.name))
    fresh = forecast(found, points, regime=_regime(target, training))
    fresh.save(store.path(FORECAST))
    told = _band(fresh, target.run.evaluation.measured_in)
    training.say(f"forecast of {target.name}, frozen before it starts: {told}")
    return fresh


def _regime(rung: Rung, training: Training) -> dict[str, str]:
    """Hashes of what a forecast of this rung is valid for."""
    return {
        "recipe": rung.run.fingerprint,
        "data": training.text(rung.run).sha256,
        "evaluation": digest(rung.run.evaluation.model_dump(mode="json")),
    }


def _band(frozen: Forecast, unit: str) -> str:
    last = frozen.frame(levels=(0.9,)).iloc[-1]
    band = "no band" if frozen.point_only else f"90 % band {last['lo90']:.4f} to {last['hi90']:.4f}"
    return f"{last['median']:.4f} {unit}, {band}, sha256 {frozen.sha256[:12]}"


def _result(ladder: Ladder, store: Store, frozen: Forecast, report: str, wall_s: float) -> Result:
    record = store.run(frozen.run)
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
        unit=record.spec.evaluation.measured_in,
        state=verdicts[-1] if verdicts else "normal",
        forecast_sha256=frozen.sha256,
        report=report,
        wall_s=wall_s,
        gates=[json.loads(json.dumps(asdict(held))) for held in held_against(store, ladder)],
    )


def _trained(ladder: Ladder, store: Store, report: str, wall_s: float) -> Trained:
    runs = []
    for rung in ladder.rungs:
        for run, spec in rung.runs:
            loss = float(store.run(run).evals()[-1]["loss"])
            at_end = {"flops": float(scaling_flops(spec)), "tokens": spec.tokens, "steps": spec.steps}
            runs.append({"run": run, "rung": rung.name} | at_end | {"loss": loss})
    return Trained(runs, ladder.rungs[0].run.evaluation.measured_in, report, wall_s)
