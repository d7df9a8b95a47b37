"""ladder stop STORE RUN | --all: ask runs to checkpoint and leave, through the store, and wait for it."""

import argparse
import json
import sys
import time

from ladder.store import Store, notes
from ladder.values import SpecError

LOOK_S = 0.5


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", help="a store, e.g. runs/laptop")
    parser.add_argument("run", nargs="?", help="a run, as `ladder status` names it")
    parser.add_argument("--all", action="store_true", help="every run, and the driver")
    parser.add_argument(
        "--wait", type=float, default=120.0, metavar="SECONDS", help="how long to wait (default 120)"
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON")


def main(options: argparse.Namespace) -> int:
    if bool(options.run) == options.all:
        raise SpecError("name a run, or say --all")
    if not options.wait >= 0:
        raise SpecError(f"--wait {options.wait:g}: give seconds, 0 or more")
    store = Store(options.store)
    names = [record.id for record in store.runs()] if options.all else [store.run(options.run).id]
    driver = store.driver() if options.all else None
    if driver:  # first: it can let every run leave, also one whose record cannot be read
        notes.ask_driver_to_leave(store.files, driver)
    asked = {name: attempt for name in names if (attempt := ask(store, name))}
    left = wait(store, asked, driver, options.wait)
    found = {name: store.run(name).status() | {"asked": name in asked} for name in names}
    if options.json:
        print(json.dumps({"runs": [_brief(run) for run in found.values()], "driver_left": left["driver"]}))
    else:
        for name, run in found.items():
            print(f"{name}: {outcome(run, asked.get(name), left['runs'])}")
        if driver:
            print(f"the driver (pid {driver['pid']}) has {'' if left['driver'] else 'not '}left")
    return 0 if left["driver"] and not left["runs"] else 1


def ask(store: Store, run: str) -> int:
    """The attempt that was asked to stop; 0 when there is none to ask."""
    status = store.run(run).status()
    if status["state"] == "running":
        attempt = status["attempt"]
    elif status["state"] in ("queued", "waiting-for-gate") and store.driver():
        attempt = (status["attempt"] or 0) + 1  # the driver then does not start it
    else:
        return 0
    notes.ask_to_stop(store.files, run, attempt)
    return attempt


def wait(store: Store, asked: dict[str, int], driver: dict | None, timeout_s: float) -> dict:
    """Which runs of those asked are still running, and whether the driver is gone, when the time is up or
    nobody is left."""
    until = time.monotonic() + timeout_s
    try:
        while True:
            running = [name for name in asked if store.run(name).status()["state"] == "running"]
            gone = driver is None or store.driver() != driver
            if (gone and not running) or time.monotonic() >= until:
                return {"runs": running, "driver": gone}
            time.sleep(LOOK_S)
    except KeyboardInterrupt:
        print("not waiting any longer; the request stands", file=sys.stderr)
        return {"runs": running, "driver": gone}


def outcome(run: dict, asked: int | None, running: list[str]) -> str:
    at = f"at step {run['step'] or 0}/{run['steps']}"
    if run["run"] in running:
        return f"still running {at}: the request stands, ask again or look at `ladder logs`"
    if not asked:
        return f"{run['state']} {at}: nothing to stop"
    if run["state"] in ("queued", "waiting-for-gate"):
        return "will not be started by this driver"
    return f"{run['state']} {at}" + (f" ({run['reason']})" if run["reason"] else "")


def _brief(run: dict) -> dict:
    return {key: run[key] for key in ("run", "state", "attempt", "step", "steps", "reason", "asked")}
