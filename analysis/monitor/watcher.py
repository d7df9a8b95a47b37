"""A run's rows in, a verdict a row out."""

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

import pandas as pd

from analysis.monitor.confirmation import Confirmation
from analysis.monitor.continuity import Continuity
from analysis.monitor.drift import Drift
from analysis.monitor.evidence import LOSSES, RUN, Evidence, evidence, usable
from analysis.monitor.growth import Growth, Routing
from analysis.monitor.level import EARLY, Bands, Level
from analysis.monitor.limits import Limits
from analysis.monitor.recovery import Recovery
from analysis.monitor.segments import Segments
from analysis.monitor.sensors import Sensors, Split, Throughput
from analysis.monitor.spikes import Spikes
from analysis.monitor.states import Standing, Verdict

if TYPE_CHECKING:
    from analysis.forecasts import Forecast

REPEATED_SHARE = 0.01  # three precursors within this share of the run are a runaway


class Monitor:
    """Watches one run against its frozen forecast.

    `update(row)` takes a row (step, and any of tokens, train_ce, eval_loss, grad_norm, ...) and answers with
    a `Verdict`. Rows may lack any metric. `register(event)` declares a change of regime: from its step on the
    run is judged against its new level. `state_dict()` is JSON; `Monitor.from_state(forecast, state)` goes on
    from it exactly as if nothing had happened.
    """

    def __init__(self, forecast: "Forecast", limits: Limits | None = None):
        self._build(forecast, limits or Limits(), {})

    def _build(self, forecast: "Forecast", limits: Limits, state: Mapping[str, Any]) -> None:
        self.forecast, self.limits = forecast, limits
        self.bands = Bands.of(forecast)
        steps = self.bands.steps
        self.spikes = Spikes(limits, state.get("spikes"))
        self.drift = Drift(limits, state.get("drift"))
        self.recovery = Recovery(steps, state.get("recovery"))
        self.growth = Growth(steps, limits, state.get("growth"))
        self.routing = Routing(limits, state.get("routing"))
        self.throughput = Throughput(state.get("throughput"))
        self.confirmation = Confirmation(state.get("confirmation"))
        self.segments = Segments(state.get("segments"))
        self.continuity = Continuity(**state.get("continuity", {}))
        self.level, self.sensors = Level(**state.get("level", {})), Sensors(**state.get("sensors", {}))
        self.split, self.standing = Split(**state.get("split", {})), Standing(state.get("standing"))
        self.precursors: list[int] = list(state.get("precursors", ()))  # steps at which a precursor began
        self.step: int = state.get("step", -1)  # the highest judged

    _PARTS = (
        "spikes", "drift", "recovery", "growth", "routing", "throughput", "confirmation", "segments",
        "continuity", "level", "sensors", "split", "standing",
    )  # fmt: skip

    @classmethod
    def from_state(cls, forecast: "Forecast", state: Mapping[str, Any]) -> Self:
        """Raises ValueError when the state belongs to another forecast."""
        if state["forecast"] != forecast.sha256:
            raise ValueError(
                f"the monitor's state belongs to forecast {state['forecast'][:12]}, this one is "
                f"{forecast.sha256[:12]}: load the forecast that the run was started with"
            )
        monitor = cls.__new__(cls)
        monitor._build(forecast, Limits.from_dict(state["limits"]), state)
        return monitor

    def state_dict(self) -> dict[str, Any]:
        return {
            "forecast": self.forecast.sha256,
            "limits": self.limits.to_dict(),
            "precursors": list(self.precursors),
            "step": self.step,
            **{name: getattr(self, name).state_dict() for name in self._PARTS},
        }

    def register(self, event: Mapping[str, Any]) -> None:
        """Declare a change (step, kind): at that step the run's own baselines start anew. One that says
        registered false voids the band from its step on. Kinds that change no level (eval, alarm, ...) are
        ignored."""
        self.segments.register(event)

    def update(self, row: Mapping[str, Any]) -> Verdict:
        """Judge one row. Raises ValueError for a row without a step."""
        if "step" not in row:
            raise ValueError(f"a row without step (it has {sorted(row)}): name the completed updates 'step'")
        step = int(row["step"])
        restarted = self.sensors.restarted(row)
        found = self._regime(step, row, restarted)
        found += self.sensors.update(step, row)
        found += self._changes(step, row)
        found += self._evaluation(step, row)
        found = self.continuity.soften(found)
        found += self._repeated(step, found)
        before = self.standing.state
        fresh = self.standing.update(step, found, step > self.step)
        if step > self.step:
            self.step = step
        state = self.standing.state
        began = state == "precursor" and (
            before != state or any(e["level"] == state and e["code"] in fresh for e in found)
        )
        action = "stop" if state == "runaway" else "checkpoint" if began else "continue"
        return Verdict(state, self.standing.reasons, action, tuple(found), step, self.standing.next_step)

    def _regime(self, step: int, row: Mapping[str, Any], restarted: bool) -> list[Evidence]:
        if restarted:
            self.continuity.begin(self.spikes.streams["loss"].level(), self.step)
            self.spikes.resume()
            self.drift.gap()
        found, changed = self.segments.update(step, row)
        if changed:
            self._rebaseline()
        return found

    def _rebaseline(self) -> None:
        for part in (self.spikes, self.drift, self.recovery, self.growth, self.confirmation):
            part.restart()

    def _changes(self, step: int, row: Mapping[str, Any]) -> list[Evidence]:
        """Has it changed? What the row says against the run's own past."""
        progress = self.bands.share(row)
        found = self.spikes.update(step, row)
        found += self.throughput.update(step, row.get("tokens_per_s"))
        found += self.routing.update(row)
        found += self.growth.update(step, row, progress)
        metric = next((m for m in LOSSES if m in row), None)
        if metric is None or not usable(row[metric]):
            return found
        value = float(row[metric])
        reading = next((e["numbers"] for e in found if e["code"] == "loss_spike"), None)
        jump = self.continuity.update(step, math.log(value), self.drift.rho)
        if jump:
            found += jump
            self._rebaseline()
        found += self.recovery.update(step, value, reading, self.limits.flag, self.drift.rho)
        return found + self._trend(step, value, progress, reading)

    def _trend(
        self, step: int, value: float, progress: float, reading: Mapping[str, float] | None
    ) -> list[Evidence]:
        spiking = bool(reading) and reading["z"] > self.limits.flag
        shape = self.bands.shape(progress) if progress >= EARLY and not spiking else None
        if shape is None:
            self.drift.gap()
            return []
        x = math.log(value) - shape
        self.segments.learn(x, step)
        found = self.drift.update(step, x, progress)
        return self.confirmation.drifted(step, found)

    def _evaluation(self, step: int, row: Mapping[str, Any]) -> list[Evidence]:
        """Where is it? An evaluation against the frozen band of the same metric."""
        if not usable(row.get("eval_loss")):
            return []
        progress, loss = self.bands.share(row), float(row["eval_loss"]) * math.exp(-self.segments.offset)
        shape = self.bands.shape(progress) if math.isfinite(progress) else None
        found = self.confirmation.evaluated(step, math.log(loss) - (shape or 0.0))
        trained = self.spikes.streams["loss"].recent
        if len(trained):
            found += self.split.update(step, loss, math.exp(trained.median()))
        if math.isfinite(progress) and self.segments.void is None:
            band = self.bands.at(progress)
            found += self.level.update(step, self.forecast.metric, loss, progress, band)
        return found

    def _repeated(self, step: int, found: list[Evidence]) -> list[Evidence]:
        """Three precursors within 1 % of the run; evidence that is still held is the same precursor."""
        fresh = any(e["level"] == "precursor" and e["code"] not in self.standing.held for e in found)
        if fresh and step not in self.precursors:
            self.precursors.append(step)
        span = REPEATED_SHARE * self.bands.steps
        self.precursors = [s for s in self.precursors if s > step - span]
        if len(self.precursors) < RUN:
            return []
        numbers = {"precursors": float(len(self.precursors)), "steps": span}
        text = f"{len(self.precursors)} precursors within 1 % of the run (steps {self.precursors})"
        return [evidence("states", "precursors", "state", "runaway", RUN, "rows", numbers, text)]


