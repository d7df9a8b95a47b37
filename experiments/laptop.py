"""The laptop ladder: four rungs on real text promise the loss of a run of 3.5x the largest one's compute.

The two smallest run side by side. Each later one is predicted before it starts (ladder.gating), so it runs
alone and takes both cores. How the design was chosen, and over how many seeds its promise was kept, stands in
the log beside this file.
"""

from ladder import Hypothesis, Ladder, ParallelSpec, Resources, Rung
from ladder.recipe import laptop


def alone(width: int, micro_batch_rows: int) -> Rung:
    parallel = ParallelSpec(data=2, micro_batch_rows=micro_batch_rows)
    return Rung(name=f"d{width}", run=laptop(width).replace(parallel=parallel), resources=Resources(cpus=2))


LADDER = Ladder(
    name="laptop",
    hypothesis=Hypothesis(
        question="Does the loss of width 72 follow from widths 24 to 48, before it is trained?",
        prediction="The target's final loss lands inside the frozen 90 % band.",
        decides="Whether this recipe may be scaled, or bends first.",
    ),
    rungs=(
        Rung(name="d24", run=laptop(24)),
        Rung(name="d32", run=laptop(32)),
        alone(40, micro_batch_rows=4),
        alone(48, micro_batch_rows=5),
    ),
    target=alone(72, micro_batch_rows=4),
)
