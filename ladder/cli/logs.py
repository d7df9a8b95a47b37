"""ladder logs STORE RUN: what a run's attempts have written, row by row; with -f until it has ended."""

import argparse
import sys
import time

from ladder.store import RunRecord, Store
from ladder.store.rows import encode
from ladder.store.tail import Entry, Tail

LOOK_S = 1.0
ENDED = ("finished", "failed", "stopped")
HIDDEN = {"step", "tokens", "batch_tokens", "kind", "detail", "registered", "time", "resumed_from"}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", help="a store, e.g. runs/laptop")
    parser.add_argument("run", help="a run, as `ladder status` names it")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run has ended")
    parser.add_argument("--json", action="store_true", help="one line of JSON each")


def main(options: argparse.Namespace) -> int:
    store = Store(options.store)
    record = store.run(options.run)
    tail = Tail(record)
    if record.status()["state"] == "queued":
        waiting = "nobody drives it" if store.driver() is None else "its driver has not started it yet"
        print(f"{record.id} is queued: {waiting}, nothing is written", file=sys.stderr)
    try:
        while True:
            over = not options.follow or ended(store, record)  # asked first: the look then sees the end
            for entry in tail.new():
                print(encode(entry._asdict()) if options.json else line(entry), flush=True)
            if over:
                break
            time.sleep(LOOK_S)
        if options.follow and not options.json:
            status = record.status()
            print(f"{record.id} {status['state']}" + (f": {status['reason']}" if status["reason"] else ""))
    except KeyboardInterrupt:
        return 0  # the way to leave a log; the run goes on
    return 0


def ended(store: Store, record: RunRecord) -> bool:
    """True when nothing more will come. A run that is queued may still start while there is a driver; one
    that has failed may be tried again, so its driver is given time for a verdict."""
    before = record.status()
    if before["state"] == "running":
        return False
    if before["state"] in ("finished", "stopped") or store.driver() is None:
        return True
    time.sleep(LOOK_S)
    after = record.status()
    return after["state"] in ENDED and after["reason"] == before["reason"]


def line(entry: Entry) -> str:
    """An entry for people: the attempt, the step, and what is worth a look."""
    content = entry.content
    start = f"[{entry.attempt}] step {content['step']}"
    if entry.kind == "event":
        more = {key: value for key, value in content.items() if key not in HIDDEN and value not in ("", None)}
        parts = [content["kind"].upper(), content["detail"], *(f"{k} {v}" for k, v in more.items())]
        return "  ".join([f"{content['time']}  {start}", *filter(None, parts)])
    shown = {key: value for key, value in content.items() if key not in HIDDEN}
    return "  ".join([start, *(f"{key} {_short(value)}" for key, value in shown.items())])


def _short(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
