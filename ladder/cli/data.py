"""ladder data build FILE --store URL: the token shards of a ladder, hashed, once, beside its record."""

import argparse
import json
import sys

from ladder.loading import load
from ladder.store import Store


def options(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="what", required=True, metavar="build")
    build = verbs.add_parser("build", help="write the token shards of a ladder into its store")
    build.add_argument("file", help="a Python file that declares LADDER")
    build.add_argument("--store", required=True, metavar="URL", help="a folder or URL")
    build.add_argument("--json", action="store_true", help="progress on stderr, one line of JSON")


def main(options: argparse.Namespace) -> int:
    from ladder.cluster.texts import key, put_text

    ladder = load(options.file)
    store = Store(options.store)
    store.create(ladder)
    done = {}
    for rung in ladder.everything:
        if key(rung.run) in done:
            continue
        text, new = put_text(store, rung.run, lambda line: print(line, file=sys.stderr, flush=True))
        done[key(rung.run)] = {"sha256": text.sha256, "where": text.folder, "written": new}
        if not options.json:
            print(f"{text.folder}: {'written' if new else 'was there already'}")
    if options.json:
        print(json.dumps({"texts": list(done.values())}))
    return 0
