"""A `ladder run` started as a user starts it: its processes, and how far its runs have come by the record."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ladder import Store
from ladder.store.process import is_gone

LIMIT_S = 180.0  # no row of a new step for so long: it hangs
LOOK_S = 0.1
LINE_BYTES = 8192  # more than any row has
ENDED = (0, 3)  # exit codes of a ladder that came to its end; 3 is the monitor's word on the target
LADDER = Path(__file__).with_name("small.py")


class Hung(Exception):
    """Nothing moved for LIMIT_S."""


class Progress:
    """What one run has on disk; read without parsing all of its rows."""

    def __init__(self, folder: Path):
        self._folder = folder
        self.run = folder.name

    def attempt(self) -> int:
        """The newest attempt that was opened; 0 before the first."""
        opened = (self._folder / "attempts").glob("[0-9]*/attempt.json")
        return max((int(path.parent.name) for path in opened), default=0)

    def step(self, attempt: int) -> int:
        """Step of the last row of an attempt; 0 before its first."""
        segments = sorted(self._attempt(attempt).glob("metrics-*.jsonl"))
        if not segments:
            return 0
        with segments[-1].open("rb") as file:
            file.seek(max(0, segments[-1].stat().st_size - LINE_BYTES))
            return json.loads(file.read().splitlines()[-1])["step"]

    def best(self, newest: int | None = None) -> int:
        """The highest step that any attempt, or one up to `newest`, has on disk."""
        attempts = range(1, (self.attempt() if newest is None else newest) + 1)
        return max((self.step(attempt) for attempt in attempts), default=0)

    def finished(self) -> bool:
        return self._status().get("state") == "finished"

    def at_work(self) -> bool:
        """Does the newest attempt live, with rows on disk?"""
        newest = self.attempt()
        return bool(newest and self.step(newest) and not self._status() and not is_gone(self._process()))

    def pid(self) -> int:
        """Of the process that the newest attempt is or was in."""
        return self._process()["pid"]

    def checkpoints(self) -> list[Path]:
        """Folders of the complete checkpoints, oldest first."""
        found = (self._folder / "checkpoints").glob("*")
        return sorted((path for path in found if path.name.isdigit()), key=lambda path: int(path.name))

    def _attempt(self, attempt: int) -> Path:
        return self._folder / "attempts" / f"{attempt:04d}"

    def _process(self) -> dict:
        return json.loads((self._attempt(self.attempt()) / "attempt.json").read_text())["process"]

    def _status(self) -> dict:
        with contextlib.suppress(FileNotFoundError):
            return json.loads((self._attempt(self.attempt()) / "status.json").read_text())
        return {}


@dataclass
class Driver:
    """`ladder run` of the small ladder on one store; what it prints is appended to `log`."""

    store: Path
    log: Path
    environment: dict[str, str]
    wandb: str = "online"
    starts: int = 0
    process: subprocess.Popen | None = field(default=None, repr=False)

    def start(self) -> None:
        command = ["run", str(LADDER), "--store", str(self.store), "--json", "--wandb", self.wandb]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ladder", *command],
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a terminal's Ctrl-C can then be sent to the group
            )
        self.starts += 1

    @property
    def pid(self) -> int:
        assert self.process
        return self.process.pid

    @property
    def code(self) -> int | None:
        """Its exit code; None while it lives."""
        return self.process.poll() if self.process else -1

    @property
    def ended(self) -> bool:
        """Has the ladder come to its end?"""
        return self.code in ENDED

    def runs(self) -> list[Progress]:
        return [Progress(folder) for folder in sorted((self.store / "runs").glob("*"))]

    def until(self, there: Callable[[], bool]) -> None:
        """Wait for it, or for the end of the ladder; a driver that ends before its ladder is started again.

        Raises Hung.
        """
        best, moved = -1, time.monotonic()
        while not (self.ended or there()):
            if self.code is not None:
                self.start()
            now = sum(run.best() + run.finished() for run in self.runs())
            if now > best:
                best, moved = now, time.monotonic()
            elif time.monotonic() - moved > LIMIT_S:
                raise Hung
            time.sleep(LOOK_S)

    def wait(self, limit_s: float = LIMIT_S) -> None:
        """For the end of its process. Raises Hung."""
        assert self.process
        try:
            self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise Hung from None

    def kill_all(self) -> None:
        """SIGKILL to the driver and all that it has started, in the order of birth."""
        kill([self.pid, *family(self.pid)])
        self.wait()


def adopt_orphans() -> None:
    """Descendants whose parent dies become children of this process, so that `family` finds them."""
    set_child_subreaper = 36  # linux/prctl.h
    ctypes.CDLL(None).prctl(set_child_subreaper, 1)


def family(of: int) -> dict[int, str]:
    """Descendants of a process: pid -> name."""
    parents: dict[int, tuple[int, str]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            before, _, after = stat.read_text().rpartition(")")
            parents[int(stat.parent.name)] = (int(after.split()[1]), before.partition("(")[2])
    found: dict[int, str] = {}
    while new := {pid: name for pid, (p, name) in parents.items() if pid not in found and p in (of, *found)}:
        found |= new
    return found


def kill(pids: list[int], number: int = signal.SIGKILL) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def kill_orphans(spared: set[int], grace_s: float) -> list[str]:
    """End what is left of earlier drivers, and bury it; the names of what would not end within grace_s."""
    until = time.monotonic() + grace_s
    while True:
        left = {pid: name for pid, name in family(os.getpid()).items() if pid not in spared}
        living = [name for pid, name in left.items() if _lives(pid)]
        if not living or time.monotonic() > until:
            break
        time.sleep(LOOK_S)
    kill(list(left))
    for pid in left:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    return living


def _lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def kill_leftover(store: Path) -> None:
    """End the driver of a bench that was killed itself."""
    if (store / "ladder.json").exists() and (driver := Store(store).driver()):
        kill([driver["pid"], *family(driver["pid"])])
