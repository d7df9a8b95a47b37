"""forecast: a fit and a target in, a frozen promise about the target's whole curve out."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import scipy

import ladder
from analysis import trajectory
from analysis.artefact import FORMAT, LEVELS, SIDES, Forecast
from analysis.fitting import FARTHEST, TRANSFER, ScalingFit
from analysis.frame import Notice, as_rows
from analysis.posterior import Mixture
from analysis.targets import Target, read_target

CURVE_POINTS = 33  # of the law in the artefact, for a plot


def forecast(fit: ScalingFit, target: Any, regime: Mapping[str, str] | None = None) -> Forecast:
    """Forecast one run, whole curve, given that the recipe transfers.

    target: a ladder.RunSpec, or a table of one run: columns run, flops (spent so far) and, where known, step,
    tokens, progress. Several rows are the grid (progress 1 is added); one row of progress 1 takes the rungs'.
    regime: hashes of what the forecast is valid for (recipe, data, evaluation).
    Beyond 500x the largest FLOPs used it is a point, marked. Raises EvalsError, AnalysisError.
    """
    aim = read_target(target, fit.unit)
    data = trajectory.curves(fit)
    points, notices = _points(aim, data)
    notices += _place(aim, fit)
    used = fit.top_flops if data is None else float(fit.evals.rows["flops"].max())
    progress = points["progress"].to_numpy()
    final = fit.predictive({"flops": [aim.flops]})[0]
    samples = trajectory.draws(data, final, np.log10(aim.flops / fit.top_flops), progress)
    median = np.median(samples, axis=0)
    median[-1] = final.quantile(0.5)
    bands = {}
    if aim.flops <= FARTHEST * used:
        bands = {str(level): _band(samples, final, level) for level in LEVELS}
    else:
        text = f"the target is {aim.flops / used:.0f}x the largest FLOPs used (over {FARTHEST:.0f}x): no band"
        notices.append(Notice("point_only", "warning", text))
    payload = {
        "format": FORMAT,
        "condition": TRANSFER,
        "metric": fit.metric,
        "unit": fit.unit,
        "target": {
            "run": aim.run,
            "flops": aim.flops,
            "steps": _counts([aim.steps])[0],
            "tokens": _counts([aim.tokens])[0],
            "times": aim.flops / fit.top_flops,
        },
        "law": _law(fit, aim.flops),
        "trajectory": data and {"grid": data.x.tolist(), "noise": data.noise, "seed": trajectory.SEED},
        "prior": fit.prior,
        "evals": as_rows(fit.evals.rows),
        "grid": {
            "step": _counts(points["step"]),
            "tokens": _counts(points["tokens"]),
            "progress": progress.tolist(),
            "median": median.tolist(),
        },
        "bands": bands,
        "regime": dict(regime or {}),
        "notices": [[n.code, n.severity, n.text] for n in (*fit.warnings, *notices)],
        "versions": {
            "scaling-ladder": ladder.__version__,
            "numpy": np.__version__,
            "scipy": scipy.__version__,
        },
    }
    return Forecast(json.loads(json.dumps(payload, allow_nan=False)))  # plain JSON values, as after a load


def _points(aim: Target, data: trajectory.Curves | None) -> tuple[pd.DataFrame, list[Notice]]:
    """The forecast's points of progress: the target's own, where the rungs say something about them."""
    if data is None:
        text = "the rungs' table has final losses only: no forecast of the way there"
        return aim.at(np.ones(1)), [Notice("final_only", "warning", text)]
    if aim.points is None:
        return aim.at(data.x), []
    early = aim.points["progress"] < data.x[0] * (1 - trajectory.NEAR)
    if not early.any():
        return aim.points, []
    text = (
        f"no forecast before progress {data.x[0]:.3g}: fewer than two rungs were evaluated that early "
        f"({early.sum()} of the target's rows)"
    )
    return aim.points[~early], [Notice("early_rows", "note", text)]


def _place(aim: Target, fit: ScalingFit) -> list[Notice]:
    smallest = float(fit.final["flops"].min())
    if aim.flops < smallest:
        text = f"the target has {aim.flops:.3g} FLOPs, the smallest rung {smallest:.3g}: below the ladder"
        return [Notice("target_below_rungs", "warning", text)]
    if aim.flops < fit.top_flops:
        text = f"the target has {aim.flops:.3g} FLOPs, the largest rung {fit.top_flops:.3g}: interpolated"
        return [Notice("target_inside_rungs", "note", text)]
    return []


def _band(samples: np.ndarray, final: Mixture, level: float) -> dict[str, list[float]]:
    """Bands from the draws; at progress 1 the pointwise one is the final law's own, to the last digit."""
    found = trajectory.band(samples, level)
    found.lo[-1], found.hi[-1] = final.quantile((1 - level) / 2), final.quantile((1 + level) / 2)
    sim_lo, sim_hi = np.minimum(found.lo, found.sim_lo), np.maximum(found.hi, found.sim_hi)
    return {k: v.tolist() for k, v in zip(SIDES, (found.lo, found.hi, sim_lo, sim_hi), strict=True)}


def _law(fit: ScalingFit, flops: float) -> dict[str, Any]:
    """What a reader needs to redraw and judge the law without refitting it."""
    line = np.geomspace(fit.final["flops"].min(), flops, CURVE_POINTS)
    found = fit.predictive({"flops": line})
    points = fit.parameters()
    return {
        "name": fit.law,
        "equation": fit.posterior.law.equation,
        "why": fit.why,
        "grade": fit.grade,
        "E": list(points["E"]),
        "exponents": {name: points[name][1] for name in fit.posterior.law.exponents},
        "noise": fit.posterior.noise,
        "shares": fit.posterior.variance_shares(pd.DataFrame({"flops": [flops]})),
        "runs": as_rows(fit.frame()),
        "curve": {
            "flops": line.tolist(),
            "median": [mixture.quantile(0.5) for mixture in found],
            "lo90": [mixture.quantile(0.05) for mixture in found],
            "hi90": [mixture.quantile(0.95) for mixture in found],
        },
    }


def _counts(values: Any) -> list[int | None]:
    return [None if np.isnan(v) else round(v) for v in values]
