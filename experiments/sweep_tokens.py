"""How does the laptop recipe's loss fall with tokens for each active parameter, at one width?"""

from ladder import Ladder, Rung
from ladder.recipe import laptop

LADDER = Ladder(
    name="sweep-tokens",
    rungs=tuple(
        Rung(name=f"d32-{per_active}", run=laptop(32, tokens_per_active=per_active))
        for per_active in (25, 50, 100)
    ),
)
