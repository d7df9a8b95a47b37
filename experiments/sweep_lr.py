"""Does one learning rate fit every rung of the laptop ladder?

Its best is looked for at three widths up to the top rung.
"""

from ladder import Ladder, Rung, RunSpec
from ladder.recipe import laptop

WIDTHS = (24, 32, 48)
FACTORS = (0.6, 1.0, 1.6)


def scaled(run: RunSpec, factor: float) -> RunSpec:
    """The run with every learning rate times `factor`."""
    was = run.optimizer
    return run.replace(optimizer=was.replace(lr=was.lr * factor, matrix_lr=was.matrix_lr * factor))


LADDER = Ladder(
    name="sweep-lr",
    rungs=tuple(
        Rung(name=f"d{width}-lr{factor}", run=scaled(laptop(width), factor))
        for width in WIDTHS
        for factor in FACTORS
    ),
)
