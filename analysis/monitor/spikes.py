"""Detector 1, spike: has the run changed within a step? Judged against the run's own recent past."""

import math
from collections.abc import Mapping
from typing import Any

from analysis.monitor.evidence import LOSSES, NORMS, RUN, Evidence, evidence, usable
from analysis.monitor.limits import Limits
from analysis.monitor.rolling import RollingMedian

MEMORY = 512  # clean residuals that give the scale
BASELINE = 32  # clean values whose median is the baseline
HISTORY = 64  # residuals needed before a step may be flagged
QUIET = 3.0  # a norm spikes "alone" while the loss z stays under this
FLOOR = {"loss": 0.002, "grad_norm": 0.02, "update_norm": 0.02}  # smallest believed sd of a log residual
PAIR_STEPS = 500  # two norm spikes within this many steps are a precursor
RECOVERY_STEPS = 100  # the time in which a single spike has to recover
NEW_LEVEL = 64  # flagged rows running after which the new level becomes the baseline
RATE_ROWS, RATE_SPIKES, RATE_TIMES = (
    2048,
    5,
    5,
)  # too many spikes: rows looked at, spikes, times the ladder's share


class Spike:
    """Robust z of one stream, on the log scale.

    The baseline is the median of the last 32 clean values, so it follows a falling loss (or a warm-up) with
    a lag of 16 rows; the residual against it is compared with the median and MAD of the last 512 clean
    residuals, which carry the same lag. A flagged value enters neither.

    The scale is the larger of the MAD's and that of the upper tail (99 % point / 2.326), which agree for
    normal noise. Gradient norms of small batches have a heavy tail (1.75 x the MAD's scale over 1,500 steps
    of 8 rows of the laptop corpus), and a spike must stand out from that: with the MAD alone 31 of 60 clean
    runs with such a tail came to a precursor, with this none. It is widened by (1 + 32 / n) for the n
    residuals that it rests on: of few, serially correlated ones any estimate is often far too small. After
    64 flagged rows running the level has changed for good, and the stream starts anew on it.
    """

    def __init__(self, floor: float, state: Mapping[str, Any] | None = None, flag: float = Limits.flag):
        state = state or {}
        self.floor, self.flag = floor, flag
        self.recent = RollingMedian(BASELINE, state.get("recent", ()))
        self.residuals = RollingMedian(MEMORY, state.get("residuals", ()))
        self.step: int = state.get("step", -1)
        self.flagged: int = state.get("flagged", 0)

    def state_dict(self) -> dict[str, Any]:
        return {
            "recent": self.recent.values,
            "residuals": self.residuals.values,
            "step": self.step,
            "flagged": self.flagged,
        }

    def restart(self) -> None:
        self.recent.clear()
        self.residuals.clear()
        self.step, self.flagged = -1, 0

    def level(self) -> tuple[float, float] | None:
        """(baseline, scale) of the logs, or None while either is unknown."""
        n = len(self.residuals)
        if n < HISTORY or not len(self.recent):
            return None
        return self.recent.median() + self.residuals.median(), max(1.4826 * self.residuals.mad(), self.floor)

    def resume(self) -> None:
        """A new attempt, perhaps from an earlier step: it sets its own level, the scale stays."""
        self.recent.clear()
        self.step, self.flagged = -1, 0

    def update(self, step: int, value: float) -> dict[str, float] | None:
        """Numbers of this value (value, baseline, z, scale), or None while the history is too short.

        A step that this attempt has already shown is left out.
        """
        if step <= self.step:
            return None
        self.step = step
        x = math.log(value)
        numbers = None
        if len(self.recent) >= BASELINE // 4:
            baseline = self.recent.median()
            residual = x - baseline
            n = len(self.residuals)
            if n >= HISTORY:
                middle = self.residuals.median()
                tail = (self.residuals.quantile(0.99) - middle) / 2.326
                scale = max(max(1.4826 * self.residuals.mad(), tail) * (1 + 32 / n), self.floor)
                z = (residual - middle) / scale
                numbers = {"value": value, "baseline": math.exp(baseline), "z": z, "scale": scale}
                if z > self.flag:
                    self.flagged += 1
                    if self.flagged == NEW_LEVEL:
                        self.restart()
                        self.step = step
                    return numbers
            self.residuals.add(residual)
        self.flagged = 0
        self.recent.add(x)
        return numbers


