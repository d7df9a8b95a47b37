"""Writing: one attempt at a run, the only writer in its own folder."""

import contextlib
import json
import time
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self

from ladder.store.files import Files, StoreError
from ladder.store.process import now, this_process
from ladder.store.rows import encode

Ending = Literal["finished", "failed", "stopped"]

SEGMENT_BYTES = 1_000_000
SEGMENT_SECONDS = 10.0


class StaleAttempt(StoreError):
    """A newer attempt at this run exists: this one is a leftover and must stop."""


def numbers(files: Files, folder: str) -> list[int]:
    """Attempts that were opened in a run's folder, oldest first.

    A folder without attempt.json is no attempt yet: someone is opening it, was killed there or found the
    disk full. Nothing was written in it.
    """
    names = [name for name in files.names(f"{folder}/attempts") if name.isdigit()]
    return sorted(int(n) for n in names if files.exists(f"{folder}/attempts/{n}/attempt.json"))


class Attempt:
    """Opened by `RunRecord.begin`; a context manager that never ends without a recorded reason.

    Rows gather in memory and are closed as a write-once segment after 10 s, 1 MB or on `flush`. A row's
    `step` counts completed updates and never falls. The parts of one step's row may come apart.
    whole: says up to which step the attempts before have left every row.
    """

    def __init__(self, files: Files, folder: str, provenance: dict, whole: Callable[[], int]):
        self._files, self._run, self._whole = files, folder, whole
        self.number = self._open(provenance)
        self.folder = f"{folder}/attempts/{self.number:04d}"
        self.checkpoints = files.path(f"{folder}/checkpoints")
        self._lines: list[str] = []
        self._bytes = self._segments = self._events = 0
        self._opened_at = 0.0
        self._last: dict = {"step": -1}
        self._resumed_from: int | None = None
        self._ended = False

    def _open(self, provenance: dict) -> int:
        content = {"provenance": provenance, "process": this_process(), "opened": now()}
        number = max(numbers(self._files, self._run), default=0) + 1
        while not self._files.create(
            f"{self._run}/attempts/{number:04d}/attempt.json", json.dumps(content, indent=1).encode()
        ):
            number += 1
        return number

    def resumed(self, step: int) -> None:
        """Say, before the first row, from how many completed updates this attempt starts (0: scratch).

        Raises StoreError where rows up to there are lost: no later attempt would write them.
        """
        if self._resumed_from is not None:
            raise StoreError(
                f"{self.folder}: resumed({step}) after it began at step {self._resumed_from}: say it once, "
                "before the first row"
            )
        # asked now: what an older attempt wrote before this one was opened counts too
        if step and step > (whole := self._whole()):
            raise StoreError(
                f"{self._files.path(self._run)} has a checkpoint of step {step}, but its rows are whole only "
                f"to step {whole}: restore its attempts, or delete it to train the run again"
            )
        self._resumed_from = self._last["step"] = step
        kind, detail = ("start", "") if self.number == 1 else ("restart", f"from step {step}")
        self.event(step, kind, detail, resumed_from=step)

    def row(self, row: dict) -> None:
        """Keep one row: `step` and any scalars (numbers, numpy or jax scalars, text, booleans)."""
        step = row.get("step")
        if type(step) is not int or step < 0:
            raise StoreError(f"{self.folder}: a row needs a whole `step` >= 0, got {step!r} in {sorted(row)}")
        if self._resumed_from is None:
            self.resumed(0)
        if step < self._last["step"]:
            raise StoreError(f"{self.folder}: a row of step {step} after one of step {self._last['step']}")
        if step > self._last["step"]:
            self._last = {}
        for key, value in row.items():
            if key in self._last and str(self._last[key]) != str(value):  # as text: NaN repeats itself
                raise StoreError(
                    f"{self.folder}: {key} of step {step} was {self._last[key]!r} and is now {value!r}: one "
                    "value a key and step"
                )
        self._last |= row
        line = encode(row)
        if not self._lines:
            self._opened_at = time.monotonic()
        self._lines.append(line)
        self._bytes += len(line)
        if self._bytes >= SEGMENT_BYTES or time.monotonic() - self._opened_at >= SEGMENT_SECONDS:
            self.flush()

    def event(self, step: int, kind: str, detail: str = "", registered: bool = True, **more: object) -> None:
        """Keep an event, on disk at once. registered: was it declared before it happened?"""
        event = {
            "step": step,
            "kind": kind,
            "detail": detail,
            "registered": registered,
            **more,
            "time": now(),
        }
        self._close(f"events-{self._events + 1:08d}.jsonl", [encode(event)])
        self._events += 1

    def flush(self) -> None:
        """Close the open segment: its rows are on disk and readers see them."""
        if self._lines:
            self._close(f"metrics-{self._segments + 1:08d}.jsonl", self._lines)
            # counted once it is there: what a full disk refused is written under the same number later
            self._segments += 1
            self._lines, self._bytes = [], 0

    def _close(self, name: str, lines: list[str]) -> None:
        self._files.put(f"{self.folder}/{name}", ("\n".join(lines) + "\n").encode())

    def check_current(self) -> None:
        """Raise StaleAttempt when a newer attempt exists; called before anything is published."""
        newest = max(numbers(self._files, self._run))
        if newest != self.number:
            raise StaleAttempt(
                f"{self._files.path(self.folder)} was followed by attempt {newest}: this process is a "
                "leftover and may not publish"
            )

    def finish(self, state: Ending, reason: str = "") -> None:
        """Flush, and publish how the attempt ended. Raises StaleAttempt when a newer attempt exists.

        The word lies in the attempt's own folder and readers ask the newest attempt, so that even a process
        that stalls between the check and the write cannot speak for its successor.
        """
        self.flush()
        self.check_current()
        self._ended = True
        content = {"state": state, "reason": reason, "ended": now()}
        self._files.put(f"{self.folder}/status.json", json.dumps(content, indent=1).encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ended:
            return
        if error is None:
            self.finish("stopped", "ended without a result")
            return
        interrupted = isinstance(error, KeyboardInterrupt)
        reason = "interrupted" if interrupted else f"{type(error).__name__}: {error}"
        with contextlib.suppress(StaleAttempt):  # the error that ended the block says more
            self.finish("stopped" if interrupted else "failed", reason)
