"""Are 2,000 steps enough for the laptop recipe? The same tokens in fewer, larger steps, and in more."""

from ladder import Ladder, Rung
from ladder.recipe import laptop

LADDER = Ladder(
    name="sweep-steps",
    rungs=tuple(Rung(name=f"d32-{steps}", run=laptop(32, steps=steps)) for steps in (1000, 2000, 4000)),
)
