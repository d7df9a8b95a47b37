"""What is done in which state: ordered, versioned rules as plain data, frozen with the forecast.

A team edits a copy of POLICY (JSON) before the run starts. The deterministic verdict comes first; the policy
only says what follows from it, and how often it may.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from analysis.frame import AnalysisError
from analysis.monitor.states import STATES, Verdict

ACTIONS = ("continue", "checkpoint", "skip", "clip", "stop", "roll_back", "ask")
DESTRUCTIVE = ("roll_back",)  # needs a named approver

POLICY: dict[str, Any] = {
    "version": 1,
    # the first rule whose state, code (None: any) and budget fit decides; its budget is `most` uses (None: no
    # limit) within the share `within` of the run's steps
    "rules": [
        {"state": "runaway", "code": "not_finite", "action": "stop", "most": None, "within": 1.0},
        {"state": "runaway", "code": None, "action": "stop", "most": None, "within": 1.0},
        {"state": "precursor", "code": None, "action": "checkpoint", "most": None, "within": 1.0},
        {"state": "watch", "code": None, "action": "continue", "most": None, "within": 1.0},
        {"state": "normal", "code": None, "action": "continue", "most": None, "within": 1.0},
    ],
    "engaged_most": 0.005,  # share of the steps that may be skipped or clipped before such rules switch off
    "roll_backs": {"most": 3, "within": 0.05, "then": "ask"},
}


class PolicyError(AnalysisError):
    """A policy that cannot be followed."""


def checked(policy: Mapping[str, Any]) -> dict[str, Any]:
    """The policy as plain data. Raises PolicyError that names the rule: an unknown state or action, a missing
    state, more than three skips of a step that is no number."""
    rules = policy["rules"]
    for k, rule in enumerate(rules):
        if rule["state"] not in STATES or rule["action"] not in ACTIONS:
            raise PolicyError(
                "bad_rule", f"rule {k} ({rule}): states are {', '.join(STATES)}, actions {', '.join(ACTIONS)}"
            )
        not_a_number = rule["code"] == "not_finite" and rule["action"] == "skip"
        if not_a_number and (rule["most"] is None or rule["most"] > 3):
            text = f"rule {k} skips {rule['most']} steps whose loss is no number: at most 3, then stop"
            raise PolicyError("bad_rule", text)
    for state in STATES:
        if not any(r["state"] == state and r["code"] is None and r["most"] is None for r in rules):
            raise PolicyError(
                "bad_rule", f"no rule without a limit for state {state}: add one as the last word"
            )
    return json.loads(json.dumps(policy))


def sha256(policy: Mapping[str, Any]) -> str:
    """Of the policy's canonical JSON: what is frozen beside the forecast."""
    return hashlib.sha256(json.dumps(policy, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class Decisions:
    """Applies a policy to verdicts. The state is plain data: steps at which each rule was used."""

    def __init__(self, policy: Mapping[str, Any], steps: float, state: Mapping[str, Any] | None = None):
        self.policy, self.steps = checked(policy), steps
        self.used: dict[str, list[int]] = {k: list(v) for k, v in (state or {}).get("used", {}).items()}

    def state_dict(self) -> dict[str, Any]:
        return {"used": {k: list(v) for k, v in self.used.items()}}

    def engaged(self, step: int) -> float:
        """Share of the steps so far that were skipped or clipped: always shown."""
        return sum(len(v) for k, v in self.used.items() if self._action(k) in ("skip", "clip")) / max(step, 1)

    def decide(self, verdict: Verdict) -> tuple[str, str]:
        """(action, why), and the use is counted. A rule out of budget passes on to the next."""
        codes = {e["code"] for e in verdict.evidence}
        spent = []
        for k, rule in enumerate(self.policy["rules"]):
            if rule["state"] != verdict.state or (rule["code"] and rule["code"] not in codes):
                continue
            action = rule["action"]
            if action in ("skip", "clip") and self.engaged(verdict.step) >= self.policy["engaged_most"]:
                spent.append(
                    f"rule {k} ({action}) switched itself off: {self.engaged(verdict.step):.2%} of steps"
                )
                continue
            recent = [
                s for s in self.used.get(str(k), ()) if s > verdict.step - rule["within"] * self._steps()
            ]
            if rule["most"] is not None and len(recent) >= rule["most"]:
                spent.append(f"rule {k} ({action}) was used {len(recent)} times, its limit")
                continue
            if action == "roll_back" and self._rolled(verdict.step) >= self.policy["roll_backs"]["most"]:
                action = self.policy["roll_backs"]["then"]
                spent.append(f"{self._rolled(verdict.step)} roll-backs: a person decides")
            if action not in ("continue", "stop"):
                self.used.setdefault(str(k), []).append(verdict.step)
            return action, "; ".join([*spent, f"rule {k} for {verdict.state}"])
        raise AssertionError("checked() leaves a last word for every state")

    def _rolled(self, step: int) -> int:
        span = self.policy["roll_backs"]["within"] * self._steps()
        return sum(s > step - span for k, v in self.used.items() if self._action(k) == "roll_back" for s in v)

    def _steps(self) -> float:
        return self.steps if math.isfinite(self.steps) else math.inf

    def _action(self, rule: str) -> str:
        return self.policy["rules"][int(rule)]["action"]


def outcome(action: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[bool, str]:
    """(held, in words) of an action's post-condition, from step, batch, grad_norm, kept on both sides."""
    checks = {
        "roll_back": (
            "step",
            after.get("step", math.inf) < before.get("step", -math.inf),
            "the step went back",
        ),
        "skip": ("batch", after.get("batch") != before.get("batch"), "the batch window moved"),
        "clip": ("grad_norm", after.get("grad_norm", math.inf) < before.get("grad_norm", 0), "the norm fell"),
        "checkpoint": ("kept", after.get("kept") == before.get("step"), "a checkpoint of the step was kept"),
    }
    if action not in checks:
        return True, f"{action}: nothing to check"
    key, held, words = checks[action]
    if held:
        return True, f"{action}: {words}"
    return False, f"{action} FAILED: not so that {words} ({key} {before.get(key)} -> {after.get(key)})"
