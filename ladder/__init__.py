"""Declare a ladder of training runs, price it, train it and read its record.

Importing this package loads neither jax, ray nor wandb.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from ladder.loading import load
from ladder.resources import Accelerator, Resources
from ladder.spec import (
    DataSpec,
    EvalSpec,
    Gate,
    Hypothesis,
    Ladder,
    ModelSpec,
    OptimizerSpec,
    ParallelSpec,
    Phase,
    Rung,
    RunSpec,
    ScheduleSpec,
    Source,
)
from ladder.values import SpecError

if TYPE_CHECKING:
    from ladder.planning import Plan, plan
    from ladder.store import Store

__version__ = "0.1.0"
__all__ = [
    "Accelerator",
    "DataSpec",
    "EvalSpec",
    "Gate",
    "Hypothesis",
    "Ladder",
    "ModelSpec",
    "OptimizerSpec",
    "ParallelSpec",
    "Phase",
    "Plan",
    "Resources",
    "RunSpec",
    "Rung",
    "ScheduleSpec",
    "Source",
    "SpecError",
    "Store",
    "load",
    "plan",
]

_LATE = {"Store": "ladder.store", "plan": "ladder.planning", "Plan": "ladder.planning"}


def __getattr__(name: str):
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module 'ladder' has no attribute {name!r}")
