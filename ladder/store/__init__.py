"""Where a ladder lives: one folder, or any fsspec URL, of files that are written once or replaced whole.

    ladder.json                                        the declaration
    lease-0001.json                                    the driver at work, while there is one
    forecast.json, report.html, ...                    what later steps write
    gates/RUNG/prediction.json                         frozen before a gated rung starts (analysis.gates)
    runs/RUN/run.json                                  spec, fingerprint, provenance of its first attempt
    runs/RUN/attempts/0001/attempt.json                who opened it, from what code
                          /metrics-00000001.jsonl      rows; closed segments, written once
                          /events-00000001.jsonl       start, restart, alarm, regime change
                          /status.json                 how it ended
    runs/RUN/checkpoints/
    runs/RUN/stop-0001.json, failures/0001.json        what others write about a run (notes.py)

Only an attempt writes in its own folder, so a leftover of an old attempt can harm nobody. Reading is safe
while others write.
"""

import json
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager

import pandas as pd

from ladder.gating import gate_file, waves
from ladder.spec import Ladder
from ladder.store.attempt import Attempt, StaleAttempt
from ladder.store.files import Files, StoreError
from ladder.store.lease import Lease, LeaseHeld, hold, holder, refuse_living
from ladder.store.origin import provenance
from ladder.store.rows import StoreWarning
from ladder.store.run import EVAL_COLUMNS, RunRecord
from ladder.values import SpecError, Value

__all__ = [
    "Attempt",
    "Lease",
    "LeaseHeld",
    "RunRecord",
    "StaleAttempt",
    "Store",
    "StoreError",
    "StoreWarning",
    "provenance",
]

FORMAT = 1


