"""ladder sync STORE: send what Weights & Biases lacks of a store; a second call finds nothing to send."""

import argparse
import json

from ladder.store import Store


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", help="a store, e.g. runs/laptop")
    parser.add_argument("--json", action="store_true", help="the table as JSON on the last line")


def main(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from ladder.cluster.mirror import sync

    store = Store(options.store)
    store.ladder()  # a folder that is no store is refused before anything is started
    console = Console(stderr=options.json, highlight=False, soft_wrap=True)
    runs = sync(store, lambda text: console.print(text, markup=False))
    if options.json:
        print(json.dumps({"runs": runs}))
    else:
        table = Table("run", "rows", "sent now", "on W&B", box=None)
        for run in runs:
            table.add_row(run["run"], *(str(run[key]) for key in ("rows", "sent", "there")))
        console.print(table)
    short = [run["run"] for run in runs if run["there"] < run["rows"]]
    if short:
        console.print(f"W&B does not show all rows of {', '.join(short)} yet: call this again in a minute")
    return 1 if short else 0
