"""ladder plan FILE: the table before money is spent."""

import argparse

from ladder.loading import load


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="a Python file that declares LADDER, e.g. experiments/laptop.py")
    parser.add_argument("--json", action="store_true", help="one line of JSON")


def main(options: argparse.Namespace) -> int:
    from ladder.planning import plan

    planned = plan(load(options.file))
    print(planned.to_json() if options.json else planned)
    return 2 if planned.problems else 0
