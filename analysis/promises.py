"""What a forecast says, as plain values: the law's final loss, the bands on the way, and all that is needed
to say it again. `promise` computes it, `repeated` computes it once more from what it holds."""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import pandas as pd
import scipy

import ladder
from analysis import clock, trajectory
from analysis.fitting import FARTHEST, TRANSFER, ScalingFit, fit
from analysis.frame import AnalysisError, EvalsError, Notice, as_rows, table
from analysis.posterior import Mixture
from analysis.targets import Target

FORMAT = "scaling-ladder forecast 3"
LEVELS = (0.5, 0.9, 0.99)
SIDES = ("lo", "hi", "sim_lo", "sim_hi")
CURVE_POINTS = 33  # of the law in the artefact, for a plot
WAYS = ("auto", "clock", "shape")
LONGER = 2.0  # target steps over every rung's from which matched progress misleads
REGIME_KINDS = (
    "mixture",
    "context",
    "transport",
    "weight_decay",
    "decay",
    "batch",
)  # events that end a regime


def promise(
    found: ScalingFit, aim: Target, regime: Mapping[str, str] | None, way: str = "auto", own: Any = None
) -> dict[str, Any]:
    """The payload of a forecast of `aim`. way: the law on the way to the end; own: rows of the target itself,
    which condition it. Raises EvalsError, AnalysisError: unknown_trajectory, clock_unusable, no_curves."""
    data = trajectory.curves(found)
    points, notices = _points(aim, data)
    notices += _place(aim, found)
    chosen, why = _way(way, found, aim, data)
    progress = points["progress"].to_numpy()
    final, samples = _samples(chosen, found, aim, data, progress, own)
    median = np.median(samples, axis=0)
    if final:
        median[-1] = final.quantile(0.5)
    used = found.top_flops if data is None else float(found.evals.rows["flops"].max())
    bands = {}
    if aim.flops <= FARTHEST * used:
        bands = {str(level): _band(samples, final, level) for level in LEVELS}
    else:
        text = f"the target is {aim.flops / used:.0f}x the largest FLOPs used (over {FARTHEST:.0f}x): no band"
        notices.append(Notice("point_only", "warning", text))
    payload = {
        "format": FORMAT,
        "condition": TRANSFER,
        "metric": found.metric,
        "unit": found.unit,
        "target": {
            "run": aim.run,
            "flops": aim.flops,
            "steps": _counts([aim.steps])[0],
            "tokens": _counts([aim.tokens])[0],
            "params_active": _known(aim.params_active),
            "peak_lr": _known(aim.peak_lr),
            "times": aim.flops / found.top_flops,
        },
        "law": _law(found, aim),
        "trajectory": data
        and {
            "law": chosen, "why": why, "asked": way, "grid": data.x.tolist(), "noise": data.noise,
            "seed": trajectory.SEED,
        },
        "prior": found.prior,
        "evals": as_rows(found.evals.rows),
        "own": None if own is None else as_rows(own),
        "grid": {
            "step": _counts(points["step"]),
            "tokens": _counts(points["tokens"]),
            "progress": progress.tolist(),
            "median": median.tolist(),
        },
        "bands": bands,
        "regime": dict(regime or {}),
        "notices": [[n.code, n.severity, n.text] for n in (*found.warnings, *notices)],
        "versions": {
            "scaling-ladder": ladder.__version__,
            "numpy": np.__version__,
            "scipy": scipy.__version__,
        },
    }  # fmt: skip
    return json.loads(json.dumps(payload, allow_nan=False))  # plain JSON values, as after a load


