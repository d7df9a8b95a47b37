"""What others than an attempt write about a run: requests to stop, and the driver's verdicts on failures.

    runs/RUN/stop-0002.json        somebody asks attempt 2 to checkpoint and leave
    runs/RUN/failures/0001.json    what the driver made of a failed attempt
    stop-driver-PID-BORN.json      somebody asks the driver to let every run checkpoint, and leave

All are written once. A request names whom it is for, so that an old one can stop nobody else.
"""

import json

from ladder.store.files import Files
from ladder.store.process import now, this_process


def ask_to_stop(files: Files, run: str, attempt: int) -> None:
    """Ask an attempt, running or the next to be opened, to checkpoint and leave."""
    files.create(_stop(run, attempt), _asked())


def asked_to_stop(files: Files, run: str, attempt: int) -> bool:
    return files.exists(_stop(run, attempt))


def withdraw(files: Files, run: str, attempt: int) -> None:
    files.remove(_stop(run, attempt))


def ask_driver_to_leave(files: Files, driver: dict) -> None:
    """`driver`: host, pid and born, as in its lease."""
    files.create(_leave(driver), _asked())


def driver_asked_to_leave(files: Files, driver: dict) -> bool:
    return files.exists(_leave(driver))


def forget_driver(files: Files, driver: dict) -> None:
    files.remove(_leave(driver))


def keep_failure(files: Files, run: str, verdict: dict) -> None:
    """Keep the driver's verdict on a failure: attempt (0: none was opened), retry, reason and its grounds."""
    content = json.dumps(verdict | {"time": now()}, indent=1).encode()
    number = len(files.names(_failures(run))) + 1
    while not files.create(f"{_failures(run)}/{number:04d}.json", content):
        number += 1


def failures(files: Files, run: str) -> list[dict]:
    """Verdicts on the failures of a run, oldest first."""
    return [
        files.json(f"{_failures(run)}/{name}", "attempt", "retry", "reason")
        for name in files.names(_failures(run))
    ]


def _stop(run: str, attempt: int) -> str:
    return f"runs/{run}/stop-{attempt:04d}.json"


def _failures(run: str) -> str:
    return f"runs/{run}/failures"


def _leave(driver: dict) -> str:
    return f"stop-driver-{driver['pid']}-{driver['born']}.json"


def _asked() -> bytes:
    return json.dumps({"asked": now(), "by": this_process()}, indent=1).encode()
