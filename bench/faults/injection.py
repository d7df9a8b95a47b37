"""The kinds of faults, and how each is done to a ladder at work."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from bench.faults.driving import Driver, Progress, family, kill

FULL_S = 10.0  # a full disk is freed after so long, or when the driver has ended
OUTAGE_S = (4.0, 12.0)  # of the tracker


class Disk:
    """A tmpfs at `path` where the user may mount one; else a plain folder that nothing can fill."""

    SIZE = "256m"

    def __init__(self, path: Path):
        self.path = path
        self.small = os.geteuid() == 0
        path.mkdir(parents=True, exist_ok=True)
        if self.small and not path.is_mount():
            mount = ["mount", "-t", "tmpfs", "-o", f"size={self.SIZE}", "tmpfs", str(path)]
            self.small = subprocess.run(mount, capture_output=True).returncode == 0

    def fill(self) -> None:
        with contextlib.suppress(OSError), open(self.path / "filler", "wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    def free(self) -> None:
        (self.path / "filler").unlink(missing_ok=True)

    def close(self) -> None:
        if self.path.is_mount():
            subprocess.run(["umount", str(self.path)], check=True)


class Service:
    """The loopback W&B service in a process of its own."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.loopback.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        url, key = self._answer().split()
        self.environment = {"WANDB_BASE_URL": url, "WANDB_API_KEY": key}
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def health(self, word: str) -> None:
        """ "up", "dead" (closes every connection) or "stuck" (never answers)."""
        self._say(word)

    def rows(self, run_id: str) -> list[dict]:
        self._say(run_id)
        return json.loads(self._answer())

    def _say(self, line: str) -> None:
        assert self._process.stdin
        print(line, file=self._process.stdin, flush=True)

    def _answer(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline()


@dataclass
class Scene:
    driver: Driver
    disk: Disk
    service: Service
    chance: random.Random


def kill_worker(scene: Scene, victim: Progress) -> None:
    kill([victim.pid()])


def kill_driver(scene: Scene, victim: Progress) -> None:
    kill([scene.driver.pid])
    scene.driver.wait()


def kill_all(scene: Scene, victim: Progress) -> None:
    scene.driver.kill_all()


def kill_raylet(scene: Scene, victim: Progress) -> None:
    kill([pid for pid, name in family(scene.driver.pid).items() if name == "raylet"])


def terminate(scene: Scene, victim: Progress) -> None:
    os.kill(scene.driver.pid, signal.SIGTERM)
    scene.driver.wait()


def interrupt(scene: Scene, victim: Progress) -> None:
    os.killpg(scene.driver.pid, signal.SIGINT)
    scene.driver.wait()


def truncate_checkpoint(scene: Scene, victim: Progress) -> None:
    """Any file of the newest complete checkpoint loses its second half while nobody is at work."""
    scene.driver.kill_all()
    newest = victim.checkpoints()[-1]
    files = sorted(path for path in newest.rglob("*") if path.is_file() and path.stat().st_size)
    torn = scene.chance.choice(files)
    os.truncate(torn, torn.stat().st_size // 2)


def fill_disk(scene: Scene, victim: Progress) -> None:
    scene.disk.fill()
    until = time.monotonic() + FULL_S
    while time.monotonic() < until and scene.driver.code is None:
        time.sleep(0.1)
    scene.disk.free()


def tracker_dies(scene: Scene, victim: Progress) -> None:
    scene.service.health("dead")


def tracker_hangs(scene: Scene, victim: Progress) -> None:
    scene.service.health("stuck")


@dataclass(frozen=True)
class Kind:
    """`inject` returns when what it does is done."""

    inject: Callable[[Scene, Progress], None]
    hits: Literal["all", "victim"] = "all"  # of the runs at work
    ends_runs: bool = True  # what it hits begins another attempt


KINDS = {
    "worker killed": Kind(kill_worker, hits="victim"),
    "driver killed": Kind(kill_driver),
    "driver and Ray killed": Kind(kill_all),
    "raylet killed": Kind(kill_raylet),
    "SIGTERM": Kind(terminate),
    "SIGINT": Kind(interrupt),
    "checkpoint truncated": Kind(truncate_checkpoint),
    "disk full": Kind(fill_disk, ends_runs=False),
    "tracker dead": Kind(tracker_dies, ends_runs=False),
    "tracker stuck": Kind(tracker_hangs, ends_runs=False),
}
