"""Detector 5, recovery: has the loss come back to its level after a spike?"""

import math
from collections.abc import Mapping
from statistics import median
from typing import Any

from analysis.monitor.evidence import Evidence, evidence

STEPS, SHARE = 100, 0.0005  # a look takes the larger of these many steps, and of this share of the run
MARGIN = 0.002  # log loss: a shift this small is a recovery
LOOKS = 10  # after so many the level is what it is
LEAST = 16  # rows of a look
APART = 16  # steps without a spike after which the next one is another
HISTORY = 512  # rows behind the level before the spike
MEDIAN = 1.2533  # standard error of a normal median in those of a mean


class Recovery:
    """An equivalence test of the shift between the level before the spike and the rows of each look after it.

    recovered: the shift is within max(.2 %, 2 se). not recovered: past that by 1.64 se, or the loss is still
    spiking when a look's steps are over. Between the two it is undecided, and the next look decides.
    """

    def __init__(self, steps: float, state: Mapping[str, Any] | None = None):
        self.span = max(STEPS, SHARE * steps if math.isfinite(steps) else 0)
        self.open: dict[str, Any] | None = _copy(state["open"]) if state else None

    def state_dict(self) -> dict[str, Any]:
        return {"open": _copy(self.open)}

    def restart(self) -> None:
        self.open = None

    def update(
        self, step: int, value: float, numbers: Mapping[str, float] | None, flag: float, rho: float
    ) -> list[Evidence]:
        """numbers: the spike detector's reading of this row's loss; rho: AR(1) coefficient of the loss."""
        x = math.log(value)
        if self.open is None:
            if numbers and numbers["z"] > flag:
                level = math.log(numbers["baseline"])
                self.open = {"level": level, "scale": numbers["scale"], "begun": step, "high": step}
                self.open |= {"shifts": [], "look": step, "looks": 0, "lost": False}
            return []
        o = self.open
        if step <= max(o["high"], o["look"]):
            return []
        if (x - o["level"]) / o["scale"] > flag:
            o.update(begun=step if step - o["high"] > APART else o["begun"], high=step, look=step, shifts=[])
            o["looks"] = 0
            return self._lost(x - o["level"], o["scale"]) if step - o["begun"] > self.span else []
        o["shifts"].append(x - o["level"])
        n = len(o["shifts"])
        if step - o["look"] < self.span or n < LEAST:
            return []
        shift = median(o["shifts"])  # the tail of the spike's own fall is in the first look
        se = MEDIAN * o["scale"] * math.sqrt((1 + rho) / (1 - rho) * (1 / n + 1 / HISTORY))
        o.update(look=step, shifts=[], looks=o["looks"] + 1)
        return self._look(shift, se)

    def _look(self, shift: float, se: float) -> list[Evidence]:
        o, margin = self.open, max(MARGIN, 2 * se)
        assert o is not None
        numbers = {"shift": shift, "se": se, "margin": margin, "spike_step": float(o["begun"])}
        about = f"{100 * math.expm1(shift):+.2f} % from the level before the spike of step {o['begun']}"
        limit = f"margin {100 * margin:.2f} %"
        if shift <= margin:
            self.open = None
            return [_said("recovered", "normal", numbers, f"recovered: {about}, {limit}")]
        if shift > margin + 1.645 * se:
            found = self._lost(shift, se)
        else:
            found = [_said("undecided", "watch", numbers, f"undecided: {about}, {limit}")]
        if o["looks"] >= LOOKS:
            self.open = None
        return found

    def _lost(self, shift: float, se: float) -> list[Evidence]:
        o = self.open
        assert o is not None
        if o["lost"]:
            return []
        o["lost"] = True
        numbers = {"shift": shift, "se": se, "spike_step": float(o["begun"])}
        text = (
            f"not recovered: {100 * math.expm1(shift):+.2f} % from the level before the spike of step "
            f"{o['begun']}, {self.span:.0f} steps after it"
        )
        return [_said("not_recovered", "runaway", numbers, text)]


def _said(code: str, level: str, numbers: dict[str, float], text: str) -> Evidence:
    return evidence("recovery", code, "loss", level, STEPS, "rows", numbers, text)


def _copy(state: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return {**state, "shifts": list(state["shifts"])} if state else None
