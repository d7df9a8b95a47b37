"""Rows of a run: strict JSON lines, and the merge of what several attempts wrote."""

import json
import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ladder.store.files import StoreError

_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class StoreWarning(UserWarning):
    """The record can be read, but something in it was lost."""


def _plain(value: Any) -> Any:
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:  # a numpy or jax scalar
        return value.item()
    raise TypeError(f"{type(value).__name__} has no place in a row: use a number, text, true, false or null")


_strict = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=_plain)


def encode(row: dict) -> str:
    """One line of strict JSON, without the newline. NaN and infinities become "nan", "inf", "-inf"."""
    try:
        return _strict.encode(row)
    except ValueError:  # JSON has no such numbers
        return _strict.encode(_worded(row))


def _worded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _worded(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_worded(part) for part in value]
    if hasattr(value, "item"):
        value = _plain(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def decode(line: str | bytes) -> dict:
    """The inverse of `encode`; the text of `kind` and `detail` stays text."""
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError("no JSON object")
    return {key: value if key in ("kind", "detail") else _numbered(value) for key, value in row.items()}


def _numbered(value: Any) -> Any:
    if isinstance(value, str):
        return _WORDS.get(value, value)
    if isinstance(value, dict):
        return {key: _numbered(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_numbered(part) for part in value]
    return value


def read_lines(segments: Iterable[tuple[str, bytes]]) -> list[dict]:
    """Rows of one attempt from its (path, content) segments in order.

    A torn last line of the last segment is dropped with a StoreWarning; a torn line before it is an error.
    """
    lines = [
        (f"{path}:{number}", line)
        for path, content in segments
        for number, line in enumerate(content.splitlines(keepends=True), 1)
    ]
    rows = []
    for at, (where, line) in enumerate(lines):
        try:
            rows.append(decode(line))
        except ValueError as error:
            if at < len(lines) - 1:
                raise StoreError(
                    f"{where}: torn line in the middle of the record ({error}): {line[:80]!r}; restore the "
                    "file from a copy, or delete the folder of its run to train the run again"
                ) from None
            warnings.warn(f"{where}: torn last line dropped: {line[:80]!r}", StoreWarning, stacklevel=2)
    return rows


@dataclass(frozen=True)
class AttemptRows:
    """What one attempt wrote. `resumed_from`: completed updates it started from; None: it never started."""

    number: int
    resumed_from: int | None
    rows: list[dict]


def merge(attempts: Iterable[AttemptRows]) -> list[dict]:
    """One row a step, in order of step, with `attempt` added.

    The newest attempt that has a step wins it. Rows of an older attempt past the step from which a newer one
    resumed are void: the newer one's parameters never saw those updates. Parts of one row that an attempt
    wrote apart (training values, an evaluation) are joined.
    """
    merged: dict[int, dict] = {}
    valid_to = math.inf
    for attempt in sorted(attempts, key=lambda attempt: attempt.number, reverse=True):
        mine: dict[int, dict] = {}
        for row in attempt.rows:
            if row["step"] <= valid_to:
                mine.setdefault(row["step"], {}).update(row, attempt=attempt.number)
        merged = mine | merged
        if attempt.resumed_from is not None:
            valid_to = min(valid_to, attempt.resumed_from)
    return [merged[step] for step in sorted(merged)]
