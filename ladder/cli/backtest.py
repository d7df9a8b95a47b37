"""ladder backtest TABLE: predict runs whose losses are known, and count how often the band held."""

import argparse
import json


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", help="CSV with one row an evaluation: run, flops, loss, ...")
    parser.add_argument("--unit", help="nats/token, bits/byte or other")
    parser.add_argument(
        "--hold-out",
        metavar="RUNS",
        help="runs to predict from all others, a,b,c; or FLOPs above which runs are predicted from those "
        "below; without it every rung from the fourth on is predicted from the smaller ones",
    )
    parser.add_argument("--level", type=float, default=0.9, help="of the bands (default: 0.9)")
    parser.add_argument("--figure", metavar="FILE", help="write the bands and what landed, as PNG or SVG")
    parser.add_argument("--json", action="store_true", help="one line of JSON: methods, rows, skipped")


def main(options: argparse.Namespace) -> int:
    import analysis
    from analysis.tables import from_runs, read_csv
    from ladder.cli.fit import rows

    found = analysis.backtest(
        from_runs(read_csv(options.table)), held_out(options.hold_out), options.level, options.unit
    )
    if options.figure:
        from analysis.page.plots import coverage_plot, save

        save(coverage_plot(found), options.figure)
    if options.json:
        methods = rows(found.coverage())
        print(json.dumps({"methods": methods, "rows": rows(found.frame()), "skipped": found.skipped}))
    else:
        print(found.summary())
    return 0


def held_out(said: str | None) -> list[str] | float | None:
    """Names, or FLOPs where the word reads as a number."""
    if said is None:
        return None
    try:
        return float(said)
    except ValueError:
        return [name.strip() for name in said.split(",")]
