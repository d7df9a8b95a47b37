"""Is a turn of the mixture at the end, or the domain of many languages, what moves the laptop ladder?"""

from ladder import Ladder, Phase, Rung, RunSpec
from ladder.recipe import LAPTOP_DATA, laptop


def mixed(*phases: Phase) -> RunSpec:
    return laptop(32).replace(data=LAPTOP_DATA.replace(phases=phases))


EVEN = Phase(start=0.0, weights={"docs": 0.45, "code": 0.45, "intl": 0.10})

LADDER = Ladder(
    name="sweep-corpus",
    rungs=(
        Rung(name="as-is", run=laptop(32)),
        Rung(name="no-turn", run=mixed(EVEN)),
        Rung(name="no-intl", run=mixed(Phase(start=0.0, weights={"docs": 0.5, "code": 0.5}))),
    ),
)
