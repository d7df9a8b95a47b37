"""Detectors 3 and 4: norms that grow while the loss looks well, and routing outside its healthy range."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from analysis.monitor.evidence import Evidence, evidence, usable
from analysis.monitor.limits import Limits

SHARE, LEAST = 0.01, 512  # a slope is taken over this share of the run's steps, at least so many
BINS, ROWS = 32, 4  # bins of a window; rows of a bin at least
EFFECT = 0.05  # log growth over the window beyond the ladder's: less is of no interest however certain
STREAMS = 16  # metrics followed at most
ROUTING_RUN = 3  # rows running outside the range


def family(metric: str) -> str | None:
    """gradients (the head's too), logits (and the head's weights), router, weights (and activations)."""
    if metric in ("grad_norm", "update_norm") or metric.startswith(("grad_norm/", "update_norm/")):
        return "gradients"
    if metric in ("logit_z", "norm/head"):
        return "logits"
    if metric in ("router_logit_rms", "norm/router"):
        return "router"
    return "weights" if metric.startswith(("norm/", "activation_norm")) else None


class Growth:
    """Theil-Sen slope of the log over the last 1 % of the run, minus the ladder's slope there.

    z uses the residuals' MAD and lag-one correlation. Only growth counts. One family is a watch, two at once
    a precursor: the one public run whose gradients doubled in one family alone ended on its forecast.
    """

    def __init__(self, steps: float, limits: Limits, state: Mapping[str, Any] | None = None):
        state = state or {}
        self.limits = limits
        self.span = max(LEAST, SHARE * steps if math.isfinite(steps) else 0) / BINS  # steps of a bin
        self.streams: dict[str, dict[str, Any]] = {
            metric: {**stream, "bins": list(stream["bins"])}
            for metric, stream in state.get("streams", {}).items()
        }

    def state_dict(self) -> dict[str, Any]:
        return {"streams": {m: {**s, "bins": list(s["bins"])} for m, s in self.streams.items()}}

    def restart(self) -> None:
        self.streams.clear()

    def update(self, step: int, row: Mapping[str, Any], progress: float) -> list[Evidence]:
        found = []
        for metric in row:
            if (
                family(metric)
                and usable(row[metric])
                and (metric in self.streams or len(self.streams) < STREAMS)
            ):
                stream = self.streams.setdefault(
                    metric,
                    {"step": -1, "from": step, "n": 0, "total": 0.0, "bins": [], "z": 0.0, "grown": 0.0},
                )
                if step > stream["step"]:
                    stream["step"] = step
                    found += self._add(metric, stream, math.log(row[metric]), progress)
        return found

    def _add(self, metric: str, stream: dict[str, Any], x: float, progress: float) -> list[Evidence]:
        stream["n"] += 1
        stream["total"] += x
        if stream["step"] - stream["from"] + 1 < self.span or stream["n"] < ROWS:
            return []
        stream["bins"] = [*stream["bins"], stream["total"] / stream["n"]][-BINS:]
        stream["n"], stream["total"], stream["from"] = 0, 0.0, stream["step"] + 1
        if len(stream["bins"]) < BINS:
            return []
        slope, se = theil_sen(np.array(stream["bins"]))
        excess = slope * BINS - self._ladder(metric, progress)
        stream["z"], stream["grown"] = excess / (se * BINS), excess
        if not self._grows(stream):
            return []
        span = round(self.span * BINS)
        numbers = {"z": stream["z"], "growth": excess, "limit": self.limits.growth, "steps": float(span)}
        text = f"{metric} has grown {100 * math.expm1(excess):.0f} % in {span} steps: z {stream['z']:.1f}, "
        text += f"limit {self.limits.growth:g}"
        found = [evidence("growth", f"growth_{family(metric)}", metric, "watch", span, "rows", numbers, text)]
        growing = sorted({family(m) or "" for m, s in self.streams.items() if self._grows(s)})
        if len(growing) > 1:
            text = f"{' and '.join(growing)} grow together; {text}"
            found.append(evidence("growth", "growth", metric, "precursor", span, "rows", numbers, text))
        return found

    def _grows(self, stream: Mapping[str, Any]) -> bool:
        return stream["z"] > self.limits.growth and stream["grown"] > EFFECT

    def _ladder(self, metric: str, progress: float) -> float:
        """The ladder's log growth per 1 % of tokens at this progress, 0 where it says nothing."""
        curve = self.limits.slopes.get(metric)
        if not curve or not math.isfinite(progress):
            return 0.0
        return float(np.interp(progress, [x for x, _ in curve], [slope for _, slope in curve]))


def theil_sen(y: np.ndarray) -> tuple[float, float]:
    """(median of the pairwise slopes of y (n,) per index, its standard error)."""
    n = len(y)
    i, j = np.triu_indices(n, 1)
    slope = float(np.median((y[j] - y[i]) / (j - i)))
    left = y - slope * np.arange(n)
    left -= np.median(left)
    sd = max(1.4826 * float(np.median(abs(left))), 1e-6)
    lag = float(left[1:] @ left[:-1] / max(left @ left, 1e-12))
    lag = min(max(lag, 0.0), 0.9)
    return slope, sd * math.sqrt((1 + lag) / (1 - lag) * 12 / (n * (n * n - 1))) * 1.05


class Routing:
    """Three rows running outside the ladder's range of a routing metric."""

    def __init__(self, limits: Limits, state: Mapping[str, Any] | None = None):
        self.limits = limits
        self.outside: dict[str, int] = dict((state or {}).get("outside", {}))

    def state_dict(self) -> dict[str, Any]:
        return {"outside": dict(self.outside)}

    def update(self, row: Mapping[str, Any]) -> list[Evidence]:
        found = []
        for metric, (low, high) in self.limits.routing.items():
            value = row.get(metric)
            if not isinstance(value, int | float) or not math.isfinite(value):
                continue
            out = (low is not None and value < low) or (high is not None and value > high)
            self.outside[metric] = self.outside.get(metric, 0) + 1 if out else 0
            if self.outside[metric] >= ROUTING_RUN:
                ends = ["-inf" if low is None else f"{low:.4g}", "inf" if high is None else f"{high:.4g}"]
                text = f"{metric} {value:.4g} is outside the ladder's range {ends[0]} to {ends[1]}"
                numbers = {"value": float(value), "rows": float(self.outside[metric])}
                found.append(evidence("routing", "routing", metric, "precursor", 16, "rows", numbers, text))
        return found