class Spikes:
    """Detector 1 over loss, gradient norm and update norm, with the rules that join them."""

    def __init__(self, limits: Limits, state: Mapping[str, Any] | None = None):
        state = state or {"streams": {}, "norm_spikes": [], "loss_high": [], "loss_spikes": []}
        self.limits = limits
        self.streams = {
            name: Spike(floor, state["streams"].get(name), limits.flag) for name, floor in FLOOR.items()
        }
        self.norm_spikes: list[int] = list(state["norm_spikes"])  # steps of norm spikes, newest last
        self.loss_high: list[int] = list(state["loss_high"])  # steps of a loss z > runaway, the last five
        self.loss_spikes: list[list[int]] = [
            list(s) for s in state["loss_spikes"]
        ]  # [first step, last, rows]

    def state_dict(self) -> dict[str, Any]:
        return {
            "streams": {name: stream.state_dict() for name, stream in self.streams.items()},
            "norm_spikes": self.norm_spikes,
            "loss_high": self.loss_high,
            "loss_spikes": self.loss_spikes,
        }

    def restart(self) -> None:
        """Forget the past: after a declared change the old level is no baseline."""
        self.__init__(self.limits)

    def resume(self) -> None:
        for stream in self.streams.values():
            stream.resume()

    def update(self, step: int, row: Mapping[str, Any]) -> list[Evidence]:
        readings: dict[str, tuple[str, dict[str, float]]] = {}
        for name, stream in self.streams.items():
            metric = next((m for m in LOSSES if m in row), None) if name == "loss" else name
            if metric is not None and usable(row.get(metric)):
                numbers = stream.update(step, float(row[metric]))
                if numbers:
                    readings[name] = (metric, numbers)
        found = [self._judge(name, *reading) for name, reading in readings.items()]
        return found + self._norms(step, readings) + self._loss(step, readings.get("loss"))

    def _judge(self, name: str, metric: str, numbers: dict[str, float]) -> Evidence:
        flag = self.limits.flag
        if numbers["z"] <= flag:
            return evidence("spike", f"{name}_spike", metric, "normal", MEMORY, "rows", numbers)
        text = (
            f"{metric} {numbers['value']:.4g} against {numbers['baseline']:.4g} over the last {BASELINE} "
            f"clean rows: z {numbers['z']:.1f}, limit {flag:g}"
        )
        return evidence("spike", f"{name}_spike", metric, "watch", RECOVERY_STEPS, "rows", numbers, text)

    def _norms(self, step: int, readings: Mapping[str, tuple[str, dict[str, float]]]) -> list[Evidence]:
        flag, lone, found = self.limits.flag, self.limits.lone, []
        _, loss = readings.get("loss", ("", {}))
        worst, norm = max(
            ((metric, numbers) for name, (metric, numbers) in readings.items() if name in NORMS),
            key=lambda pair: pair[1]["z"],
            default=("", {}),
        )
        if not norm or norm["z"] <= flag:
            return []
        self.norm_spikes = sorted({s for s in self.norm_spikes if s > step - PAIR_STEPS} | {step})
        if norm["z"] > lone and loss and loss["z"] < QUIET:
            numbers = {**norm, "loss_z": loss["z"]}
            text = (
                f"{worst} alone: {norm['value']:.4g} against {norm['baseline']:.4g}, z {norm['z']:.1f} "
                f"(limit {lone:g}), while the loss stays at z {loss['z']:.1f}"
            )
            found.append(evidence("spike", "norm_alone", worst, "precursor", 1, "rows", numbers, text))
        earlier = [s for s in self.norm_spikes if s < step]
        if earlier:
            text = f"{worst}: z > {flag:g} at steps {earlier[-1]} and {step}, within {PAIR_STEPS} steps"
            found.append(evidence("spike", "norm_pair", worst, "precursor", PAIR_STEPS, "rows", norm, text))
        return found

    def _loss(self, step: int, reading: tuple[str, dict[str, float]] | None) -> list[Evidence]:
        if reading is None:
            return []
        (metric, loss), found = reading, []
        self.loss_high = [s for s in self.loss_high if step - 5 < s < step]
        if loss["z"] > self.limits.runaway:
            self.loss_high.append(step)
        if len(self.loss_high) >= RUN:
            text = (
                f"{metric} {loss['value']:.4g} against {loss['baseline']:.4g}: z > {self.limits.runaway:g} "
                f"in {len(self.loss_high)} of the last 5 steps"
            )
            found.append(evidence("spike", "loss_runaway", metric, "runaway", 5, "rows", loss, text))
        return found + (self._rate(step, metric) if loss["z"] > self.limits.flag else [])

    def _rate(self, step: int, metric: str) -> list[Evidence]:
        """The row at `step` spikes: are there more such rows than RATE_TIMES the ladder's share?"""
        self.loss_spikes = [s for s in self.loss_spikes if s[1] > step - RATE_ROWS]
        if not self.loss_spikes or step > self.loss_spikes[-1][1] + 5:
            self.loss_spikes.append([step, step, 1])
        elif step > self.loss_spikes[-1][1]:
            self.loss_spikes[-1][1:] = [step, self.loss_spikes[-1][2] + 1]
        rows = sum(s[2] for s in self.loss_spikes)
        limit = RATE_TIMES * self.limits.spike_rate
        if len(self.loss_spikes) < RATE_SPIKES or rows <= limit * RATE_ROWS:
            return []
        share = rows / RATE_ROWS
        text = (
            f"{metric} spiked {len(self.loss_spikes)} times in {RATE_ROWS} steps, {100 * share:.1f} % of "
            f"them; limit {100 * limit:.1f} %"
        )
        numbers = {"share": share, "limit": limit, "spikes": float(len(self.loss_spikes))}
        return [evidence("spike", "spike_rate", metric, "precursor", RATE_ROWS, "rows", numbers, text)]
