"""Which rungs are predicted before they start, and so which may run side by side.

The two smallest rungs run first. From the third on, each rung is predicted from all smaller ones and starts
when these have finished: a ladder that bends is then noticed before its dearer rungs are paid for, by the
narrowest band that its data allow. Predicted from the first two, all others could run side by side, but the
fourth would be held to a band about twice as wide (laptop ladder: 3.2 instead of 1.8 % at 99 %, by
analysis.design). Waiting costs at most the time of the rungs between the second and the top one, and less
where a rung, which now runs alone, is given more processors.
"""

from ladder.accounting import scaling_flops
from ladder.spec import Gate, Ladder, Rung

UNGATED = 2  # rungs, the least that carry a law
AUTO_FROM = 4  # rungs from which "auto" gates


def gate_of(ladder: Ladder) -> Gate | None:
    """The gate in force."""
    if ladder.gate != "auto":
        return ladder.gate
    return Gate() if ladder.target and len(ladder.rungs) >= AUTO_FROM else None


def waves(ladder: Ladder) -> tuple[tuple[Rung, ...], ...]:
    """The rungs in the groups that run side by side, one group after the other. Every group but the first is
    one rung that is predicted from all groups before it."""
    if gate_of(ladder) is None:
        return (ladder.rungs,)
    rungs = sorted(ladder.rungs, key=lambda rung: scaling_flops(rung.run))
    return (tuple(rungs[:UNGATED]), *((rung,) for rung in rungs[UNGATED:]))


def gate_file(rung: str) -> str:
    """Where a rung's prediction lies in the store."""
    return f"gates/{rung}/prediction.json"
