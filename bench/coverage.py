"""The public ladders' figures, beside the usual fits: python -m bench.coverage [--worlds F] [--figures D]

Reads the tables at LADDER_PUBLIC_DATA. One table of final losses (a row a set and method), one of
trajectories, and the synthetic worlds where `python -m bench.worlds FILE` has written them.
The last line is JSON.
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import pandas as pd

import analysis
from analysis.backtests import OURS, Backtest, backtest, pooled
from analysis.fitting import NOISY
from analysis.laws import COMPUTE
from analysis.posterior import solve
from analysis.priors import load_prior
from analysis.tables import from_runs

OLMO = ["3B-1xC", "3B-5xC", "3B-10xC", "peteish7_eval_anneal", "peteish13_eval_final"]
UNTUNED = ["rw/base/short/kaplan", "rw/base/short/chinchilla", "owt2/base/short/chinchilla"]
MARIN_FLOOR = {"E": {"mean": 1.5, "sd": 0.25}}  # of its macro loss, forecasting.md section 3


def runs(data: Path, name: str) -> pd.DataFrame:
    return from_runs(pd.read_csv(data / name / "runs.csv")).drop(
        columns=["schedule", "batch"], errors="ignore"
    )


def finals(data: Path) -> Backtest:
    """The splits of section 4 on final losses, each a ladder."""
    olmo = runs(data, "olmo_ladder")
    olmo = olmo[(olmo["role"] == "fit") | olmo["run"].isin(OLMO)].drop(columns="peak_lr")
    tests = [backtest(olmo, OLMO, law="joint", name="olmo")]

    points = runs(data, "chinchilla_epoch")
    deep = points["tokens"] / points["params_active"] >= 5
    points = points[(deep & (points["flops"] < 3e20)) | (points["flops"] >= 2e21)]
    tests.append(backtest(points, 1e21, law="joint", name="chinchilla"))

    table = runs(data, "datablations")
    table = table[(table["metric"] == "openLM_loss") & (table["epochs"] <= 1.05)]
    table = table[(table["flops"] <= 3.1e20) | table["run"].isin(["contour028", "contour034"])]
    tests.append(backtest(table, 1e21, law="joint", name="datablations"))

    grid = runs(data, "isoflop_discrepancy")
    grid = grid[(grid["flops"] <= 4.1e17) | (grid["flops"] >= 6e18)]
    for family in ("rw/tuned/short/const", "owt2/tuned/short/const", *UNTUNED):
        rows = grid[grid["family"] == f"{family}/params=standard"]
        tests.append(backtest(rows, 6e17, name=family))
    return pooled(tests)


def trajectories(data: Path) -> tuple[list[dict], dict[str, analysis.Forecast]]:
    """Marin: d2048 from three rungs, the first quarter of the 535B run from four, frozen and updated."""
    evals = pd.read_csv(data / "marin_ladder" / "evals.csv")
    quarter = pd.read_csv(data / "marin_ladder" / "target_first_quarter.csv")
    top = evals[evals["run"] == "d2048"]
    three = analysis.fit(evals[evals["run"] != "d2048"], prior=MARIN_FLOOR)
    four = analysis.fit(evals, prior=MARIN_FLOOR)
    began = time.perf_counter()
    frozen = analysis.forecast(four, quarter.drop(columns="loss"))
    took = time.perf_counter() - began
    found = {
        "d2048": (analysis.forecast(three, top.drop(columns="loss")), top, 0.0),
        "d2048, shape": (analysis.forecast(three, top.drop(columns="loss"), trajectory="shape"), top, 0.0),
        "535B": (frozen, quarter, 0.05),
        "535B, shape": (
            analysis.forecast(four, quarter.drop(columns="loss"), trajectory="shape"),
            quarter,
            0.05,
        ),
        "535B, updated to 10 %": (frozen.update(quarter[quarter["progress"] <= 0.1]), quarter, 0.1),
    }
    rows = [track(name, *each) for name, each in found.items()]
    for low in (0.05, 0.10, 0.15, 0.20):
        rows.append(track(f"535B, {low:.0%} to {low + 0.05:.0%}", frozen, quarter, low, low + 0.05))
    rows.append(by_progress(evals, quarter))
    rows[2]["seconds"] = round(took, 2)
    return rows, {name: each[0] for name, each in found.items()}


def track(
    name: str, forecast: analysis.Forecast, landed: pd.DataFrame, low: float, high: float = 1.0
) -> dict:
    """Errors in nats of a forecast on the landed evaluations with progress in [low, high)."""
    both = forecast.frame((0.9,)).merge(landed[["step", "loss"]], on="step")
    both = both[(both["progress"] >= low) & (both["progress"] < high)]
    error, loss = both["median"] - both["loss"], both["loss"]
    return {
        "what": name,
        "law": forecast.payload["trajectory"]["law"],
        "points": len(both),
        "mean_error": float(error.abs().mean()),
        "bias": float(error.mean()),
        "inside": float(((loss >= both["lo90"]) & (loss <= both["hi90"])).mean()),
        "whole_curve_inside": bool(((loss >= both["sim_lo90"]) & (loss <= both["sim_hi90"])).all()),
        "half_width": float(((both["hi90"] - both["lo90"]) / 2).mean()),
    }


def by_progress(evals: pd.DataFrame, quarter: pd.DataFrame) -> dict:
    """The public method: log(L - 1.5) on log C by least squares at matched progress. Its final law is from
    the three finished rungs."""
    done = evals[evals["run"] != "d2048"].groupby("run").tail(1)
    slope, cut = np.polyfit(np.log(done["flops"]), np.log(done["loss"] - 1.5), 1)
    target = float(quarter["flops"].iloc[-1] / quarter["progress"].iloc[-1])
    errors = []
    for row in quarter[quarter["progress"].between(0.05, 0.1)].itertuples():
        at = [
            (
                np.log(part["flops"].iloc[-1] / part["progress"].iloc[-1]),
                np.interp(row.progress, part["progress"], part["loss"]),
            )
            for _, part in evals.groupby("run")
        ]
        line = np.polyfit([c for c, _ in at], [np.log(loss - 1.5) for _, loss in at], 1)
        errors.append(1.5 + np.exp(np.polyval(line, np.log(target))) - row.loss)
    return {
        "what": "535B, public method, 5% to 10%",
        "law": "log(L - 1.5) on log C",
        "points": len(errors),
        "mean_error": float(np.mean(np.abs(errors))),
        "bias": float(np.mean(errors)),
        "A": float(np.exp(cut)),
        "alpha": float(-slope),
        "final": float(1.5 + np.exp(cut + slope * np.log(target))),
    }


def seconds(data: Path) -> float:
    """Of one final law and its band: eight rungs of a public ladder, the best of five."""
    grid = runs(data, "isoflop_discrepancy")
    rows = analysis.isoflop_minima(grid[grid["family"] == "rw/tuned/short/const/params=standard"])
    rows["rung"], prior, times = rows["run"], load_prior(), []
    for _ in range(5):
        began = time.perf_counter()
        solve(COMPUTE, rows, prior, "nats/token").predictive(pd.DataFrame({"flops": [1e21]}))[0].quantile(
            0.95
        )
        times.append(time.perf_counter() - began)
    return min(times)


def ratios(test: Backtest) -> dict[str, float]:
    """Geometric mean over the unflagged ladders of our interval score over each baseline's."""
    table = test.coverage(by=["ladder", "flagged"])
    table = table[~table["flagged"] & (table["method"] != OURS)]
    return {name: float(np.exp(np.log(part["score_ratio"]).mean())) for name, part in table.groupby("method")}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", help="what `python -m bench.worlds FILE` has written")
    parser.add_argument("--figures", help="folder for figures")
    options = parser.parse_args()
    data = Path(os.environ["LADDER_PUBLIC_DATA"])
    test = finals(data)
    table = test.coverage(by=["ladder", "flagged"])
    ways, forecasts = trajectories(data)
    print(
        table.round(4).to_string(index=False),
        "",
        pd.DataFrame(ways).round(4).to_string(index=False),
        sep="\n",
    )
    print("", test.summary(), sep="\n")
    result = {
        "noisy_above": NOISY,
        "sets": json.loads(table.to_json(orient="records")),
        "score_ratio": ratios(test),
        "overall": json.loads(test.coverage(by=["flagged"]).to_json(orient="records")),
        "trajectories": ways,
        "final_law_s": round(seconds(data), 3),
    }
    if options.worlds:
        from bench.worlds import summary

        found = summary(Path(options.worlds))
        print("", found.round(3).to_string(index=False), sep="\n")
        result["worlds"] = json.loads(found.to_json(orient="records"))
    if options.figures:
        from analysis.page.plots import coverage_plot, save, scaling_plot, trajectory_plot

        folder = Path(options.figures)
        quarter = pd.read_csv(data / "marin_ladder" / "target_first_quarter.csv")
        save(coverage_plot(test), folder / "coverage.png")
        save(
            trajectory_plot(forecasts["535B"], quarter[quarter["progress"] >= 0.05]),
            folder / "marin_535b.png",
        )
        save(scaling_plot(forecasts["535B"]), folder / "marin_scaling.png")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