def declared_events(run: Any) -> list[dict[str, Any]]:
    """The changes of mixture that a `ladder.RunSpec` declares, as registered events with their steps."""
    return [
        {"step": math.ceil(phase.start * run.steps - 1e-9) + 1, "kind": "mixture", "registered": True}
        for phase in run.data.phases[1:]
    ]


def replay(
    forecast: "Forecast",
    rows: Iterable[Mapping[str, Any]] | pd.DataFrame,
    events: Iterable[Mapping[str, Any]] | None = None,
    limits: Limits | None = None,
) -> pd.DataFrame:
    """A verdict per row of a log.

    Columns: step, tokens, state, action, reasons, next_step; where there is one, the robust z of the row's
    loss, gradient and update norm (loss_z, grad_norm_z, update_norm_z) and the evaluation's percent from the
    forecast. Registered events re-baseline the run from their step on. A frame cannot tell a NaN from a
    missing value and both count as missing: give rows as mappings when a NaN loss is to be seen.
    """
    if isinstance(rows, pd.DataFrame):
        records = rows.to_dict("records")
        rows = [{str(k): v for k, v in row.items() if not _absent(v)} for row in records]
    monitor = Monitor(forecast, limits)
    for event in events or ():
        monitor.register(event)
    return pd.DataFrame([_line(row, monitor.update(row)) for row in rows])


def _absent(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _line(row: Mapping[str, Any], verdict: Verdict) -> dict[str, Any]:
    line = {
        "step": verdict.step,
        "tokens": row.get("tokens", math.nan),
        "state": verdict.state,
        "action": verdict.action,
    }
    line |= {"reasons": "; ".join(verdict.reasons), "next_step": verdict.next_step}
    for e in verdict.evidence:
        if e["detector"] == "spike" and e["code"].endswith("_spike"):
            line[e["code"].removesuffix("_spike") + "_z"] = e["numbers"]["z"]
        elif e["code"] == "position":
            line["percent"] = e["numbers"]["percent"]
    return line
