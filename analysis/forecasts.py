"""forecast: a fit and a target in, a frozen promise about the target's whole curve out."""

from collections.abc import Mapping
from typing import Any

from analysis.artefact import Forecast
from analysis.fitting import ScalingFit
from analysis.promises import promise
from analysis.targets import read_target


def forecast(
    fit: ScalingFit, target: Any, regime: Mapping[str, str] | None = None, trajectory: str = "auto"
) -> Forecast:
    """Forecast one run, whole curve, given that the recipe transfers.

    target: a ladder.RunSpec, or a table of one run: columns run, flops (spent so far) and, where known, step,
    tokens, progress, params_active, peak_lr. Several rows are the grid (progress 1 is added); one row of
    progress 1 takes the rungs'. regime: hashes of what the forecast is valid for (recipe, data, evaluation).
    trajectory: "shape" (the rungs' curves at matched progress, ending in the final law), "clock" (the joint
    law in tokens and steps), or "auto": the clock where the target takes over twice the steps of every rung
    and losses are nats/token. Beyond 500x the largest FLOPs used it is a point, marked. Raises EvalsError,
    AnalysisError.
    """
    return Forecast(promise(fit, read_target(target, fit.unit), regime, trajectory))
