"""Learning rate and data phases as plain functions of the step.

`step` counts completed updates, so the first update runs at step 0 (and at a learning rate of 0).
Every function takes its array module, so that training traces it and analysis reads it.
"""

from typing import Any

import numpy as np

from ladder.spec import DataSpec, ScheduleSpec


def warmup_steps(schedule: ScheduleSpec, steps: int) -> int:
    return int(schedule.warmup * steps)


def shape(schedule: ScheduleSpec, step: Any, steps: int, xp: Any = np) -> Any:
    """Learning rate / peak at `step` of `steps`, in [0, 1]; elementwise over an array of steps.

    0 -> 1 linearly over the warm-up, then 1 -> `final` linearly, reached when all steps are done.
    """
    warmup = warmup_steps(schedule, steps)
    rising = step / max(warmup, 1)
    falling = 1 - (1 - schedule.final) * (step - warmup) / max(steps - warmup, 1)
    return xp.where(step < warmup, rising, falling)


def phase_weights(data: DataSpec, progress: float) -> dict[str, float]:
    """Share of each domain among the rows drawn at `progress` in [0, 1); adds up to 1."""
    current = [phase for phase in data.phases if phase.start <= progress][-1]
    total = sum(weight for _, weight in current.weights)
    return {domain: weight / total for domain, weight in current.weights}
