"""The page's three main figures as PNG files. matplotlib is imported when they are drawn."""

from pathlib import Path
from typing import Any

from analysis.frame import AnalysisError
from analysis.page.gather import gather
from ladder.store import Store

FORECAST, OBSERVED, RUNGS = "#1c5fc4", "#15171c", "#7d8591"  # blue, ink, grey: told apart by lightness alone
SHADES = {99: 0.09, 90: 0.16, 50: 0.24}
EARLY = 0.095  # before this share of a run the loss falls so fast that it would flatten the rest


def figures(store: Store, folder: str | Path) -> list[str]:
    """Draw scaling.png, trajectory.png and residuals.png into `folder`; return the paths of those that exist.

    A figure whose data is not there yet (no finished rung, no evaluation, no forecast) is left out.
    """
    data = gather(store)
    Path(folder).mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw in {"scaling": scaling, "trajectory": trajectory, "residuals": residuals}.items():
        figure, (axes,) = canvas(1)
        if draw(axes, data):
            if axes.get_legend_handles_labels()[1]:
                figure.legend(loc="outside lower center", ncols=6, frameon=False, fontsize=9)
            axes.set_title(
                _plain(f"{data['ladder']['name']}: {data['headline']['title']}"), loc="left", fontsize=11
            )
            path = Path(folder) / f"{name}.png"
            figure.savefig(path)
            written.append(str(path))
    return written


def canvas(panels: int) -> tuple[Any, list[Any]]:
    """An empty figure and its axes, side by side. Raises AnalysisError(no_matplotlib)."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise AnalysisError(
            "no_matplotlib", "figures are drawn by matplotlib: pip install 'scaling-ladder[demo]'"
        ) from None

    figure = Figure(figsize=(max(7, 3.2 * panels), 4.2), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(1, panels, squeeze=False, sharey=panels > 2)[0])
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.grid(color="#ecedeb", linewidth=0.8)
        each.set_axisbelow(True)
    return figure, axes


def scaling(axes: Any, data: dict[str, Any]) -> bool:
    """Final losses over training FLOPs, the law with its 90 % band, the target."""
    done = [run for run in data["runs"] if run["finished"]]
    rungs = [run for run in done if run["role"] != "target"]
    if not rungs:
        return False
    forecast = data["forecast"]
    if forecast:
        curve = {name: _floats(column) for name, column in forecast["scaling"].items()}
        axes.fill_between(
            curve["flops"],
            curve["lo90"],
            curve["hi90"],
            color=FORECAST,
            alpha=SHADES[90],
            lw=0,
            label="90 % band",
        )
        axes.plot(curve["flops"], curve["median"], color=FORECAST, label="law")
    style = {"marker": "o", "ls": "", "mfc": "white"}
    axes.plot(
        [r["flops"] for r in rungs], [r["loss"] for r in rungs], color=RUNGS, label="rung runs", **style
    )
    for run in done:
        if run["role"] == "target":
            axes.plot(run["flops"], run["loss"], color=OBSERVED, marker="D", ls="", label=_plain(run["run"]))
    axes.set_xscale("log")
    axes.set_xlabel("training FLOPs")
    axes.set_ylabel(f"final loss, {data['unit']}")
    return True


def trajectory(axes: Any, data: dict[str, Any]) -> bool:
    """Held-out loss over tokens: rungs, the forecast's bands, the target's evaluations."""
    from matplotlib.ticker import EngFormatter

    begun = [run for run in data["runs"] if run["evals"]["loss"]]
    if not begun:
        return False
    shown: list[float] = []
    if data["forecast"]:
        bands = {name: _floats(column) for name, column in data["forecast"]["bands"].items()}
        for level, alpha in SHADES.items():
            low, high = bands[f"lo{level}"], bands[f"hi{level}"]
            axes.fill_between(
                bands["tokens"], low, high, color=FORECAST, alpha=alpha, lw=0, label=f"{level} %"
            )
        axes.plot(bands["tokens"], bands["median"], color=FORECAST, label="forecast")
        shown += _late(bands["progress"], bands["lo99"]) + _late(bands["progress"], bands["hi99"])
    for run in begun:
        target = run["role"] == "target"
        evals = run["evals"]
        style = {"color": OBSERVED, "marker": "o", "ms": 3.5} if target else {"color": RUNGS, "lw": 0.8}
        name = _plain(run["run"]) if target else "_"
        axes.plot(evals["tokens"], evals["loss"], label=name, **style)
        if target or not data["forecast"]:
            shown += _late(evals["progress"], evals["loss"])
    if shown := [value for value in shown if value == value]:
        margin = 0.05 * (max(shown) - min(shown))
        axes.set_ylim(min(shown) - margin, max(shown) + margin)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel("tokens")
    axes.set_ylabel(f"held-out loss, {data['unit']}")
    return True


def residuals(axes: Any, data: dict[str, Any]) -> bool:
    """Percent from the forecast over progress, with the bands."""
    if data["forecast"] is None:
        return False
    bands = {name: _floats(column) for name, column in data["forecast"]["bands"].items()}
    percent = [100 * p for p in bands["progress"]]

    def relative(name: str) -> list[float]:
        return [100 * (v / m - 1) for v, m in zip(bands[name], bands["median"], strict=True)]

    for level, alpha in SHADES.items():
        low, high = relative(f"lo{level}"), relative(f"hi{level}")
        axes.fill_between(percent, low, high, color=FORECAST, alpha=alpha, lw=0, label=f"{level} %")
    for side, label in (("sim_hi90", "90 % for the whole curve"), ("sim_lo90", "_")):
        axes.plot(percent, relative(side), color=FORECAST, lw=1, ls="--", label=label)
    axes.axhline(0, color=FORECAST, lw=1.2)
    if target := data["target"]:
        x = [100 * p for p in target["residual"]["progress"]]
        axes.plot(
            x, target["residual"]["percent"], color=OBSERVED, marker="o", ms=4, label=_plain(target["run"])
        )
    axes.set_xlabel("progress of the run, %")
    axes.set_ylabel("percent from the forecast")
    return True


def _late(progress: list[float], values: list[float]) -> list[float]:
    """The values that decide the vertical range."""
    return [v for p, v in zip(progress, values, strict=True) if p >= EARLY]


def _floats(column: list[Any]) -> list[float]:
    return [float("nan") if value is None else float(value) for value in column]


def _plain(text: str) -> str:
    """A name as it is: matplotlib reads $ as mathematics, and hides labels that begin with an underscore."""
    return text.replace("$", r"\$")
