"""Every step of the job on real text in about a minute: what tests, fault and cluster checks run.

Its runs are far too short to say anything about scaling (the loss is in its first fall): read the plumbing,
not the forecast.
"""

from ladder import EvalSpec, Ladder, Rung, RunSpec
from ladder.recipe import laptop


def short(width: int, steps: int) -> RunSpec:
    return laptop(width).replace(
        steps=steps,
        batch_tokens=8 * 128,
        evaluation=EvalSpec(every=0.1, rows=32, loss_per="byte", unit="other"),
    )


LADDER = Ladder(
    name="smoke",
    rungs=(
        Rung(name="d16", run=short(16, 80)),
        Rung(name="d24", run=short(24, 120)),
        Rung(name="d32", run=short(32, 160)),
    ),
    target=Rung(name="d48", run=short(48, 240)),
)
