"""From evidence to a state, with hysteresis, and from a state to what is done next.

normal < watch < precursor < runaway. A state is entered by the worst evidence of a row and left only when
4 times the window of what triggered it has been clean, counted in rows (in evaluations for evidence on them).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from analysis.monitor.evidence import Evidence

STATES = ("normal", "watch", "precursor", "runaway")
CLEAN = 4  # windows that must stay clean before a state is left
NEXT = {
    "normal": "go on",
    "watch": "go on; log, evaluate and keep checkpoints more often",
    "precursor": "alert a person and keep an extra checkpoint; be ready to skip or clip a step",
    "runaway": "stop; go back to the last checkpoint from before the first precursor, with a person's word",
}
NEXT_BY_CODE = {
    "not_finite": "stop; look at the batch and the checkpoint before this step, then resume from it",
    "outside_99": "hold at the next checkpoint; audit data, evaluation, config, batch, rate and precision",
    "steps_back": "check that one writer logs this run",
    "missing": "check the logger; the detectors that read this metric are blind",
    "dead": "check the gradient path and the logger",
    "stuck": "check the logger: the value looks stale",
    "loss_scale": "look at the overflowing layers; lower the rate or clip before the scale is gone",
    "drift_up": "evaluate now; audit the data order, the rate and the batch of the last blocks",
    "data_order": "go on; the training rows changed, the evaluation did not: look at the shuffle",
    "restart_jump": "compare the restored state, data position and rate with those before the restart",
    "throughput": "look at the machines; the losses are well",
    "unregistered": "register the change or restore the declared config: the forecast's band is void here",
}


def worst(states: Iterable[str]) -> str:
    return max(states, key=STATES.index, default="normal")


@dataclass(frozen=True)
class Verdict:
    """What one row says.

    reasons: texts, with the numbers, of everything that holds the state; evidence: what this row added,
    readings included; action, for the training loop: "continue", "checkpoint" (once, when a precursor begins)
    or "stop"; next_step: the action in words.
    """

    state: str
    reasons: tuple[str, ...]
    action: Literal["continue", "checkpoint", "stop"]
    evidence: tuple[Evidence, ...]
    step: int
    next_step: str

    @property
    def stop(self) -> bool:
        return self.action == "stop"

    def summary(self) -> str:
        because = "; ".join(self.reasons) or "nothing to report"
        return f"step {self.step}: {self.state} ({because}). Next: {self.next_step}."


class Standing:
    """The evidence that still counts: one entry a code, with the rows or evaluations clean since."""

    def __init__(self, held: Mapping[str, Mapping[str, Any]] | None = None):
        self.held: dict[str, dict[str, Any]] = {code: dict(entry) for code, entry in (held or {}).items()}

    def state_dict(self) -> dict[str, Any]:
        return {code: dict(entry) for code, entry in self.held.items()}

    @property
    def state(self) -> str:
        return worst(entry["level"] for entry in self.held.values())

    @property
    def reasons(self) -> tuple[str, ...]:
        ordered = sorted(self.held.values(), key=lambda entry: -STATES.index(entry["level"]))
        return tuple(f"{entry['text']} (step {entry['step']})" for entry in ordered)

    @property
    def next_step(self) -> str:
        state = self.state
        code = next((code for code, entry in self.held.items() if entry["level"] == state), "")
        return NEXT_BY_CODE.get(code, NEXT[state])

    def update(self, step: int, evidence: Iterable[Evidence], fresh_row: bool = True) -> list[str]:
        """Take in one row's evidence; return the codes that were not held before. A row whose step was
        already judged (not fresh_row) cleans nothing."""
        alarming = {e["code"]: e for e in evidence if e["level"] != "normal"}
        evaluated = any(e["unit"] == "evals" for e in evidence)
        for code, entry in list(self.held.items()) if fresh_row else ():
            if code in alarming or (entry["unit"] == "evals" and not evaluated):
                continue
            entry["clean"] += 1
            if entry["clean"] >= CLEAN * entry["window"]:
                del self.held[code]
        fresh = [code for code in alarming if code not in self.held]
        for code, e in alarming.items():
            self.held[code] = {
                "level": e["level"],
                "window": e["window"],
                "unit": e["unit"],
                "clean": 0,
                "step": step,
                "text": e["text"],
            }
        return fresh
