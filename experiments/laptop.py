"""The laptop ladder: four rungs on real text promise the loss of a run of several times their compute.

The starting design: recipe A, whose figures stand in the log beside this file. Part of what it teaches is how
wide an honest band is when a run costs minutes.
"""

from ladder import Hypothesis, Ladder, ParallelSpec, Resources, Rung
from ladder.recipe import laptop

TARGET = laptop(72)

LADDER = Ladder(
    name="laptop",
    hypothesis=Hypothesis(
        question="Does the loss of width 72 follow from widths 32 to 56, before it is trained?",
        prediction="The target's final loss lands inside the frozen 90 % band.",
        decides="Whether this recipe may be scaled, or bends first.",
    ),
    rungs=(
        Rung(name="d32", run=laptop(32)),
        Rung(name="d40", run=laptop(40)),
        Rung(name="d48", run=laptop(48)),
        Rung(name="d56", run=laptop(56)),
    ),
    target=Rung(
        name="d72",
        run=TARGET.replace(parallel=ParallelSpec(data=2, micro_batch_rows=4)),
        resources=Resources(cpus=2),
    ),
)
