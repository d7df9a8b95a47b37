"""One driver a ladder: a lease by exclusive creation, taken over from a process that has ended."""

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ladder.store.files import Files, StoreError
from ladder.store.process import is_gone, now, this_process


class LeaseHeld(StoreError):
    """Another driver is at work on this store."""


@dataclass(frozen=True)
class Lease:
    """`note` says from whom the lease was taken over; empty when it was free."""

    owner: str
    note: str


@contextlib.contextmanager
def hold(files: Files, owner: str) -> Iterator[Lease]:
    """Hold the store's lease for the length of a with block. Raises LeaseHeld at once; nobody waits.

    Leases are numbered: taking over means creating the next number, which one process can do, and then
    clearing the older ones. Deleting a dead lease first would let a slow rival delete ours in turn.
    """
    older = _leases(files)
    note = refuse_living(files, older)
    number = max(older, default=0) + 1
    mine = _name(number)
    content = {"owner": owner, **this_process(), "since": now()}
    if not files.create(mine, json.dumps(content, indent=1).encode()):
        refuse_living(files)
        raise LeaseHeld(f"another driver took {files.path(mine)} at this moment: try again")
    try:
        # A rival may have come and gone since the first look, and another one taken its lower number.
        refuse_living(files, {n: lease for n, lease in _leases(files).items() if n < number})
        for n in older:
            files.remove(_name(n))
        yield Lease(owner, note)
    finally:
        files.remove(mine)


def holder(files: Files) -> dict | None:
    """The lease of the driver at work (owner, host, pid, born, since); None when nobody is."""
    return next((lease for lease in _leases(files).values() if not is_gone(lease)), None)


def _name(number: int) -> str:
    return f"lease-{number:04d}.json"


def _leases(files: Files) -> dict[int, dict]:
    found = {}
    for name in files.names(""):
        if number := re.fullmatch(r"lease-(\d{4,})\.json", name):
            with contextlib.suppress(FileNotFoundError):  # released between the two calls
                found[int(number[1])] = files.json(name, "owner", "pid", "host", "born", "since")
    return found


def refuse_living(files: Files, leases: dict[int, dict] | None = None) -> str:
    """A note about the dead ones of `leases` (default: all). Raises LeaseHeld for one at work."""
    note = ""
    for number, lease in (_leases(files) if leases is None else leases).items():
        who = f"{lease['owner']} (pid {lease['pid']} on {lease['host']}, since {lease['since']})"
        if not is_gone(lease):
            raise LeaseHeld(
                f"{who} is at work on this store: wait for it or stop it. If that process has ended on its "
                f"host, delete {files.path(_name(number))}"
            )
        note = f"took over the lease of {who}, whose process has ended"
    return note
