"""A run's rows in, a verdict a row out."""

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

import pandas as pd

from analysis.monitor.detectors import RUN, Bands, Evidence, Level, Sensors, evidence, usable
from analysis.monitor.spikes import Spikes
from analysis.monitor.states import Standing, Verdict

if TYPE_CHECKING:
    from analysis.forecasts import Forecast

REPEATED_SHARE = 0.01  # three precursors within this share of the run are a runaway
REBASELINE = ("restart", "fork", "mixture", "context", "transport", "weight_decay", "batch")


class Monitor:
    """Watches one run against its frozen forecast.

    `update(row)` takes a row (step, and any of tokens, train_ce, eval_loss, grad_norm, ...) and answers with
    a `Verdict`. Rows may lack any metric. `register(event)` declares a change of regime: from its step on the
    run is judged against its new level. `state_dict()` is JSON; `Monitor.from_state(forecast, state)` goes on
    from it exactly as if nothing had happened.
    """

    def __init__(self, forecast: "Forecast"):
        self.forecast = forecast
        self.bands = Bands.of(forecast)
        self.spikes, self.level, self.sensors, self.standing = Spikes(), Level(), Sensors(), Standing()
        self.events: list[dict[str, Any]] = []  # registered and still ahead, by step
        self.precursors: list[int] = []  # steps at which a precursor began

    @classmethod
    def from_state(cls, forecast: "Forecast", state: Mapping[str, Any]) -> Self:
        """Raises ValueError when the state belongs to another forecast."""
        if state["forecast"] != forecast.sha256:
            raise ValueError(
                f"the monitor's state belongs to forecast {state['forecast'][:12]}, this one is "
                f"{forecast.sha256[:12]}: load the forecast that the run was started with"
            )
        monitor = cls(forecast)
        monitor.spikes = Spikes(state["spikes"])
        monitor.level = Level(**state["level"])
        monitor.sensors = Sensors(**state["sensors"])
        monitor.standing = Standing(state["standing"])
        monitor.events = [dict(event) for event in state["events"]]
        monitor.precursors = list(state["precursors"])
        return monitor

    def state_dict(self) -> dict[str, Any]:
        return {
            "forecast": self.forecast.sha256,
            "spikes": self.spikes.state_dict(),
            "level": self.level.state_dict(),
            "sensors": self.sensors.state_dict(),
            "standing": self.standing.state_dict(),
            "events": [dict(event) for event in self.events],
            "precursors": list(self.precursors),
        }

    def register(self, event: Mapping[str, Any]) -> None:
        """Declare a change (step, kind): at that step the run's own baselines start anew.

        Kinds that change no level (eval, alarm, ...) are ignored.
        """
        if event["kind"] in REBASELINE:
            self.events.append({"step": int(event["step"]), "kind": str(event["kind"])})
            self.events.sort(key=lambda e: e["step"])

    def update(self, row: Mapping[str, Any]) -> Verdict:
        """Judge one row. Raises ValueError for a row without a step."""
        if "step" not in row:
            raise ValueError(f"a row without step (it has {sorted(row)}): name the completed updates 'step'")
        step = int(row["step"])
        found = self._regime(step, row)
        found += self.sensors.update(step, row)
        found += self.spikes.update(step, row)
        if usable(row.get("eval_loss")):
            progress = self.bands.share(row)
            if math.isfinite(progress):
                found += self.level.update(
                    self.forecast.metric, float(row["eval_loss"]), progress, self.bands.at(progress)
                )
        found += self._repeated(step, found)
        before = self.standing.state
        fresh = self.standing.update(step, found)
        state = self.standing.state
        began = state == "precursor" and (
            before != state or any(e["level"] == state and e["code"] in fresh for e in found)
        )
        action = "stop" if state == "runaway" else "checkpoint" if began else "continue"
        return Verdict(state, self.standing.reasons, action, tuple(found), step, self.standing.next_step)

    def _regime(self, step: int, row: Mapping[str, Any]) -> list[Evidence]:
        kinds = ["restart"] if self.sensors.restarted(row) else []
        while self.events and self.events[0]["step"] <= step:
            kinds.append(self.events.pop(0)["kind"])
        if not kinds:
            return []
        self.spikes.restart()
        text = f"{', '.join(kinds)} at step {step}: the run's own baselines start anew"
        return [evidence("regime", "rebaseline", "step", "normal", 1, "rows", {"step": float(step)}, text)]

    def _repeated(self, step: int, found: list[Evidence]) -> list[Evidence]:
        """Three precursors within 1 % of the run. Evidence that is still held is the same precursor."""
        if any(e["level"] == "precursor" and e["code"] not in self.standing.held for e in found):
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
    monitor = Monitor(forecast)
    for event in events or ():
        if event.get("registered", True):
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
