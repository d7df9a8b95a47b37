"""Detector 7, sensors: can the rows be trusted?"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analysis.monitor.evidence import LOSSES, NORMS, RUN, STEP_METRICS, Evidence, evidence, usable
from analysis.monitor.rolling import RollingMedian

SETTLED = 100  # rows after which a dynamic loss scale has come down from its start
COLLAPSE = 8  # times lower than it was
RECENT, USUAL = 32, 512  # rows: the throughput now, and as a rule
SLOWER = 0.05  # lost share of the throughput
SPLIT_EVALS, SPLIT = 4, 0.02  # evaluations that give the usual gap; log units off it


@dataclass
class Sensors:
    """NaN and Inf, a metric that fell silent, a dead or stuck gradient norm, steps going back, a collapsed
    loss scale, skipped updates.

    A metric is expected once it has come with three rows running.
    """

    step: int = -1
    attempt: int = -1
    seen: dict[str, int] = field(default_factory=dict)  # rows running with the metric, up to 3
    missing: dict[str, int] = field(default_factory=dict)  # rows running without an expected metric
    grad_norm: float = -1.0
    repeats: int = 0  # rows running with the same gradient norm
    rows: int = 0  # of this attempt
    scale: float = 0.0  # highest loss scale of this attempt, its first rows apart
    skipped: int = 0  # rows running whose update was skipped

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def restarted(self, row: Mapping[str, Any]) -> bool:
        """Does this row begin a new attempt? Then steps may go back."""
        attempt = int(row.get("attempt", self.attempt))
        new, self.attempt = self.attempt != -1 and attempt > self.attempt, max(attempt, self.attempt)
        if new:
            self.step, self.rows, self.scale = -1, 0, 0.0
        return new

    def update(self, step: int, row: Mapping[str, Any]) -> list[Evidence]:
        found = [*self._not_finite(row), *self._back(step)]
        if step > self.step:  # a repeated row says nothing new about what is missing or stuck
            self.step = step
            self.rows += 1
            found += [*self._silent(row), *self._stuck(row), *self._scale(row)]
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

    def _scale(self, row: Mapping[str, Any]) -> list[Evidence]:
        found = []
        if row.get("skipped") is not None:
            self.skipped = self.skipped + 1 if row["skipped"] else 0
            if self.skipped >= RUN:
                text = f"{self.skipped} updates running were skipped"
                numbers = {"rows": float(self.skipped)}
                found.append(evidence("sensor", "skipping", "skipped", "watch", RUN, "rows", numbers, text))
        scale = row.get("loss_scale")
        if scale is None or self.rows <= SETTLED or not math.isfinite(scale):
            return found
        self.scale = max(self.scale, float(scale))
        if scale * COLLAPSE <= self.scale:
            numbers = {"value": float(scale), "highest": self.scale}
            text = f"loss_scale fell to {scale:g} from {self.scale:g}"
            found.append(evidence("sensor", "loss_scale", "loss_scale", "watch", RUN, "rows", numbers, text))
        return found


class Throughput:
    """The median of the last 32 rows against that of the last 512: 5 % slower is a watch, never more."""

    def __init__(self, state: Mapping[str, Any] | None = None):
        state = state or {}
        self.step: int = state.get("step", -1)
        self.recent = RollingMedian(RECENT, state.get("recent", ()))
        self.usual = RollingMedian(USUAL, state.get("usual", ()))

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "recent": self.recent.values, "usual": self.usual.values}

    def update(self, step: int, value: Any) -> list[Evidence]:
        if step <= self.step or not usable(value):
            return []
        self.step, x = step, math.log(value)
        self.recent.add(x)
        self.usual.add(x)
        if len(self.usual) < USUAL // 2:
            return []
        usual, now = self.usual.median(), self.recent.median()
        if usual - now <= max(SLOWER, 1.4826 * self.usual.mad()):
            return []
        numbers = {"value": math.exp(now), "usual": math.exp(usual)}
        text = f"tokens_per_s {math.exp(now):.4g} over {RECENT} rows, {math.exp(usual):.4g} as a rule"
        return [evidence("sensor", "throughput", "tokens_per_s", "watch", RECENT, "rows", numbers, text)]


@dataclass
class Split:
    """The gap between evaluation and training loss, against its median over the run's earlier evaluations."""

    step: int = -1
    gaps: list[float] = field(default_factory=list)  # log(eval / train), the newest 16

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "gaps": list(self.gaps)}

    def update(self, step: int, evaluated: float, trained: float) -> list[Evidence]:
        if step <= self.step:
            return []
        self.step, gap, usual = step, math.log(evaluated / trained), self.gaps[-16:]
        if len(usual) < SPLIT_EVALS:
            self.gaps = [*usual, gap]
            return []
        middle = float(np.median(usual))
        spread = 1.4826 * float(np.median(np.abs(np.array(usual) - middle)))
        off = gap - middle
        if off <= max(SPLIT, 5 * spread):
            self.gaps = [*usual, gap]
            return []
        text = f"eval_loss is {100 * math.expm1(off):+.1f} % farther from the training loss than before"
        return [evidence("sensor", "split", "eval_loss", "watch", 1, "evals", {"off": off, "gap": gap}, text)]
