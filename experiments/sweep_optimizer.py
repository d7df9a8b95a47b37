"""What do weight decay, the second moment's memory and the warm-up matter to the laptop recipe?"""

from ladder import Ladder, Rung, RunSpec
from ladder.recipe import laptop

RUN = laptop(32)


def with_optimizer(**changed: float) -> RunSpec:
    return RUN.replace(optimizer=RUN.optimizer.replace(**changed))


LADDER = Ladder(
    name="sweep-optimizer",
    rungs=(
        Rung(name="as-is", run=RUN),
        Rung(name="no-decay", run=with_optimizer(weight_decay=0.0)),
        Rung(name="beta2-99", run=with_optimizer(beta2=0.99)),
        Rung(name="warmup-2", run=RUN.replace(schedule=RUN.schedule.replace(warmup=0.02))),
    ),
)
