"""Reading: one run's record, merged from its attempts."""

import json
from dataclasses import dataclass

import pandas as pd

from ladder.accounting import eval_points
from ladder.spec import RunSpec
from ladder.store.attempt import Attempt, numbers
from ladder.store.files import Files, StoreError
from ladder.store.notes import failures
from ladder.store.process import is_gone
from ladder.store.rows import AttemptRows, merge, read_lines

EVAL_COLUMNS = (
    "run", "rung", "step", "tokens", "flops", "params_active", "progress", "loss", "peak_lr", "seed", "unit",
)  # fmt: skip


@dataclass(frozen=True)
class RunRecord:
    """A run of the ladder and what its attempts have written so far; every read looks again."""

    files: Files
    id: str
    rung: str
    spec: RunSpec

    @property
    def _folder(self) -> str:
        return f"runs/{self.id}"

    @property
    def folder(self) -> str:
        """Full path or URL."""
        return self.files.path(self._folder)

    @property
    def checkpoints(self) -> str:
        """Full path or URL of the run's checkpoint folder."""
        return self.files.path(f"{self._folder}/checkpoints")

    @property
    def begun(self) -> bool:
        """Has any attempt been opened?"""
        return bool(self.attempts())

    def begin(self, spec: RunSpec, provenance: dict) -> Attempt:
        """Open the next attempt. Raises StoreError for another spec than the stored one or a finished run."""
        name = f"{self._folder}/run.json"
        content = {
            "run": self.id,
            "rung": self.rung,
            "fingerprint": spec.fingerprint,
            "spec": spec.model_dump(mode="json"),
            "provenance": provenance,
        }
        self._same(self.spec.fingerprint, spec)
        text = json.dumps(content, indent=1).encode()
        if not self.files.create(name, text):
            if self.begun:
                self._same(self.files.json(name, "fingerprint")["fingerprint"], spec)
            else:
                self.files.put(name, text)  # left by one that never opened its attempt: it binds nobody
        if self._state(self.attempts())[0] == "finished":
            raise StoreError(f"run {self.id!r} in {self.folder} is finished: read it, or use another store")
        return Attempt(self.files, self._folder, provenance, self.whole)

    def _same(self, stored: str, spec: RunSpec) -> None:
        if stored != spec.fingerprint:
            raise StoreError(
                f"run {self.id!r} in {self.folder} has fingerprint {stored[:12]}, the one to train has "
                f"{spec.fingerprint[:12]}: train it in another store (--store DIR)"
            )

    def status(self) -> dict:
        """run, state, attempt, step, steps, loss (the last evaluation), tokens_per_s, eta_s, reason,
        fingerprint; None for what is not known.

        state: queued | running | finished | failed | stopped. A failed run that the driver will try again is
        queued. A run whose process ended without a word on this host is failed; on another host it is called
        running until its driver says otherwise, because nobody here can know.
        """
        rows = self.rows()
        attempts = self.attempts()
        state, reason = self._state(attempts)
        step = rows[-1]["step"] if rows else None
        speed = _last(rows, "tokens_per_s")
        left = (self.spec.steps - step) * self.spec.batch_tokens if step is not None else None
        return {
            "run": self.id,
            "state": state,
            "attempt": attempts[-1] if attempts else None,
            "step": step,
            "steps": self.spec.steps,
            "loss": _last(rows, "eval_loss"),
            "tokens_per_s": speed,
            "eta_s": left / speed if state == "running" and left is not None and speed else None,
            "reason": reason,
            "fingerprint": self.spec.fingerprint,
        }

    def _state(self, attempts: list[int]) -> tuple[str, str]:
        newest = attempts[-1] if attempts else 0
        state, reason = self._ended(newest) if attempts else ("queued", "")
        if state in ("queued", "running", "failed"):
            verdicts = failures(self.files, self.id)
            if verdicts and verdicts[-1]["attempt"] == newest:
                return "queued" if verdicts[-1]["retry"] else "failed", verdicts[-1]["reason"]
        return state, reason

    def _ended(self, attempt: int) -> tuple[str, str]:
        """State and reason by the attempt's own word, or by what became of its process."""
        folder = f"{self._folder}/attempts/{attempt:04d}"
        try:
            status = self.files.json(f"{folder}/status.json", "state", "reason")
            return status["state"], status["reason"]
        except FileNotFoundError:
            process = self.files.json(f"{folder}/attempt.json", "process")["process"]
        if is_gone(process):
            return "failed", f"process {process['pid']} ended without closing attempt {attempt}"
        return "running", ""

    def attempts(self) -> list[int]:
        """Numbers of the attempts that were opened, oldest first."""
        return numbers(self.files, self._folder)

    def reached(self, attempt: int) -> tuple[int | None, int | None]:
        """(completed updates that an attempt started from, that it came to); None where it never said."""
        rows = self._lines(attempt, "metrics")
        start = self._resumed_from(attempt)
        return start, rows[-1]["step"] if rows else start

    def rows(self) -> list[dict]:
        """One row a step, in order: the newest attempt wins a step, and rows of older attempts past the step
        that a newer one resumed from are void. Raises StoreError for a torn line in the middle."""
        return merge(
            AttemptRows(number, self._resumed_from(number), self._lines(number, "metrics"))
            for number in numbers(self.files, self._folder)
        )

    def whole(self) -> int:
        """The step up to which no row is missing."""
        steps = [row["step"] for row in self.rows() if row["step"] > 0]
        return next((before for before, step in enumerate(steps) if step != before + 1), len(steps))

    def frame(self) -> pd.DataFrame:
        """`rows` as a table; a value that a row lacks is NaN."""
        return pd.DataFrame(self.rows())

    def events(self) -> list[dict]:
        """Everything that happened, in the order of attempts, with `attempt` added."""
        return [
            event | {"attempt": number}
            for number in numbers(self.files, self._folder)
            for event in self._lines(number, "events")
        ]

    def evals(self) -> list[dict]:
        """A row (EVAL_COLUMNS) for each scheduled evaluation that has happened."""
        losses = {row["step"]: row["eval_loss"] for row in self.rows() if "eval_loss" in row}
        constant = {"rung": self.rung, "seed": self.spec.seed, "unit": self.spec.evaluation.unit}
        return [
            {key: (point | constant | {"loss": losses[point["step"]]})[key] for key in EVAL_COLUMNS}
            for point in eval_points(self.spec, self.id)
            if point["step"] in losses
        ]

    def _resumed_from(self, attempt: int) -> int | None:
        return next(
            (event["resumed_from"] for event in self._lines(attempt, "events") if "resumed_from" in event),
            None,
        )

    def _lines(self, attempt: int, kind: str) -> list[dict]:
        """Rows of all segments of a kind. Numbers run on, so a missing segment is an error, not a gap."""
        folder = f"{self._folder}/attempts/{attempt:04d}"
        found = [name for name in self.files.names(folder) if name.startswith(f"{kind}-")]
        count = int(found[-1].removeprefix(f"{kind}-").removesuffix(".jsonl")) if found else 0
        segments = []
        for number in range(1, count + 1):
            name = f"{folder}/{kind}-{number:08d}.jsonl"
            try:
                segments.append((self.files.path(name), self.files.get(name)))
            except FileNotFoundError:
                raise StoreError(
                    f"{self.files.path(name)} is missing and {found[-1]} exists: restore it from a copy, "
                    f"or delete {self.folder} to train the run again"
                ) from None
        return read_lines(segments)


def _last(rows: list[dict], key: str) -> float | None:
    return next((row[key] for row in reversed(rows) if key in row), None)
