"""Does a ladder lose anything when it meets faults? python -m bench.faults [--points N] [--out FILE]

A small ladder is trained once without faults, then again and again with up to 15 faults each, by the
command `ladder run` on a Ray cluster of its own: processes are killed, signals sent, checkpoints torn, the
disk filled (a tmpfs, which root alone may mount), and the tracker, a W&B service on this machine, taken away.
Kinds come in a seeded order in which each has its share; a fault hits a run that is at work, some seconds
after the last fault was mended. A driver that ends before its ladder is started again, as a user would.

Of each ladder, after `ladder sync`:
    lost_rows        steps of 1..N that are missing in a run's merged record, or on the service
    duplicated_rows  steps that are there more than once
    not_bit_equal    runs whose rows (but for speed and attempt) or final state are not those of the
                     undisturbed ladder, bit by bit; `result` counts as one
    hung             faults, and ends of ladders, after which no row of a new step came for 180 s
resume_s: from the fault until every run that it hit has a row on disk of a step that none had before. So it
holds the end of what still runs, the start of another driver, cluster and worker, compilation from the cache,
training from the checkpoint to where the run was, and up to a second until rows reach the disk. After a full
disk it is counted from when there is space again. A tracker's fault hits no run: there it is the time to the
next row on disk.

Results are appended to FILE, a line of JSON each, and everything else lies beside it in FILE's .work folder:
called again, the bench goes on from there; with new code, begin with a new FILE. Exit code 1 when one of
the four is not zero.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.faults import comparison, small
from bench.faults.driving import Driver, Hung, Progress, adopt_orphans, kill_leftover, kill_orphans
from bench.faults.injection import KINDS, OUTAGE_S, Disk, Scene, Service
from ladder import Store

MOST = 15  # faults in one run of the ladder
PAUSE_S = (0.5, 3.0)  # after a fault is mended, before the next
GRACE_S = 15.0  # for Ray's processes to end after their driver
COUNTS = ("lost_rows", "duplicated_rows", "not_bit_equal", "hung")


class Results:
    """Lines of faults and of ladders, on disk as they come."""

    def __init__(self, path: Path):
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self._lines = [json.loads(line) for line in lines]

    def add(self, line: dict) -> None:
        with self._path.open("a") as file:
            print(json.dumps(line), file=file)
        print(json.dumps(line), flush=True)
        self._lines.append(line)

    @property
    def faults(self) -> list[dict]:
        return [line for line in self._lines if "kind" in line]

    @property
    def ladders(self) -> list[dict]:
        return [line for line in self._lines if "lost_rows" in line]


def undisturbed(work: Path, environment: dict[str, str]) -> Store:
    """The ladder as it trains when nothing happens."""
    driver = Driver(work / "undisturbed", work / "undisturbed.log", environment, wandb="off")
    store = Store(driver.store)
    if not store.exists("result.json"):
        kill_leftover(driver.store)
        driver.until(lambda: False)
    return store


def kind_of(point: int, kinds: list[str]) -> str:
    block, at = divmod(point, len(kinds))
    return random.Random(block).sample(kinds, len(kinds))[at]


def meet(scene: Scene, point: int, name: str) -> dict | None:
    """One fault, from the wait for its moment until it is overcome; None when the ladder ends before it."""
    driver, kind = scene.driver, KINDS[name]
    scene.chance = random.Random(point)
    line = {"point": point, "kind": name, "run": None, "resume_s": None, "starts": 0, "hung": False}
    try:
        wait_s(driver, scene.chance.uniform(*PAUSE_S))
        driver.until(lambda: bool(targets(driver, name)))
        if driver.ended:
            return None
        victim = scene.chance.choice(targets(driver, name))
        hit = [run for run in driver.runs() if run.at_work()]
        hit = [run for run in hit if kind.hits == "all" or run.run == victim.run]
        before = {run: run.attempt() for run in hit}
        starts, line["run"] = driver.starts, victim.run
        with driver.log.open("a") as log:
            print(f"--- {name}: {victim.run} at step {victim.best()}", file=log)
        began = time.monotonic()
        kind.inject(scene, victim)
        if kind.ends_runs:
            driver.until(
                lambda: all(over(run, run.best(attempt), attempt) for run, attempt in before.items())
            )
        else:
            began = time.monotonic()
            steps = {run: run.best() for run in before}
            driver.until(lambda: all(over(run, step) for run, step in steps.items()))
        line["resume_s"] = round(time.monotonic() - began, 2)
        line["starts"] = driver.starts - starts
        if name.startswith("tracker"):
            wait_s(driver, scene.chance.uniform(*OUTAGE_S))
    except Hung:
        line["hung"] = True
        driver.kill_all()
    finally:
        scene.service.health("up")
        scene.disk.free()
    return line


def targets(driver: Driver, name: str) -> list[Progress]:
    """Runs at work; for a torn checkpoint, those that have another one to fall back to."""
    torn = name == "checkpoint truncated"
    return [run for run in driver.runs() if run.at_work() and (not torn or len(run.checkpoints()) > 1)]


def over(run: Progress, step: int, attempt: int = 0) -> bool:
    """Has an attempt after `attempt` come past `step`?"""
    return run.finished() or (run.attempt() > attempt and run.step(run.attempt()) > step)


def wait_s(driver: Driver, seconds: float) -> None:
    until = time.monotonic() + seconds
    driver.until(lambda: time.monotonic() > until)


def disturb(scene: Scene, reference: Store, results: Results, points: int, kinds: list[str]) -> None:
    """One ladder with its faults, brought to its end and compared."""
    driver, began = scene.driver, time.monotonic()
    kill_leftover(driver.store)
    number = len(results.ladders)
    met = sum(fault["ladder"] == number for fault in results.faults)
    while met < MOST and len(results.faults) < points:
        line = meet(scene, len(results.faults), kind_of(len(results.faults), kinds))
        if line is None:
            break
        results.add(line | {"ladder": number})
        met += 1
    hung = 0
    try:
        driver.until(lambda: False)
    except Hung:
        hung = 1
        driver.kill_all()
    left = kill_orphans({scene.service.pid}, GRACE_S)
    command = [sys.executable, "-m", "ladder", "sync", str(driver.store)]
    with driver.log.open("a") as log:
        subprocess.run(command, env=os.environ | driver.environment, stdout=log, stderr=log)
    found = comparison.compare(Store(driver.store), reference, scene.service)
    results.add({"ladder": number, "faults": met, **found, "hung": hung, "left": left})
    print(f"ladder {number}: {met} faults in {time.monotonic() - began:.0f} s", flush=True)
    if any(found.values()) or hung:
        kept = driver.log.with_name(f"kept-{number:02d}")
        shutil.copytree(driver.store, kept, symlinks=True, dirs_exist_ok=True)
        print(f"see {kept}", flush=True)
    shutil.rmtree(driver.store)


def summary(results: Results) -> dict:
    found = {name: 0 for name in COUNTS}
    for ladder in results.ladders:
        found["lost_rows"] += ladder["lost_rows"]
        found["duplicated_rows"] += ladder["duplicated_rows"]
        found["not_bit_equal"] += len(ladder["not_bit_equal"])
        found["hung"] += ladder["hung"]
    found["hung"] += sum(fault["hung"] for fault in results.faults)
    times = [fault["resume_s"] for fault in results.faults if not fault["hung"]]
    return {
        "points": len(results.faults),
        **found,
        "resume_s_median": round(statistics.median(times), 2) if times else None,
        "resume_s_max": max(times, default=None),
    }


def table(results: Results, kinds: list[str]) -> str:
    lines = [f"{'fault':<24}{'points':>7}{'resume_s median':>17}{'max':>8}{'drivers started':>17}"]
    for kind in KINDS:
        faults = [fault for fault in results.faults if fault["kind"] == kind]
        times = [fault["resume_s"] for fault in faults if not fault["hung"]]
        if kind not in kinds:
            lines.append(f"{kind:<24}skipped: not root")
        elif times:
            started = sum(fault["starts"] for fault in faults)
            middle = f"{statistics.median(times):>17.1f}{max(times):>8.1f}"
            lines.append(f"{kind:<24}{len(faults):>7}{middle}{started:>17}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=60, help="faults in all")
    parser.add_argument(
        "--out", type=Path, default=Path(tempfile.gettempdir()) / "ladder-faults" / "points.jsonl"
    )
    options = parser.parse_args()
    out = options.out.absolute()
    work = out.with_suffix(".work")
    work.mkdir(parents=True, exist_ok=True)
    print(f"results: {out}", flush=True)
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.pop("WANDB_MODE", None)
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # else drivers of a bench in the background are deaf
    adopt_orphans()
    if not (text := work / "words.jsonl").exists():
        small.make_text(text)
    environment = {
        small.TEXT: str(text),
        "LADDER_CACHE": str(work / "cache"),
        "WANDB_CONFIG_DIR": str(work / "wandb"),
        "WANDB_CACHE_DIR": str(work / "wandb"),
        "NETRC": str(work / "netrc"),
    }
    results, disk = Results(out), Disk(work / "disk")
    kinds = [kind for kind in KINDS if kind != "disk full" or disk.small]
    try:
        with Service() as service:
            reference = undisturbed(work, environment)
            while len(results.faults) < options.points or results.faults[-1]["ladder"] >= len(
                results.ladders
            ):
                store = disk.path / f"ladder-{len(results.ladders):02d}"
                driver = Driver(store, work / "driver.log", environment | service.environment)
                scene = Scene(driver, disk, service, random.Random())
                disturb(scene, reference, results, options.points, kinds)
    finally:
        kill_orphans(set(), 0.0)
    disk.close()
    print(table(results, kinds))
    found = summary(results)
    print(json.dumps(found))
    return 1 if any(found[name] for name in COUNTS) else 0


if __name__ == "__main__":
    sys.exit(main())
