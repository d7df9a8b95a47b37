"""What a launch asks for: hosts, processors, accelerators. No part of what a run is."""

from typing import Annotated, Self

from pydantic import Field, PositiveFloat, model_validator

from ladder.values import Count, CountOrZero, Value, Weights


class Accelerator(Value):
    """One kind of accelerator: its limits, and what a plan may assume of it. `mfu` and `usd_per_hour` are
    statements of the user's, which the plan repeats beside the days and the cost that follow from them."""

    name: str
    flops_per_s: PositiveFloat  # dense peak in the dtype that products run in
    memory_bytes: Count
    mfu: Annotated[float, Field(gt=0, le=1)]  # share of the peak; output head counted, recomputation not
    usd_per_hour: PositiveFloat | None = None  # of one accelerator


class Resources(Value):
    """What one run asks of the cluster, on each of its `hosts`, and how often it writes a checkpoint."""

    cpus: Count = 1
    gpus: CountOrZero = 0
    hosts: Count = 1
    checkpoint_s: PositiveFloat = 60.0  # seconds of training that an accident may cost
    custom: Weights = ()
    accelerator: Accelerator | None = None  # what one of the `gpus` is, for the plan's days, memory and cost

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.accelerator and not self.gpus:
            raise ValueError(f"accelerator={self.accelerator.name!r} but gpus=0: say how many a host has")
        return self

    @property
    def devices(self) -> int:
        """Accelerators of all hosts."""
        return self.gpus * self.hosts
