"""ladder status STORE: where every run stands, by the store alone."""

import argparse
import math

from ladder.store import Store
from ladder.store.rows import encode

COLUMNS = ("run", "state", "attempt", "step", "loss", "tok/s", "eta")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", help="a store, e.g. runs/laptop")
    parser.add_argument("--json", action="store_true", help="one line of JSON")


def main(options: argparse.Namespace) -> int:
    found = Store(options.store).overview()
    print(encode(found) if options.json else table(found))
    return 0


def table(found: dict) -> str:
    """The overview in words: a line a run, and the reasons below."""
    driver = found["driver"]
    who = f"driven by pid {driver['pid']} on {driver['host']}" if driver else "no driver at work"
    rows = [COLUMNS, *(_cells(run) for run in found["runs"])]
    widths = [max(len(row[k]) for row in rows) for k in range(len(COLUMNS))]
    lines = [f"{found['ladder']} in {found['store']}, {who}"]
    lines += ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    lines += [f"{run['run']}: {run['reason']}" for run in found["runs"] if run["reason"]]
    return "\n".join(lines)


def _cells(run: dict) -> tuple[str, ...]:
    def said(value: object, form: str = "") -> str:
        return "-" if value is None else format(value, form)

    speed = run["tokens_per_s"] if run["state"] == "running" else None
    return (
        run["run"],
        run["state"],
        said(run["attempt"]),
        f"{run['step'] or 0}/{run['steps']}",
        said(run["loss"], ".4f"),
        said(speed, ",.0f"),
        "-" if run["eta_s"] is None else duration(run["eta_s"]),
    )


def duration(seconds: float) -> str:
    """45 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
