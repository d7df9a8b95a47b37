"""ladder report [STORE]: the page of a store as one self-contained HTML file, and its figures as PNG."""

import argparse
import json

from ladder.store import Store


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", help="a store, e.g. runs/laptop")
    parser.add_argument(
        "--out", metavar="FILE", help="where the page goes (default report.html in the store)"
    )
    parser.add_argument("--figures", metavar="DIR", help="also write PNG figures there")
    parser.add_argument("--json", action="store_true", help="the paths as one line of JSON")


def main(options: argparse.Namespace) -> int:
    from analysis.page.report import report

    store = Store(options.store)
    page, images = report(store, options.out), []
    if options.figures:
        from analysis.page.figures import figures

        images = figures(store, options.figures)
    if options.json:
        print(json.dumps({"report": str(page), "figures": [str(path) for path in images]}))
    else:
        print(page, *images, sep="\n")
    return 0
