"""ladder fit TABLE [--target TABLE]: the scaling law of a table of evaluations, and a forecast from it."""

import argparse
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    import analysis


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", help="CSV with one row an evaluation: run, flops, loss, ...")
    parser.add_argument("--unit", help="nats/token, bits/byte or other")
    parser.add_argument(
        "--target", metavar="TABLE", help="CSV with the target's points: the same without loss"
    )
    parser.add_argument(
        "--json", action="store_true", help="one line of JSON: law, E, g, runs, warnings, forecast"
    )


def main(options: argparse.Namespace) -> int:
    import analysis
    from analysis.tables import read_csv

    found = analysis.fit(read_csv(options.table), unit=options.unit)
    promise = analysis.forecast(found, read_csv(options.target)) if options.target else None
    if options.json:
        print(json.dumps(as_values(found) | ({"forecast": promised(promise)} if promise else {})))
    else:
        print((promise or found).summary())
    return 0


def as_values(found: "analysis.ScalingFit") -> dict:
    """The fit as plain values: E (loss units) and the exponents with their 90 % intervals, the runs."""
    points = ("lo90", "median", "hi90")
    return {
        "law": found.law,
        "equation": found.posterior.law.equation,
        "unit": found.unit,
        "grade": found.grade,
        **{name: dict(zip(points, each, strict=True)) for name, each in found.parameters().items()},
        "noise": found.posterior.noise,
        "runs": rows(found.frame()),
        "warnings": [vars(notice) for notice in found.warnings],
    }


def promised(promise: "analysis.Forecast") -> dict:
    return {
        "sha256": promise.sha256,
        "rows": rows(promise.frame()),
        "warnings": [vars(notice) for notice in promise.warnings],
    }


def rows(frame: "pd.DataFrame") -> list[dict]:
    """A dict a row, NaN as None."""
    return json.loads(frame.to_json(orient="records", double_precision=15))
