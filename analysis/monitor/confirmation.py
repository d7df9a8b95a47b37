"""A drift of the training loss: a precursor when the evaluation follows it, a matter of data when not."""

from collections.abc import Mapping
from typing import Any

from analysis.monitor.evidence import Evidence, evidence

FOLLOWS, LEAST = 0.5, 0.002  # share of the drift by which an evaluation must move, and log loss at least
PATIENCE = 2  # usual distances of evaluations to wait for one


class Confirmation:
    """Where a run is evaluated, a drift upwards is a watch until the next evaluation. Without one in twice
    the usual distance, and where a run is never evaluated, it is a precursor."""

    def __init__(self, state: Mapping[str, Any] | None = None):
        state = state or {}
        self.evals: list[list[float]] = [list(e) for e in state.get("evals", ())]  # newest 3: step, excess
        self.open: dict[str, float] | None = dict(state["open"]) if state.get("open") else None

    def state_dict(self) -> dict[str, Any]:
        return {"evals": [list(e) for e in self.evals], "open": dict(self.open) if self.open else None}

    def restart(self) -> None:
        self.evals, self.open = [], None

    def drifted(self, step: int, found: list[Evidence]) -> list[Evidence]:
        """Weigh the drift detector's evidence of this step, and a wait that has been too long."""
        for e in found:
            if e["code"] == "drift_up" and len(self.evals) > 1:
                (before, _), (last, excess) = self.evals[-2:]
                if not self.open:
                    due = step + PATIENCE * (last - before)
                    self.open = {"step": step, "shift": e["numbers"]["shift"], "excess": excess, "due": due}
                return [{**e, "level": "watch", "text": f"{e['text']}; the next evaluation decides"}]
        if self.open and step > self.open["due"]:
            return [*found, self._close("drift_up", "precursor", "no evaluation came to contradict it")]
        return found

    def evaluated(self, step: int, excess: float) -> list[Evidence]:
        """excess: log evaluation loss minus log forecast."""
        if self.evals and step <= self.evals[-1][0]:
            return []
        self.evals = [*self.evals, [float(step), excess]][-3:]
        if not self.open:
            return []
        moved = excess - self.open["excess"]
        if moved >= max(LEAST, FOLLOWS * self.open["shift"]):
            return [
                self._close("drift_up", "precursor", f"the evaluation moved by {100 * moved:+.2f} % with it")
            ]
        return [self._close("data_order", "watch", f"the evaluation moved by {100 * moved:+.2f} % only")]

    def _close(self, code: str, level: str, why: str) -> Evidence:
        assert self.open is not None
        numbers, self.open = self.open, None
        text = f"the training loss rose {100 * numbers['shift']:.2f} % by step {numbers['step']:.0f}; {why}"
        return evidence("drift", code, "loss", level, 320, "rows", dict(numbers), text)