class Store:
    """The record of one ladder at `url` (a path, or an fsspec URL)."""

    def __init__(self, url: str | os.PathLike[str]):
        self._files = Files(url)

    @property
    def files(self) -> Files:
        """The files themselves, for what has no method here."""
        return self._files

    @property
    def url(self) -> str:
        return self._files.path()

    def create(self, ladder: Ladder) -> None:
        """Declare the ladder here. Nothing changes when the store holds the same one (its runs and their
        fingerprints decide). Another one is replaced as long as nothing has come of it; once a run has begun,
        or while a driver is at work, that is a StoreError."""
        content = {"format": FORMAT, "ladder": ladder.model_dump(mode="json")}
        declaration = json.dumps(content, indent=1).encode()
        if self._files.create("ladder.json", declaration):
            return
        stored = self.ladder()
        differing = _differences(stored, ladder)
        if not differing:
            return
        if any(run.begun for run in self.runs()):
            raise StoreError(
                f"{self.url} holds ladder {stored.name!r}, this one is {ladder.name!r} ({differing}): "
                "give this one a store of its own with --store DIR"
            )
        refuse_living(self._files)
        self._files.put("ladder.json", declaration)

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    def ladder(self) -> Ladder:
        """The ladder that was declared here."""
        try:
            content = self._files.json("ladder.json", "format")
        except FileNotFoundError:
            raise StoreError(f"{self.url} holds no ladder: `ladder run FILE --store DIR` makes one") from None
        if not isinstance(content["format"], int) or content["format"] > FORMAT:
            raise StoreError(
                f"{self.url} was made by a newer version (format {content['format']}, this one reads up to "
                f"{FORMAT}): upgrade scaling-ladder"
            )
        try:
            return Ladder.from_json(json.dumps(content.get("ladder")))
        except SpecError as error:
            raise StoreError(
                f"{self._files.path('ladder.json')} is damaged or of another version ({error}): restore it "
                "from a copy, or read it with the version that made it"
            ) from None

    def runs(self) -> list[RunRecord]:
        """Every run that the ladder declares, in its order, begun or not."""
        return [
            RunRecord(self._files, run_id, rung.name, spec)
            for rung in self.ladder().everything
            for run_id, spec in rung.runs
        ]

    def run(self, run_id: str) -> RunRecord:
        runs = {run.id: run for run in self.runs()}
        if run_id not in runs:
            raise StoreError(f"{self.url} has no run {run_id!r}; it has {', '.join(runs)}")
        return runs[run_id]

    def evals(self, names: Iterable[str] | None = None) -> pd.DataFrame:
        """Evaluations of the runs (all, or `names`) that have any; an unfinished run ends at progress < 1."""
        runs = self.runs() if names is None else [self.run(name) for name in names]
        return pd.DataFrame([row for run in runs for row in run.evals()], columns=list(EVAL_COLUMNS))

    def lease(self, owner: str) -> AbstractContextManager[Lease]:
        """Be the ladder's only driver for a with block. Raises LeaseHeld, naming the one at work."""
        return hold(self._files, owner)

    def driver(self) -> dict | None:
        """Who drives the ladder now: owner, host, pid, born, since; None when nobody does."""
        return holder(self._files)

    def overview(self) -> dict:
        """ladder, store, driver, and the status of every run (see RunRecord.status) with its rung.

        A target whose forecast is not frozen yet, and a gated rung that is not predicted yet, are
        `waiting-for-gate`.
        """
        ladder = self.ladder()
        runs = [record.status() | {"rung": record.rung} for record in self.runs()]
        gates = {wave[0].name: gate_file(wave[0].name) for wave in waves(ladder)[1:]}
        reasons = dict.fromkeys(gates, "it is predicted from the smaller rungs first")
        if ladder.target:
            gates[ladder.target.name] = "forecast.json"
            reasons[ladder.target.name] = "its forecast is frozen after the rungs"
        for run in runs:
            waits = run["state"] == "queued" and not run["reason"] and run["rung"] in gates
            if waits and not self.exists(gates[run["rung"]]):
                run |= {"state": "waiting-for-gate", "reason": reasons[run["rung"]]}
        return {"ladder": ladder.name, "store": self.url, "driver": self.driver(), "runs": runs}

    def path(self, name: str) -> str:
        """The full path or URL of a file here."""
        return self._files.path(name)

    def write(self, name: str, content: bytes | str) -> None:
        """Put a whole file, atomically, in place of an older one."""
        self._files.put(name, content.encode() if isinstance(content, str) else content)

    def read(self, name: str) -> bytes:
        """The whole file. FileNotFoundError when there is none."""
        return self._files.get(name)

    def exists(self, name: str) -> bool:
        return self._files.exists(name)


def _differences(stored: Ladder, ladder: Ladder) -> str:
    """What tells two ladders apart, as text; empty when they train the same runs under the same name."""

    def runs(ladder: Ladder) -> dict:
        return {name: spec for rung in ladder.everything for name, spec in rung.runs}

    old, new = runs(stored), runs(ladder)
    changed = [name for name in old if name in new and old[name].fingerprint != new[name].fingerprint]
    found = [
        f"{label} {', '.join(names)}"
        for label, names in [
            ("only there:", [name for name in old if name not in new]),
            ("only here:", [name for name in new if name not in old]),
            ("another spec:", changed),
        ]
        if names
    ]
    if changed:
        found.append(f"first difference: {_first_difference(old[changed[0]], new[changed[0]])}")
    if (stored.target and stored.target.name) != (ladder.target and ladder.target.name):
        found.append("another target")
    if not found and stored.name != ladder.name:
        found.append("the same runs under another name")
    return "; ".join(found)


def _first_difference(old: object, new: object, at: str = "") -> str:
    """The first field in which two specs differ: "optimizer.lr 0.01 there, 0.012 here"."""
    if isinstance(old, Value) and type(old) is type(new):
        for field in type(old).model_fields:
            if getattr(old, field) != getattr(new, field):
                where = f"{at}.{field}" if at else field
                return _first_difference(getattr(old, field), getattr(new, field), where)
    return f"{at} {old} there, {new} here"
