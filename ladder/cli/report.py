"""ladder report [STORE]: the page of a store as one self-contained HTML file, and its figures as PNG."""

import argparse

from ladder.store import Store


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", help="a store, e.g. runs/laptop")
    parser.add_argument(
        "--out", metavar="FILE", help="where the page goes (default report.html in the store)"
    )
    parser.add_argument("--figures", metavar="DIR", help="also write PNG figures there")


def main(options: argparse.Namespace) -> int:
    from analysis.page.report import report

    store = Store(options.store)
    print(report(store, options.out))
    if options.figures:
        from analysis.page.figures import figures

        for path in figures(store, options.figures):
            print(path)
    return 0
