"""Where the time of a finished ladder went: python -m bench.parts STORE

Read from the record alone. Of each run: start (from the opened attempt to its first step: text, compilation,
initial state), train (tokens over tokens/s, row by row), and evaluation with checkpoints (the rest of the
attempt). What lies between the runs, from the first one's opening to the last one's end, is Ray, placement,
gates and the fit. The fit and the page are made again here, and timed; that Ray starts, before the first run
opens, is in no record.

The last line is JSON: seconds of each part, summed over the runs, and tokens/s of each (median of its rows).
"""

import argparse
import itertools
import json
import time
from datetime import datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from analysis import fit
from analysis.page.report import report
from ladder import Store
from ladder.store import RunRecord


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def of_run(record: RunRecord) -> dict[str, Any]:
    """Seconds of its parts, over all attempts."""
    start_s = attempt_s = 0.0
    spans = []
    for number in record.attempts():
        folder = f"runs/{record.id}/attempts/{number:04d}"
        files = record.files
        opened = _time(files.json(f"{folder}/attempt.json", "opened")["opened"])
        ended = _time(files.json(f"{folder}/status.json", "ended")["ended"])
        begun = [e for e in record.events() if e["attempt"] == number and e["kind"] in ("start", "restart")]
        start_s += _time(begun[0]["time"]) - opened
        attempt_s += ended - opened
        spans.append((opened, ended))
    speeds = [row["tokens_per_s"] for row in record.rows() if "tokens_per_s" in row]
    # the first rows carry no speed, as they hold what was left to compile
    train_s = sum(row["batch_tokens"] / row.get("tokens_per_s", median(speeds)) for row in record.rows())
    return {
        "run": record.id,
        "start_s": start_s,
        "train_s": train_s,
        "evals_s": attempt_s - start_s - train_s,
        "tokens_per_s": median(speeds),
        "spans": spans,
    }


def _covered(spans: list[tuple[float, float]]) -> float:
    """Seconds in at least one span."""
    ends = sorted({end for span in spans for end in span})
    return sum(
        b - a
        for a, b in itertools.pairwise(ends)
        if any(opened <= a and b <= ended for opened, ended in spans)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("store")
    store = Store(parser.parse_args().store)
    runs = [of_run(record) for record in store.runs()]
    began = time.perf_counter()
    names = [run for rung in store.ladder().rungs for run, _ in rung.runs]
    fit(store.evals(names=names))
    fit_s = time.perf_counter() - began
    with TemporaryDirectory() as folder:
        began = time.perf_counter()
        report(store, Path(folder) / "page.html")
        page_s = time.perf_counter() - began
    print(f"{'':<10} {'start':>7} {'train':>7} {'evals':>7} tokens/s")
    for run in runs:
        parts = f"{run['start_s']:7.1f} {run['train_s']:7.1f} {run['evals_s']:7.1f}"
        print(f"{run['run']:<10} {parts} {run['tokens_per_s']:8,.0f}")
    spans = [span for run in runs for span in run.pop("spans")]
    wall_s = max(ended for _, ended in spans) - min(opened for opened, _ in spans)
    total = {key: sum(run[key] for run in runs) for key in ("start_s", "train_s", "evals_s")}
    rest = {"between_s": wall_s - _covered(spans), "wall_s": wall_s, "fit_s": fit_s, "page_s": page_s}
    parts = {key: round(value, 2) for key, value in (total | rest).items()}
    print(json.dumps(parts | {"tokens_per_s": {run["run"]: round(run["tokens_per_s"]) for run in runs}}))


if __name__ == "__main__":
    main()
