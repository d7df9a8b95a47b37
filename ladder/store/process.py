"""Who is at work: this process in words that another one can check, and whether such a one still lives."""

import os
import socket
from datetime import UTC, datetime


def now() -> str:
    """UTC, to the millisecond, sortable as text."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def this_process() -> dict:
    return {"host": socket.gethostname(), "pid": os.getpid(), "born": _born(os.getpid())}


def is_gone(process: dict) -> bool:
    """True when the process ran on this host and has ended. One on another host is never called gone."""
    if process["host"] != socket.gethostname():
        return False
    try:
        os.kill(process["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # alive, another user's
    return _born(process["pid"]) != process["born"]  # the number was given to another process since


def _born(pid: int) -> int | None:
    """Start of the process in clock ticks since boot (field 22 of /proc/PID/stat); None where unknown.

    A process that has ended, but whose parent has not yet asked how, has none either.
    """
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
