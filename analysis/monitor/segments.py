"""Changes of regime. A registered one starts the run's baselines anew and, where the rungs did not run it,
moves the forecast by what a paired window measures; an unregistered one voids the band."""

from collections.abc import Mapping
from typing import Any

from analysis.monitor.evidence import Evidence, evidence

REBASELINE = ("fork", "mixture", "context", "transport", "weight_decay", "decay", "batch")
PAIRED = ("context", "transport", "weight_decay", "batch")  # not in the rungs: their shift is measured
PAIR = 64  # rows on each side


class Segments:
    def __init__(self, state: Mapping[str, Any] | None = None):
        state = state or {}
        self.ahead: list[dict[str, Any]] = [dict(event) for event in state.get("ahead", ())]  # by step
        self.config: str | None = state.get("config")
        self.void: int | None = state.get("void")  # the step from which the band says nothing
        self.offset: float = state.get("offset", 0.0)  # log loss, by registered changes
        self.before: list[float] = list(state.get("before", ()))  # newest x, up to PAIR
        self.after: list[float] | None = state.get("after") and list(state["after"])
        self.pairing: list[float] | None = state.get("pairing")

    def state_dict(self) -> dict[str, Any]:
        names = ("ahead", "config", "void", "offset", "before", "after", "pairing")
        return {name: getattr(self, name) for name in names}

    def register(self, event: Mapping[str, Any]) -> None:
        if event["kind"] in REBASELINE:
            self.ahead.append(
                {
                    "step": int(event["step"]),
                    "kind": str(event["kind"]),
                    "registered": bool(event.get("registered", True)),
                    "shift": event.get("shift"),
                }
            )
            self.ahead.sort(key=lambda e: e["step"])

    def update(self, step: int, row: Mapping[str, Any]) -> tuple[list[Evidence], bool]:
        """(evidence, must the baselines start anew?)"""
        due = [event for event in self.ahead if event["step"] <= step]
        self.ahead = self.ahead[len(due) :]
        declared = [event for event in due if event["registered"]]
        for event in due:
            if not event["registered"] and self.void is None:
                self.void = event["step"]
        config = row.get("config_hash")
        if config is not None and config != self.config:
            if self.config is not None and not declared and self.void is None:
                self.void = step
            self.config = str(config)
        found = []
        if declared:
            kinds = ", ".join(event["kind"] for event in declared)
            text = f"{kinds} at step {step}, registered: the run's own baselines start anew"
            found.append(_said("rebaseline", "normal", step, text))
            self._pair(declared)
        if self.void is not None:
            text = f"a change of regime at step {self.void} was not registered: the forecast's band is void"
            found.append(_said("unregistered", "watch", step, text))
        return found, bool(declared)

    def _pair(self, declared: list[dict[str, Any]]) -> None:
        for event in declared:
            if event["shift"] is not None:
                self.offset += float(event["shift"])
            elif event["kind"] in PAIRED and len(self.before) == PAIR:
                self.pairing, self.after = self.before, []

    def learn(self, x: float, step: int) -> None:
        """x: log training loss minus log forecast of a clean row."""
        if self.pairing is not None and self.after is not None:
            self.after.append(x)
            if len(self.after) == PAIR:
                self.offset += (sum(self.after) - sum(self.pairing)) / PAIR
                self.pairing = self.after = None
        self.before = [*self.before[-PAIR + 1 :], x]


def _said(code: str, level: str, step: int, text: str) -> Evidence:
    return evidence("regime", code, "step", level, 1, "rows", {"step": float(step)}, text)
