"""The 535B-A23B ladder on racks of GB200: four rungs promise the loss of a run of 280 times their compute.

Recipe and published counts: `ladder.recipe.marin_moe`. This file is for planning: `ladder plan` prices it
anywhere in seconds, and says of each run that it does not fit the machine.
"""

from ladder import Accelerator, Hypothesis, Ladder, Resources, Rung
from ladder.accounting import scaling_flops
from ladder.recipe import marin
from ladder.recipe.marin_moe import TOKENS_PER_ACTIVE

GB200 = Accelerator(
    name="GB200",
    flops_per_s=2.5e15,  # bfloat16, dense
    memory_bytes=186e9,
    mfu=0.2675,  # public report of the full run; smaller rungs may reach less
    usd_per_hour=10.5,  # a public list price, 42 USD for an instance of 4; put your own
)
RACKS = {768: 1, 1024: 2, 1536: 6, 2048: 11, 6144: 11}  # of 18 hosts, 16 of them used: 64 GPUs


def rung(width: int) -> Rung:
    racks = Resources(hosts=16 * RACKS[width], gpus=4, cpus=144, accelerator=GB200, checkpoint_s=600)
    return Rung(name=f"d{width}", run=marin(width), resources=racks)


RUNGS, TARGET = tuple(rung(width) for width in (768, 1024, 1536, 2048)), rung(6144)
SHARE = 100 * sum(scaling_flops(each.run) for each in RUNGS) / scaling_flops(TARGET.run)
HORIZON = TARGET.run.tokens / 1e12

LADDER = Ladder(
    name="marin-535b",
    hypothesis=Hypothesis(
        question=(
            f"Do four rungs with {SHARE:.2f} % of the target's compute (announced as about 1 %) say what the "
            f"535B-A23B run loses at {HORIZON:.1f}T tokens ({TOKENS_PER_ACTIVE} for each active parameter, "
            "by this recipe; announced as 18.75T)?"
        ),
        prediction="The target's held-out loss stays inside the frozen simultaneous 90 % band.",
        decides="Whether the full run goes on: a departure is seen in days, not after trillions of tokens.",
        links=("https://github.com/marin-community/marin",),
    ),
    rungs=RUNGS,
    target=TARGET,
)
