"""Why an attempt failed and whether to try again: a pure function of what happened.

When one member of a gang fails, the others fail after it, and often with an error of their own. So a death
of a member is infrastructure whatever the survivors say; an error about a broken collective is a symptom and
has no class; of what is left the earliest decides. Whatever the class, the same error at the same step from
the same checkpoint would come again: it is deterministic, and a cluster must not be burnt on it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["infrastructure", "preemption", "unexplained", "deterministic", "user error", "numeric"]


@dataclass(frozen=True)
class Death:
    """A member that ended by itself: its process, its node, or no sign of life for too long."""

    rank: int
    text: str
    preempted: bool = False  # the cluster took the node away, and said so


@dataclass(frozen=True)
class Raised:
    """An exception that a member raised."""

    rank: int
    at: float  # seconds since the epoch on the member's clock
    types: tuple[str, ...]  # names of its class and of the bases, most special first
    text: str  # one line


@dataclass(frozen=True)
class Failure:
    """What one failed attempt came to. `error` is what is compared; empty when a member just died."""

    kind: Kind
    text: str
    error: str
    step: int | None  # last completed update that is known
    checkpoint: int | None  # completed updates that the attempt started from; None: it never started


@dataclass(frozen=True)
class Budget:
    """How often a kind of failure is tried again from one checkpoint, and how long to wait before."""

    tries: int
    wait_s: float  # before the first; doubles each time
    longest_s: float

    def wait(self, failures: int) -> float:
        """Seconds before the next try, after the failures so far."""
        return min(self.longest_s, self.wait_s * 2.0 ** (failures - 1))


# Every kind counts its own, and anew from each new checkpoint: a run that gets on may fail often. A kind that
# is absent is not tried again. numeric is absent because a resumed run would meet the same numbers.
BUDGETS: Mapping[Kind, Budget] = {
    "infrastructure": Budget(tries=20, wait_s=1.0, longest_s=60.0),
    "preemption": Budget(tries=1000, wait_s=1.0, longest_s=30.0),
    "unexplained": Budget(tries=3, wait_s=1.0, longest_s=10.0),
}
SAME_ERROR = 2  # the same error at the same step from the same checkpoint this often is deterministic
# A death carries no error, and steps are known to the last row only, so that two accidents can look alike.
SAME_DEATH = 5

# By name: the class lives on another machine. The most special name that is listed decides.
_KINDS: Mapping[str, Kind] = {
    "FloatingPointError": "numeric",
    "FileNotFoundError": "user error",
    "PermissionError": "user error",
    "OSError": "infrastructure",  # storage, network, a full disk; ConnectionError and TimeoutError are such
    "RayError": "infrastructure",  # Ray about itself: a place that was taken away, a head that is gone
    "MemoryError": "unexplained",
    "NotImplementedError": "user error",
    "ValueError": "user error",  # SpecError, CorpusError, StoreError among them
    "TypeError": "user error",
    "LookupError": "user error",
    "AttributeError": "user error",
    "NameError": "user error",
    "ImportError": "user error",
    "SyntaxError": "user error",
    "AssertionError": "user error",
}
_SYMPTOM = re.compile(
    r"gloo|nccl|collective|connection (closed|reset|refused)|socket closed|coordination service|heartbeat|"
    r"barrier|DEADLINE_EXCEEDED|UNAVAILABLE",
    re.IGNORECASE,
)
_OUT_OF_MEMORY = re.compile(r"out of memory|RESOURCE_EXHAUSTED", re.IGNORECASE)
# Ray's word for a worker that it killed itself; its guesses about any other death name the OOM killer too
_KILLED_FOR_MEMORY = re.compile(r"low on memory", re.IGNORECASE)


@dataclass(frozen=True)
class Verdict:
    failure: Failure  # its kind may have become deterministic
    retry: bool
    wait_s: float
    reason: str  # for people: what happened, of what kind it is, what follows


def explain(
    deaths: Sequence[Death], raised: Sequence[Raised], step: int | None, checkpoint: int | None
) -> Failure:
    """The failure of an attempt, out of what its members met."""
    own = sorted((r for r in raised if not _is_symptom(r)), key=lambda r: r.at)
    error = _masked(own[0].text) if own else ""
    if deaths:
        told = "; ".join([d.text for d in deaths] + [f"rank {r.rank} raised {r.text}" for r in own[:1]])
        if any(_KILLED_FOR_MEMORY.search(d.text) for d in deaths):
            return Failure("unexplained", told, error or "out of memory", step, checkpoint)
        kind: Kind = "preemption" if any(d.preempted for d in deaths) else "infrastructure"
        return Failure(kind, told, error, step, checkpoint)
    if own:
        return Failure(_kind(own[0]), own[0].text, error, step, checkpoint)
    if raised:
        first = min(raised, key=lambda r: r.at)
        return Failure("infrastructure", f"no member died, yet {first.text}", "", step, checkpoint)
    return Failure("unexplained", "it ended without a word", "", step, checkpoint)


def judge(failure: Failure, history: Sequence[Failure], budgets: Mapping[Kind, Budget] = BUDGETS) -> Verdict:
    """What to do about a failure, given the earlier ones of the same run since a person last started it."""
    alike = [f for f in history if _same(failure, f) and f.kind != "preemption"]
    again = len(alike) + 1
    if failure.kind != "preemption" and again >= (SAME_ERROR if failure.error else SAME_DEATH):
        found = Failure("deterministic", failure.text, failure.error, failure.step, failure.checkpoint)
        where = f"{again} times {_at(failure)}"
        return Verdict(found, False, 0.0, f"{failure.text} (deterministic: {where}; not tried again)")
    budget = budgets.get(failure.kind)
    if budget is None:
        return Verdict(failure, False, 0.0, f"{failure.text} ({failure.kind}: not tried again)")
    count = 1 + sum(f.kind == failure.kind and f.checkpoint == failure.checkpoint for f in history)
    if count > budget.tries:
        reason = f"{failure.text} ({failure.kind}: {count} times without a new checkpoint, given up)"
        return Verdict(failure, False, 0.0, reason)
    wait_s = budget.wait(count)
    reason = f"{failure.text} ({failure.kind} {count} of at most {budget.tries}: tried again in {wait_s:g} s)"
    return Verdict(failure, True, wait_s, reason)


def _is_symptom(raised: Raised) -> bool:
    return bool(_SYMPTOM.search(raised.text)) and not _OUT_OF_MEMORY.search(raised.text)


def _kind(raised: Raised) -> Kind:
    if _OUT_OF_MEMORY.search(raised.text):
        return "unexplained"  # once it may be a neighbour's fault, twice it is deterministic
    found: list[Kind] = [_KINDS[name] for name in raised.types if name in _KINDS]
    return found[0] if found else "unexplained"


def _same(one: Failure, other: Failure) -> bool:
    return (one.error, one.step, one.checkpoint) == (other.error, other.step, other.checkpoint)


def _masked(text: str) -> str:
    """Addresses and numbers change from attempt to attempt; the rest of an error does not."""
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", text)


def _at(failure: Failure) -> str:
    step = "before the first step" if failure.step is None else f"at step {failure.step}"
    return f"{step} from the same checkpoint ({failure.checkpoint or 'none'})"
