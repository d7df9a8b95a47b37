"""ladder fit TABLE [--target TABLE]: the scaling law of a table of evaluations, and a forecast from it."""

import argparse


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", help="CSV with one row an evaluation: run, flops, loss, ...")
    parser.add_argument("--unit", help="nats/token, bits/byte or other")
    parser.add_argument(
        "--target", metavar="TABLE", help="CSV with the target's points: the same without loss"
    )
    parser.add_argument("--json", action="store_true", help="the table of numbers as JSON")


def main(options: argparse.Namespace) -> int:
    import analysis

    found = analysis.fit(read_table(options.table), unit=options.unit)
    answer = analysis.forecast(found, read_table(options.target)) if options.target else found
    print(answer.frame().to_json(orient="records") if options.json else answer.summary())
    return 0


def read_table(path: str):
    """A CSV as a frame; what cannot be read is a SpecError that names the file."""
    import pandas as pd

    from ladder.values import SpecError

    try:
        return pd.read_csv(path)
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}: give a CSV file") from None
    except pd.errors.EmptyDataError:
        raise SpecError(f"{path} is empty: give a header and one row an evaluation") from None
    except ValueError as error:
        raise SpecError(f"{path} is no CSV text: {error}") from None
