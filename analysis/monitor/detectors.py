"""What is measured on a run's rows.

A detector is a small class whose state is plain data (JSON, bit-identical after a restart) and whose `update`
answers with `Evidence`: the numbers, the band, the window and the state that they ask for.

Detector 6, level: where is the run? Judged against the frozen bands of the forecast.
Detector 7, sensors: can the rows be trusted? (Detector 1, spike, has its own file.)
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypedDict

import numpy as np

LOSSES = ("train_ce", "train_loss")  # the first that a row carries is the step's loss
NORMS = ("grad_norm", "update_norm")
STEP_METRICS = (*LOSSES, *NORMS, "router_entropy", "max_over_mean_load", "drop_fraction")

RUN = 3  # evaluations, rows or repeats running that make an observation count
SILENT, EARLY = 0.01, 0.05  # shares of the run: no level verdict, then only the 99 % band
DEPARTING = 0.5  # half-widths of the 90 % band, gained over RUN evaluations: more than evaluation noise


class Evidence(TypedDict):
    """One observation, as plain data. `level` is the state that it alone asks for ("normal" for a reading);
    it is forgotten after 4 x `window` rows or evaluations (`unit`) without it."""

    detector: str
    code: str
    metric: str
    level: str
    window: int
    unit: str
    numbers: dict[str, float]
    text: str


def evidence(
    detector: str,
    code: str,
    metric: str,
    level: str,
    window: int,
    unit: str,
    numbers: dict[str, float],
    text: str = "",
) -> Evidence:
    return {
        "detector": detector,
        "code": code,
        "metric": metric,
        "level": level,
        "window": window,
        "unit": unit,
        "numbers": numbers,
        "text": text,
    }


@dataclass(frozen=True)
class Bands:
    """A forecast's bands over progress: arrays of shape (points,), losses as logs."""

    progress: np.ndarray
    columns: Mapping[str, np.ndarray]
    steps: float
    tokens: float  # of the whole run

    @classmethod
    def of(cls, forecast: Any) -> "Bands":
        frame = forecast.frame(levels=(0.5, 0.9, 0.99)).sort_values("progress")
        names = ("median", "lo90", "hi90", "lo99", "hi99", "sim_lo90", "sim_hi90", "sim_lo99", "sim_hi99")
        columns = {name: np.log(frame[name].to_numpy(float)) for name in names}
        end = frame.iloc[-1]
        whole = {c: float(end[c] / end["progress"]) if c in frame else math.nan for c in ("step", "tokens")}
        return cls(frame["progress"].to_numpy(float), columns, whole["step"], whole["tokens"])

    def share(self, row: Mapping[str, Any]) -> float:
        """Progress of a row: its own, else by tokens, else by steps (NaN where the forecast has neither)."""
        if "progress" in row:
            return float(row["progress"])
        by_tokens = float(row.get("tokens", math.nan)) / self.tokens
        return by_tokens if math.isfinite(by_tokens) else float(row["step"]) / self.steps

    def at(self, progress: float) -> dict[str, float] | None:
        """Each column at `progress`, linear in log progress; None outside the forecast's range.

        A point-only forecast has a median and no bands.
        """
        slack = 1e-6 * self.progress[-1]
        if not self.progress[0] - slack <= progress <= self.progress[-1] + slack:
            return None
        x, grid = math.log(progress), np.log(self.progress)
        values = {name: float(np.exp(np.interp(x, grid, column))) for name, column in self.columns.items()}
        return {name: value for name, value in values.items() if math.isfinite(value)}


@dataclass
class Level:
    """Detector 6: evaluation loss against the frozen bands.

    Under 1 % of the run nothing is said, to 5 % only the 99 % band counts. Three evaluations running
    outside the pointwise 90 % band, or one outside the simultaneous 99 % band, ask for a watch. Above the
    latter, three evaluations running that move further from the forecast are a precursor, three that rise
    a runaway. A constant offset is a missed band, which is no alarm: it stays a watch.
    """

    outside: int = 0  # evaluations running outside the pointwise 90 % band
    recent: list[list[float]] = field(
        default_factory=list
    )  # [loss, log excess, above the 99 % band], newest last

    def state_dict(self) -> dict[str, Any]:
        return {"outside": self.outside, "recent": self.recent}

    def update(
        self, metric: str, loss: float, progress: float, band: Mapping[str, float] | None
    ) -> list[Evidence]:
        if band is None:
            return []
        excess = math.log(loss / band["median"])
        numbers = {"value": loss, "progress": progress, "percent": 100 * math.expm1(excess), **band}
        reading = evidence("level", "position", metric, "normal", 1, "evals", numbers)
        if progress < SILENT or "sim_hi99" not in band:
            return [reading]
        above = loss > band["sim_hi99"]
        self.recent = [*self.recent[-RUN:], [loss, excess, float(above)]]
        where = f"{metric} {loss:.4f} at {100 * progress:.1f} % of the run, "
        where += f"{numbers['percent']:+.2f} % from the forecast"
        found = [reading]
        if above or loss < band["sim_lo99"]:
            limits = f"{band['sim_lo99']:.4f} to {band['sim_hi99']:.4f}"
            text = f"{where}: outside the simultaneous 99 % band {limits}"
            found.append(evidence("level", "outside_99", metric, "watch", 1, "evals", numbers, text))
        if progress < EARLY:
            return found
        self.outside = 0 if band["lo90"] <= loss <= band["hi90"] else self.outside + 1
        if self.outside >= RUN:
            limits = f"{band['lo90']:.4f} to {band['hi90']:.4f}"
            text = f"{where}: outside the 90 % band {limits} for {self.outside} evaluations"
            found.append(evidence("level", "outside_90", metric, "watch", RUN, "evals", numbers, text))
        return found + self._departing(metric, numbers, where)

    def _departing(self, metric: str, numbers: dict[str, float], where: str) -> list[Evidence]:
        before, *last = self.recent
        if len(last) < RUN or not all(entry[2] for entry in last):
            return []
        losses = [before[0], *(entry[0] for entry in last)]
        excess = [before[1], *(entry[1] for entry in last)]
        found = []
        half_width = math.log(numbers["hi90"] / numbers["lo90"]) / 2
        if increasing(excess) and excess[-1] - excess[0] > DEPARTING * half_width:
            text = f"{where}: above the 99 % band and further away at each of {RUN} evaluations"
            found.append(evidence("level", "departing", metric, "precursor", RUN, "evals", numbers, text))
        if increasing(losses):
            text = f"{where}: above the 99 % band and rising for {RUN} evaluations"
            found.append(evidence("level", "rising", metric, "runaway", RUN, "evals", numbers, text))
        return found


