"""Read a ladder's losses, promise the full run's, and check it against the promise.

Importing this package loads no jax, ray, wandb or matplotlib.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from analysis.designs import Design, design
from analysis.fitting import ScalingFit, fit
from analysis.forecasts import Forecast, forecast
from analysis.frame import AnalysisError, EvalsError, Notice
from analysis.replanning import replan

if TYPE_CHECKING:
    from analysis.monitor import Monitor, replay

__all__ = [
    "AnalysisError",
    "Design",
    "EvalsError",
    "Forecast",
    "Monitor",
    "Notice",
    "ScalingFit",
    "design",
    "fit",
    "forecast",
    "replan",
    "replay",
]


def __getattr__(name: str):
    if name in ("Monitor", "replay"):
        return getattr(import_module("analysis.monitor"), name)
    raise AttributeError(f"module 'analysis' has no attribute {name!r}")
