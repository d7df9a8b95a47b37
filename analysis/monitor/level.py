"""Detector 6, level: where is the run? Judged against the frozen bands of the forecast."""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from analysis.monitor.evidence import RUN, Evidence, evidence

SILENT, EARLY = 0.01, 0.05  # shares of the run: no level verdict, then only the 99 % band
DEPARTING = 0.5  # half-widths of the 90 % band, gained over RUN evaluations: more than evaluation noise


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

    def shape(self, progress: float) -> float | None:
        """log of the median at `progress`, linear in log progress; None outside the forecast's range, and
        where it is a single point."""
        grid = self._grid
        if not grid[0] <= (u := math.log(progress) if progress > 0 else -math.inf) <= grid[-1] + 1e-6:
            return None
        if len(grid) < 2:
            return None
        k = min(max(bisect_right(grid, u), 1), len(grid) - 1)
        share = (u - grid[k - 1]) / (grid[k] - grid[k - 1])
        return self._median[k - 1] + share * (self._median[k] - self._median[k - 1])

    @cached_property
    def _grid(self) -> list[float]:
        return np.log(self.progress).tolist()

    @cached_property
    def _median(self) -> list[float]:
        return self.columns["median"].tolist()

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

    step: int = -1
    outside: int = 0  # evaluations running outside the pointwise 90 % band
    recent: list[list[float]] = field(
        default_factory=list
    )  # [loss, log excess, above the 99 % band], newest last

    last: dict[str, float] = field(default_factory=dict)  # numbers of the newest evaluation

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "outside": self.outside, "recent": self.recent, "last": self.last}

    def update(
        self, step: int, metric: str, loss: float, progress: float, band: Mapping[str, float] | None
    ) -> list[Evidence]:
        """band: the forecast's columns at `progress`. A step that was already judged says nothing new."""
        if band is None or step <= self.step:
            return []
        self.step = step
        excess = math.log(loss / band["median"])
        numbers = {"value": loss, "progress": progress, "percent": 100 * math.expm1(excess), **band}
        self.last = numbers
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
