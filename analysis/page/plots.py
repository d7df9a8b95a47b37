"""Figures of fits, forecasts and back-tests for papers: PNG or SVG by the file's name. matplotlib is imported
when one is drawn."""

from pathlib import Path
from typing import Any

import numpy as np

from analysis.artefact import Forecast
from analysis.backtests import OURS, Backtest
from analysis.fitting import ScalingFit
from analysis.page.figures import FORECAST, OBSERVED, RUNGS, SHADES, canvas


def save(figure: Any, path: str | Path) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def coverage_plot(test: Backtest) -> Any:
    """Each method's band less what landed, in per cent of the loss, over the reach of the extrapolation."""
    methods = list(dict.fromkeys(test.rows["method"]))
    figure, panels = canvas(len(methods))
    for axes, method in zip(panels, methods, strict=True):
        rows = test.rows[test.rows["method"] == method]
        inside = rows["inside"].to_numpy(bool)
        lo, hi, middle = (100 * (rows[c] / rows["loss"] - 1).to_numpy() for c in ("lo", "hi", "median"))
        times = rows["times"].to_numpy()
        for mask, colour in ((inside, FORECAST), (~inside, OBSERVED)):
            axes.vlines(times[mask], lo[mask], hi[mask], color=colour, alpha=0.35, linewidth=2)
            axes.plot(times[mask], middle[mask], ".", color=colour, markersize=4)
        axes.axhline(0, color=RUNGS, linewidth=1)
        axes.set_xscale("log")
        axes.set_title(f"{method}: {inside.sum()} of {len(rows)} inside", loc="left", fontsize=9)
        axes.set_xlabel("FLOPs over the largest fitted run")
    ours = test.rows[test.rows["method"] == OURS]
    ends = ours[["lo", "hi"]].to_numpy() / ours[["loss"]].to_numpy() - 1
    widest = float(np.abs(ends).max())
    panels[0].set_ylim(-150 * widest, 150 * widest)
    panels[0].set_ylabel(f"{100 * test.level:g} % band less the loss, %")
    return figure


def scaling_plot(forecast: Forecast, landed: float | None = None) -> Any:
    """The rungs' losses over FLOPs, the law with its 90 % band up to the target, and where it landed."""
    figure, (axes,) = canvas(1)
    curve, rungs = forecast.scaling(), forecast.rungs()
    axes.fill_between(
        curve["flops"], curve["lo90"], curve["hi90"], color=FORECAST, alpha=0.18, label="90 % band"
    )
    axes.plot(curve["flops"], curve["median"], color=FORECAST, label="median")
    axes.plot(rungs["flops"], rungs["loss"], "o", color=RUNGS, label="rungs")
    if landed is not None:
        axes.plot(curve["flops"].iloc[-1], landed, "D", color=OBSERVED, label="target")
    axes.set(xscale="log", xlabel="training FLOPs", ylabel=f"{forecast.metric}, {forecast.unit}")
    axes.legend(frameon=False)
    return figure


def trajectory_plot(forecast: Forecast, landed: Any = None) -> Any:
    """The bands over progress, and the target's own evaluations (progress, loss) where given."""
    figure, (axes,) = canvas(1)
    frame = forecast.frame()
    for level, alpha in SHADES.items():
        label = f"{level} % band"
        axes.fill_between(
            frame["progress"],
            frame[f"lo{level}"],
            frame[f"hi{level}"],
            color=FORECAST,
            alpha=alpha,
            label=label,
        )
    for side in ("sim_lo90", "sim_hi90"):
        label = "90 % whole curve" if side == "sim_lo90" else None
        axes.plot(frame["progress"], frame[side], ":", color=FORECAST, label=label)
    axes.plot(frame["progress"], frame["median"], color=FORECAST, label="median")
    if landed is not None:
        axes.plot(landed["progress"], landed["loss"], ".", color=OBSERVED, label=forecast.run)
    axes.set(xscale="log", xlabel="progress", ylabel=f"{forecast.metric}, {forecast.unit}")
    axes.legend(frameon=False, fontsize=8)
    return figure


def residual_plot(fit: ScalingFit) -> Any:
    """Residuals of the runs, and each rung against what the others predict."""
    figure, (left, right) = canvas(2)
    frame = fit.frame()
    left.plot(frame["flops"], 100 * frame["residual"], "o", color=RUNGS)
    left.set(xscale="log", xlabel="training FLOPs", ylabel="loss over the law - 1, %")
    right.plot(frame["flops"], frame["z"], "o", color=RUNGS)
    right.set(xscale="log", xlabel="training FLOPs", ylabel="z of the rung left out")
    for axes in (left, right):
        axes.axhline(0, color=FORECAST, linewidth=1)
    return figure
