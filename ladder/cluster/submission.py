"""A ladder driven by a process of its own: submit it, close the notebook, open it again by its store.

drivers/0001.json        a driver process was started
drivers/0001-end.json    how it ended: its exit code and, if it failed, one line
driver.log               what it said
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from analysis.frame import AnalysisError
from ladder.cluster.driver import RESULT, Result, run_ladder
from ladder.cluster.training import Backend, RunFailed, RunStopped
from ladder.corpus import CorpusError
from ladder.spec import Ladder
from ladder.store import LeaseHeld, Store, StoreError, notes
from ladder.store.process import is_gone, now, this_process
from ladder.values import SpecError

LOG = "driver.log"
LOOK_S = 0.5
START_S = 120.0  # for a Python process that imports ladder, on a busy machine
_CHILDREN: list[subprocess.Popen] = []  # one that is dropped warns of a process that lives on


@dataclass
class Submission:
    """The driver that was last started on a store. Everything is read from the store at each call."""

    store: Store

    @classmethod
    def open(cls, store: str | os.PathLike[str]) -> "Submission":
        """The submission that lives in `store`. Raises StoreError when nothing was submitted there."""
        opened = cls(Store(store))
        opened._driver()
        return opened

    def status(self) -> dict:
        """ladder, store, driver and runs, as `ladder status --json` says them."""
        return self.store.overview()

    def errors(self) -> dict[str, str]:
        """Reason of each failed run, and under "driver" of the driver itself; empty when all is well."""
        found = {run["run"]: run["reason"] for run in self.status()["runs"] if run["state"] == "failed"}
        ended = self._ended()
        return found | ({"driver": ended["line"]} if ended and ended["line"] else {})

    def wait(self, timeout_s: float | None = None) -> Result:
        """The result, once the driver has ended. Raises RunFailed with its line when it failed (RunStopped:
        the monitor stopped the target), TimeoutError when it is still at work after timeout_s."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while (ended := self._ended()) is None:
            if until is not None and time.monotonic() > until:
                raise TimeoutError(
                    f"the driver of {self.store.url} is at work after {timeout_s:g} s: wait on"
                )
            time.sleep(LOOK_S)
        if ended["code"] != 0:
            raise (RunStopped if ended["code"] == RunStopped.exit_code else RunFailed)(ended["line"])
        return Result(**json.loads(self.store.read(RESULT)))

    def stop(self, timeout_s: float = 180.0) -> None:
        """Let every run checkpoint and the driver leave. Raises TimeoutError when it has not in timeout_s."""
        driver = self.store.driver()
        if driver:
            notes.ask_driver_to_leave(self.store.files, driver)
        with contextlib.suppress(RunFailed):
            self.wait(timeout_s)

    def _ended(self) -> dict | None:
        """code and line of the driver's end; None while it is at work."""
        for child in _CHILDREN:
            child.poll()  # else what has ended stays in the process table
        number, process = self._driver()
        gone = is_gone(process)  # first: what it wrote before it went is then there to read
        if ended := self._end_of(number):
            return ended
        line = f"the driver (pid {process['pid']}) was killed; submit the ladder again to go on"
        return {"code": 1, "line": line} if gone else None

    def _driver(self) -> tuple[int, dict]:
        """Number and process of the newest driver, without those that found another one at work."""
        numbers = _numbers(self.store)
        if not numbers:
            raise StoreError(
                f"nothing was submitted to {self.store.url}: submit(ladder, store) starts a driver"
            )
        drove = [n for n in numbers if not (self._end_of(n) or {}).get("refused")]
        newest = (drove or numbers)[-1]
        return newest, json.loads(self.store.read(_begin(newest)))

    def _end_of(self, number: int) -> dict | None:
        try:
            return json.loads(self.store.read(_end(number)))
        except FileNotFoundError:
            return None


def submit(
    ladder: Ladder, store: str | os.PathLike[str], backend: str = "ladder.cluster.gang:RayCluster"
) -> Submission:
    """Drive `ladder` in a process that outlives this one, on this machine.

    store: a folder. backend: MODULE:CLASS of what places the runs. Raises StoreError for a store that is no
    folder or holds another ladder, LeaseHeld when a driver is at work there, RunFailed when the process does
    not start.
    """
    place = Store(store)
    if not place.files.local:
        raise StoreError(
            f"{place.url}: a driver on this machine keeps its log beside the record: use a folder"
        )
    place.create(ladder)
    driver = place.driver()
    if not driver and _numbers(place) and Submission(place)._ended() is None:  # it has no lease yet
        driver = Submission(place)._driver()[1] | {"owner": "a submitted driver"}
    if driver:
        raise LeaseHeld(
            f"{driver['owner']} (pid {driver['pid']}) is at work on {place.url}: wait for it or stop it"
        )
    command = [sys.executable, "-m", "ladder.cluster.submission", str(Path(place.url).resolve()), backend]
    with open(place.path(LOG), "ab") as log:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    _CHILDREN.append(child)
    until = time.monotonic() + START_S
    while child.poll() is None and time.monotonic() < until:
        if child.pid in (json.loads(place.read(_begin(n)))["pid"] for n in _numbers(place)[-1:]):
            return Submission(place)
        time.sleep(0.05)
    child.kill()
    child.wait()
    last = Path(place.path(LOG)).read_text().strip().splitlines()[-1:]
    raise RunFailed(f"the driver did not start: {' '.join(last) or 'it said nothing'} ({place.path(LOG)})")


def main(store: str, backend: str) -> int:
    """The driver's process: drive the ladder that the store declares, and record how it ended."""
    place = Store(store)
    number = len(_numbers(place)) + 1
    while not place.files.create(_begin(number), json.dumps(this_process() | {"started": now()}).encode()):
        number += 1

    def ended(code: int, line: str, refused: bool = False) -> int:
        end = {"code": code, "line": line, "refused": refused, "ended": now()}
        place.files.create(_end(number), json.dumps(end).encode())
        return code

    try:
        module, _, name = backend.partition(":")
        make: type[Backend] = getattr(import_module(module), name)
        run_ladder(place.ladder(), place, make, say=lambda text: print(text, flush=True))
    except KeyboardInterrupt:
        return ended(1, "stopped by a signal; submit the ladder again to go on")
    except (RunFailed, SpecError, StoreError, CorpusError, AnalysisError) as error:
        print(error, flush=True)
        code = error.exit_code if isinstance(error, RunFailed) else 2
        return ended(code, str(error), refused=isinstance(error, LeaseHeld))
    except Exception as error:
        ended(1, f"{type(error).__name__}: {' '.join(str(error).split())}")
        raise  # the log gets the whole of it
    return ended(0, "")


def _begin(number: int) -> str:
    return f"drivers/{number:04d}.json"


def _end(number: int) -> str:
    return f"drivers/{number:04d}-end.json"


def _numbers(store: Store) -> list[int]:
    names = (name.removesuffix(".json") for name in store.files.names("drivers"))
    return sorted(int(name) for name in names if name.isdigit())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