def repeated(payload: Mapping[str, Any], own: Any = None) -> dict[str, Any]:
    """The payload computed again from its own table, prior, target and regime; with own, the rows of the
    target so far, conditioned on them."""
    target, grid, law = payload["target"], payload["grid"], payload["law"]
    found = fit(payload["evals"], prior=payload["prior"], law=law["asked"], unit=payload["unit"])
    rows = pd.DataFrame({"progress": grid["progress"], "step": grid["step"], "tokens": grid["tokens"]})
    size = {name: np.nan if target[name] is None else target[name] for name in ("steps", "tokens")}
    more = {name: np.nan if target[name] is None else target[name] for name in ("params_active", "peak_lr")}
    aim = Target(target["run"], target["flops"], **size, **more, points=rows.astype(float))
    way = payload["trajectory"]["asked"] if payload["trajectory"] else "auto"
    if own is None and payload["own"]:
        own = table(payload["own"], ())
    again = promise(found, aim, payload["regime"], way, own)
    early = [notice for notice in payload["notices"] if notice[0] == "early_rows"]
    kept = {"updates": payload["updates"]} if "updates" in payload else {}
    return {**again, **kept, "notices": again["notices"] + early}


def own_rows(payload: Mapping[str, Any], rows: Any, events: Any = None) -> pd.DataFrame:
    """The target's own evaluations that a forecast can be updated with: step, tokens, progress, loss, within
    its grid and before any event that ends its regime. Raises EvalsError,
    AnalysisError(nothing_to_update)."""
    if hasattr(rows, "to_dict"):
        rows = rows.to_dict("records")
    rows = [{"run": payload["target"]["run"], **row} for row in rows]
    rows = [{**row, "loss": row.get("loss", row.get("eval_loss"))} for row in rows]
    rows = [row for row in rows if row["loss"] is not None and not pd.isna(row["loss"])]
    if not rows:
        raise AnalysisError("nothing_to_update", "no row has a loss or an eval_loss")
    found = table(rows, ("run", "step", "loss")).sort_values("step", kind="stable")
    steps, tokens = payload["target"]["steps"], payload["target"]["tokens"]
    if steps is None or tokens is None:
        text = "the forecast does not know its target's steps and tokens"
        raise AnalysisError("nothing_to_update", text)
    ends = [event["step"] for event in events or () if event["kind"] in REGIME_KINDS]
    found["progress"] = found["step"] / steps
    found["tokens"] = found["progress"] * tokens
    first = payload["grid"]["progress"][0] * (1 - trajectory.NEAR)
    kept = found[(found["progress"] >= first) & (found["step"] < min(ends, default=np.inf))]
    if not len(kept):
        text = (
            f"none of {len(found)} rows lies between progress {first:.3g}, the forecast's first, and the "
            "first change of regime"
        )
        raise AnalysisError("nothing_to_update", text)
    if kept["progress"].max() > 1.001:
        raise EvalsError("progress_percent", f"step {kept['step'].max():g} is beyond the planned {steps}")
    return kept[["run", "step", "tokens", "progress", "loss"]].reset_index(drop=True)


def _way(way: str, found: ScalingFit, aim: Target, data: Any) -> tuple[str, str]:
    """The law on the way, and why."""
    if way not in WAYS:
        raise AnalysisError("unknown_trajectory", f"trajectory={way!r} is not one of {', '.join(WAYS)}")
    rows = found.evals.rows
    known = data is not None and clock.usable(rows)
    known = known and bool(np.isfinite([aim.steps, aim.tokens, aim.params_active]).all())
    if way == "clock" and not known:
        raise AnalysisError(
            "clock_unusable",
            "the clock needs step, tokens, params_active and progress of every evaluation and of the target",
        )
    if way != "auto":
        return way, "asked for"
    if not known:
        return "shape", "step, tokens or params_active are not known of every evaluation and of the target"
    last = rows.groupby("run").tail(1)
    longest = float((last["step"] / last["progress"]).max())
    times = aim.steps / longest
    if times <= LONGER:
        return (
            "shape",
            f"the target takes {times:.3g}x the steps of the longest rung: progress can be matched",
        )
    if found.unit != "nats/token":
        return "shape", f"the clock's prior is about nats a token, the unit is {found.unit}"
    return "clock", f"the target takes {times:.3g}x the steps of the longest rung: matched progress is biased"


