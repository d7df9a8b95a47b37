"""How long training waits for W&B: python -m bench.tracking [--seconds S]

A loop trains a stand-in (a matrix product of about 10 ms) and writes a row a step, a segment a second, while
the store is mirrored on a service that is up, refuses, or accepts and never answers; and with no mirror at
all. Measured are the parts of a step that are not its own work: giving the row to the record, and entering
and leaving the mirror. The last line is JSON, a record a case.
"""

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ladder import DataSpec, Ladder, ModelSpec, OptimizerSpec, Phase, Rung, RunSpec, Source, Store
from ladder.cluster.mirror import mirrored

MODEL = ModelSpec(
    vocab_size=257, context=8, layers=1, width=8, heads=2, head_dim=4, kv_heads=1, experts=4, top_k=1,
    expert_width=8,
)  # fmt: skip
RUN = RunSpec(
    model=MODEL,
    optimizer=OptimizerSpec(lr=0.01, matrix_lr=0.01),
    data=DataSpec(
        sources=(Source(domain="text", uri="text.txt"),), phases=(Phase(start=0, weights={"text": 1}),)
    ),
    steps=10**9,
    batch_tokens=32,
)


def measure(case: str, seconds: float) -> dict:
    """One case in a store of its own: milliseconds that a step waited, and seconds to leave the mirror."""
    said: list[str] = []
    with tempfile.TemporaryDirectory() as folder, service(case):
        store = Store(Path(folder))
        store.create(Ladder(name="bench", rungs=(Rung(name="run", run=RUN),)))
        began = time.perf_counter()
        mirror = mirrored(store, "off" if case == "off" else "online", said.append)
        mirror.__enter__()
        entered = time.perf_counter()
        with store.run("run").begin(RUN, {}) as attempt:
            waits, work = steps(attempt, seconds)
            attempt.finish("stopped")
        left = time.perf_counter()
        mirror.__exit__(None, None, None)
        return {
            "case": case,
            "steps": len(waits),
            "wait_ms_median": round(float(np.median(waits)) * 1e3, 3),
            "wait_ms_p99": round(float(np.quantile(waits, 0.99)) * 1e3, 3),
            "wait_ms_max": round(max(waits) * 1e3, 3),
            "work_ms_median": round(float(np.median(work)) * 1e3, 3),
            "enter_ms": round((entered - began) * 1e3, 1),
            "leave_s": round(time.perf_counter() - left, 2),
            "said": said,
        }


def steps(attempt, seconds: float) -> tuple[list[float], list[float]]:
    """Seconds that each step waited for its record, and seconds of its work."""
    matrix = np.random.default_rng(0).normal(size=(400, 400))
    waits, work = [], []
    step, until, flush = 0, time.perf_counter() + seconds, time.perf_counter()
    while (started := time.perf_counter()) < until:
        matrix @ matrix
        worked = time.perf_counter()
        step += 1
        attempt.row({"step": step, "tokens": 32 * step, "train_ce": 1 / step, "grad_norm": 1.0})
        waits.append(time.perf_counter() - worked)
        work.append(worked - started)
        if worked - flush > 1:  # outside of what is measured: a disk's time is the record's, not W&B's
            attempt.flush()
            flush = worked
    return waits, work


@contextlib.contextmanager
def service(case: str) -> Iterator[None]:
    """WANDB_BASE_URL of a service that is up, refuses, or is stuck."""
    with contextlib.ExitStack() as stack:
        if case == "up":
            running = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.loopback.server"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            assert running.stdout and running.stdin
            stack.callback(running.stdin.close)
            url, key = running.stdout.readline().split()
        else:
            taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            url, key = f"http://127.0.0.1:{taken.getsockname()[1]}", "x" * 40
            if case == "refusing":
                taken.close()
        os.environ |= {"WANDB_BASE_URL": url, "WANDB_API_KEY": key}
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="of training in each case")
    seconds = parser.parse_args().seconds
    cases = []
    for case in ("off", "up", "refusing", "stuck"):
        cases.append(measure(case, seconds))
        print(cases[-1])
    print(json.dumps({"cases": cases}))


if __name__ == "__main__":
    main()
