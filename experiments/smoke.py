"""Every step of the job on real text in about a minute: what tests, fault and cluster checks run.

Its runs are far too short to say anything about scaling (the loss is in its first fall): read the plumbing,
not the forecast.
"""

from ladder import EvalSpec, Ladder, ParallelSpec, Resources, Rung, RunSpec
from ladder.recipe import laptop


def short(width: int) -> RunSpec:
    """The laptop recipe at a sixteenth of its tokens."""
    evaluation = EvalSpec(every=0.1, rows=32, loss_per="byte", unit="other")
    return laptop(width, tokens_per_active=3, steps=100).replace(evaluation=evaluation)


LADDER = Ladder(
    name="smoke",
    rungs=tuple(Rung(name=f"d{width}", run=short(width)) for width in (16, 24, 32)),
    target=Rung(
        name="d48",
        run=short(48).replace(parallel=ParallelSpec(data=2, micro_batch_rows=4)),
        resources=Resources(cpus=2),
    ),
    gate=None,  # in its first fall a loss is on no law
)