def _samples(
    chosen: str, found: ScalingFit, aim: Target, data: Any, progress: np.ndarray, own: Any
) -> tuple[Mixture | None, np.ndarray]:
    """The final law, where the band ends in it, and joint draws (DRAWS, len(progress))."""
    if chosen == "clock" and data is not None:
        return None, _clock_samples(found, aim, data.noise, progress, own)
    final = found.predictive(aim.size())[0]
    u = float(np.log10(aim.flops / found.top_flops))
    if own is None:
        return final, trajectory.draws(data, final, u, progress)
    if data is None:
        raise AnalysisError(
            "no_curves", "the rungs' table has final losses only: rows on the way tell nothing"
        )
    seen = own["progress"].to_numpy()
    both = np.concatenate([seen, progress])
    samples = trajectory.draws(data, final, u, both)
    return None, trajectory.conditioned(samples, own["loss"].to_numpy())


def _clock_samples(
    found: ScalingFit, aim: Target, noise: float, progress: np.ndarray, own: Any
) -> np.ndarray:
    rows = clock.thinned(found.evals.rows)
    ref = clock.reference(rows)
    known = clock.points(rows, ref)
    run = int(known.run.max()) + 1
    if own is not None:
        mine = clock.points(aim.rows(own), ref, start=run)
        known = clock.Points(
            *(np.concatenate([getattr(known, f.name), getattr(mine, f.name)]) for f in fields(known))
        )
    posterior = clock.solve(known, ref, noise, found.prior, found.unit)
    whole = pd.DataFrame(
        {"progress": progress, "step": progress * aim.steps, "tokens": progress * aim.tokens}
    )
    return clock.draws(posterior, clock.points(aim.rows(whole), ref, start=run))


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


def _place(aim: Target, found: ScalingFit) -> list[Notice]:
    smallest = float(found.final["flops"].min())
    if aim.flops < smallest:
        text = f"the target has {aim.flops:.3g} FLOPs, the smallest rung {smallest:.3g}: below the ladder"
        return [Notice("target_below_rungs", "warning", text)]
    if aim.flops < found.top_flops:
        text = f"the target has {aim.flops:.3g} FLOPs, the largest rung {found.top_flops:.3g}: interpolated"
        return [Notice("target_inside_rungs", "note", text)]
    return []


def _band(samples: np.ndarray, final: Mixture | None, level: float) -> dict[str, list[float]]:
    """Bands from the draws; where the final law ends them, its own to the last digit."""
    found = trajectory.band(samples, level)
    if final:
        found.lo[-1], found.hi[-1] = final.quantile((1 - level) / 2), final.quantile((1 + level) / 2)
    sim_lo, sim_hi = np.minimum(found.lo, found.sim_lo), np.maximum(found.hi, found.sim_hi)
    return {k: v.tolist() for k, v in zip(SIDES, (found.lo, found.hi, sim_lo, sim_hi), strict=True)}


def _law(found: ScalingFit, aim: Target) -> dict[str, Any]:
    """What a reader needs to redraw and judge the law without refitting it."""
    smallest, size = found.final.iloc[0], aim.size()
    line = pd.DataFrame(
        {
            name: np.geomspace(smallest[name], size[name].iloc[0], CURVE_POINTS)
            for name in found.posterior.law.columns
        }
    )
    curve = found.predictive(line)
    points = found.parameters()
    return {
        "name": found.law,
        "asked": found.asked,
        "equation": found.posterior.law.equation,
        "why": found.why,
        "grade": found.grade,
        "E": list(points["E"]),
        "exponents": {name: points[name][1] for name in found.posterior.law.exponents},
        "noise": found.posterior.noise,
        "shares": found.posterior.variance_shares(size),
        "runs": as_rows(found.frame()),
        "curve": {
            "flops": line["flops"].tolist(),
            "median": [mixture.quantile(0.5) for mixture in curve],
            "lo90": [mixture.quantile(0.05) for mixture in curve],
            "hi90": [mixture.quantile(0.95) for mixture in curve],
        },
    }


def _counts(values: Any) -> list[int | None]:
    return [None if np.isnan(v) else round(v) for v in values]


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