def increasing(values: list[float]) -> bool:
    return all(a < b for a, b in pairwise(values))


def usable(value: Any) -> bool:
    """A number that has a logarithm."""
    return isinstance(value, int | float | np.number) and bool(math.isfinite(value) and value > 0)


@dataclass
class Sensors:
    """Detector 7: NaN and Inf, a metric that fell silent, a dead or stuck gradient norm, steps going back.

    A metric is expected once it has come with three rows running.
    """

    step: int = -1
    attempt: int = -1
    seen: dict[str, int] = field(default_factory=dict)  # rows running with the metric, up to 3
    missing: dict[str, int] = field(default_factory=dict)  # rows running without an expected metric
    grad_norm: float = -1.0
    repeats: int = 0  # rows running with the same gradient norm

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def restarted(self, row: Mapping[str, Any]) -> bool:
        """Does this row begin a new attempt? Then steps may go back."""
        attempt = int(row.get("attempt", self.attempt))
        new, self.attempt = self.attempt != -1 and attempt > self.attempt, max(attempt, self.attempt)
        if new:
            self.step = -1
        return new

    def update(self, step: int, row: Mapping[str, Any]) -> list[Evidence]:
        found = [*self._not_finite(row), *self._back(step)]
        if step > self.step:  # a repeated row says nothing new about what is missing or stuck
            self.step = step
            found += [*self._silent(row), *self._stuck(row)]
        return found

    def _not_finite(self, row: Mapping[str, Any]) -> list[Evidence]:
        found = []
        for metric, value in row.items():
            if isinstance(value, float | np.floating) and not math.isfinite(value):
                vital = metric in (*LOSSES, *NORMS, "eval_loss") or metric.startswith("eval/")
                level = "runaway" if vital else "watch"
                code = "not_finite" if vital else "not_finite_sensor"
                found.append(
                    evidence(
                        "sensor",
                        code,
                        metric,
                        level,
                        RUN,
                        "rows",
                        {"value": float(value)},
                        f"{metric} is {value}",
                    )
                )
        return found

    def _back(self, step: int) -> list[Evidence]:
        if step >= self.step:
            return []
        numbers = {"step": float(step), "before": float(self.step)}
        text = f"steps went back from {self.step} to {step} without a restart"
        return [evidence("sensor", "steps_back", "step", "watch", RUN, "rows", numbers, text)]

    def _silent(self, row: Mapping[str, Any]) -> list[Evidence]:
        found = []
        for metric in STEP_METRICS:
            expected = self.seen.get(metric, 0) >= RUN
            if metric in row:
                if not expected:
                    self.seen[metric] = self.seen.get(metric, 0) + 1
                self.missing.pop(metric, None)
            elif expected:
                rows = self.missing[metric] = self.missing.get(metric, 0) + 1
                if rows >= RUN:
                    text = f"{metric} has been missing for {rows} rows"
                    found.append(
                        evidence(
                            "sensor", "missing", metric, "watch", RUN, "rows", {"rows": float(rows)}, text
                        )
                    )
            else:
                self.seen.pop(metric, None)
        return found

    def _stuck(self, row: Mapping[str, Any]) -> list[Evidence]:
        if "grad_norm" not in row:
            return []
        value = float(row["grad_norm"])
        self.repeats = self.repeats + 1 if value == self.grad_norm else 1
        self.grad_norm = value if math.isfinite(value) else -1.0
        numbers = {"value": value, "repeats": float(self.repeats)}
        if value == 0:
            text = "grad_norm is exactly 0: nothing is learned, or the sensor is dead"
            return [evidence("sensor", "dead", "grad_norm", "watch", RUN, "rows", numbers, text)]
        if self.repeats >= RUN:
            text = f"grad_norm has been exactly {value:g} for {self.repeats} rows"
            return [evidence("sensor", "stuck", "grad_norm", "watch", RUN, "rows", numbers, text)]
        return []
