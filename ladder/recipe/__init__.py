"""Named recipes: width -> a whole run. Each rule stands beside where it comes from."""

from ladder.recipe.marin_moe import marin
from ladder.recipe.two_cores import laptop

__all__ = ["laptop", "marin"]
