"""ladder plan FILE: what a ladder costs and what band it may expect, before money is spent."""

import argparse
import json

from ladder.loading import load


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="a Python file that declares LADDER, e.g. experiments/laptop.py")
    parser.add_argument("--json", action="store_true", help="one line of JSON")


def main(options: argparse.Namespace) -> int:
    from analysis.designs import design
    from analysis.frame import AnalysisError
    from ladder.planning import plan

    ladder = load(options.file)
    planned, expected, why = plan(ladder), None, ""
    try:
        expected = design(ladder)
    except AnalysisError as error:  # a ladder may be priced that no band can be expected of
        why = str(error)
    if options.json:
        band = {"design": expected and json.loads(expected.to_json()), "no_design": why}
        print(json.dumps(json.loads(planned.to_json()) | band))
    else:
        print(planned, expected or f"no band can be expected: {why}", sep="\n\n")
    return 2 if planned.problems else 0
