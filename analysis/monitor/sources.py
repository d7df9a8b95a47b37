"""Where a watched run's rows come from. Every source answers `new()` with what is there since the last call.

A source gives rows (step, metrics) and events (kind) as mappings, in the order in which they were written:
late, twice, with gaps, after restarts. `Stitch` puts them in order for the monitor.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from analysis.frame import AnalysisError
from analysis.monitor.watcher import declared_events
from ladder.store import Store
from ladder.store.rows import decode
from ladder.store.tail import Tail

Row = dict[str, Any]
ENDED = ("finished", "failed", "stopped")
REACH = 32  # rows for which one that is missing or late is waited for


class Source(Protocol):
    """`name` for people; `ended` is True once nothing more will come (False where a source cannot know)."""

    name: str

    def new(self) -> list[Row]: ...

    @property
    def ended(self) -> bool: ...


class SourceError(AnalysisError):
    """A source that cannot be read."""


class StoreRun:
    """A run of a store: its declared changes, then its attempts' rows and events, each with its attempt."""

    def __init__(self, url: str, run: str):
        self._record = Store(url).run(run)
        self._tail, self.name = Tail(self._record), f"{url} {run}"
        self._declared = declared_events(self._record.spec)

    def new(self) -> list[Row]:
        declared, self._declared = self._declared, []
        return declared + [{**entry.content, "attempt": entry.attempt} for entry in self._tail.new()]

    @property
    def ended(self) -> bool:
        return self._record.status()["state"] in ENDED


class JsonLines:
    """A file of JSON objects, one a line, that may still grow; an unfinished last line is left for later."""

    ended = False

    def __init__(self, path: str | Path):
        self._path, self._at, self._line, self.name = Path(path), 0, 0, str(path)

    def new(self) -> list[Row]:
        content = _bytes(self._path)[self._at :]
        whole = content[: content.rfind(b"\n") + 1]
        self._at += len(whole)
        rows = []
        for line in whole.splitlines():
            self._line += 1
            if line.strip():
                rows.append(self._decoded(line))
        return rows

    def _decoded(self, line: bytes) -> Row:
        try:
            return decode(line)
        except ValueError as error:
            text = f"{self.name}:{self._line} is no JSON object ({error}): remove the line or repair it"
            raise SourceError("not_json", text) from None


class Table:
    """A CSV or parquet file that is written anew or appended to; empty cells are missing values."""

    ended = False

    def __init__(self, path: str | Path):
        self._path, self._seen, self.name = Path(path), 0, str(path)

    def new(self) -> list[Row]:
        read = pd.read_parquet if self._path.suffix == ".parquet" else pd.read_csv
        try:
            frame = read(self._path)
        except FileNotFoundError as error:
            raise SourceError("no_file", f"{self.name}: {error.strerror}: name an existing table") from None
        except pd.errors.EmptyDataError:
            return []
        except (ValueError, OSError) as error:
            text = f"{self.name} is no {self._path.suffix[1:]} table ({error}): export it again"
            raise SourceError("not_a_table", text) from None
        fresh, self._seen = frame.iloc[self._seen :], len(frame)
        return [filled(row) for row in fresh.to_dict("records")]


def filled(row: Mapping[Any, Any]) -> Row:
    """The cells that hold a value, numpy scalars as Python ones."""
    plain = {str(key): value.item() if hasattr(value, "item") else value for key, value in row.items()}
    return {k: v for k, v in plain.items() if v is not None and not (isinstance(v, float) and math.isnan(v))}


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SourceError("no_file", f"{path}: {error.strerror}: name an existing file") from None


class Stitch:
    """Rows of any source in the order that the monitor wants: each once, by step, restarts as new attempts.

    A row past a gap waits for what is missing until REACH rows wait, or the source has ended. A row that was
    given before is dropped, as is a late one whose place has gone. Steps that fall back by two rows running
    are a restart: where rows carry no attempt, one is counted.
    """

    def __init__(self) -> None:
        self.last: int | None = None  # the newest step that was given
        self.stride = 0  # smallest distance of two steps; 0: not known
        self.attempt: int | None = None  # of the rows themselves
        self.restarts = 1
        self._waiting: dict[int, Row] = {}
        self._given: dict[int, Row] = {}  # the last REACH rows
        self._back: list[Row] = []  # a row far back: a stray one, or the first after a restart

    def add(self, rows: Iterable[Mapping[str, Any]]) -> list[Row]:
        """What may be given now that these rows have come."""
        out: list[Row] = []
        for row in rows:
            if "step" not in row:
                raise SourceError("no_step", f"a row without step (it has {sorted(row)}): map a column to it")
            out += self._one({**row, "step": int(row["step"])})
        return out

    def flush(self) -> list[Row]:
        """Everything that still waits."""
        out = [self._give(self._waiting.pop(step)) for step in sorted(self._waiting)]
        return out

    def _one(self, row: Row) -> list[Row]:
        attempt, step = row.get("attempt"), row["step"]
        if attempt is not None and self.attempt is not None:
            if attempt < self.attempt:
                return []  # a leftover of an attempt that is over
            if attempt > self.attempt:
                return self._restart(row)
        self.attempt = attempt if attempt is not None else self.attempt
        if self.last is None:
            return [self._give(row)]
        if step <= self.last:
            return self._behind(row)
        self._back = []
        merged = {**self._waiting.get(step, {}), **row}
        self._waiting[step] = merged
        out = []
        while self._waiting:
            first = min(self._waiting)
            if self.stride and first > self.last + self.stride and len(self._waiting) < REACH:
                break
            out.append(self._give(self._waiting.pop(first)))
        return out

    def _behind(self, row: Row) -> list[Row]:
        step = row["step"]
        if step in self._given:
            more = {key: value for key, value in row.items() if key not in self._given[step]}
            if more:  # the other half of a row: an evaluation after the training values
                self._given[step] |= more
                return [{"step": step, **self._carried(), **more}]
        if "attempt" in row:
            return []
        self._back = [*self._back, row] if self._back and step > self._back[-1]["step"] else [row]
        if len(self._back) < 2 or self._back[-1]["step"] - self._back[0]["step"] > max(self.stride, 1):
            return []
        rows, self._back = self._back, []
        self.restarts += 1
        return [*self._restart(rows[0]), *self._one(rows[1])]

    def _restart(self, row: Row) -> list[Row]:
        out = self.flush() if self._waiting else []
        self.attempt, self._given = row.get("attempt"), {}
        return [*out, self._give(row)]

    def _give(self, row: Row) -> Row:
        if self.last is not None and row["step"] > self.last:
            distance = row["step"] - self.last
            self.stride = min(self.stride, distance) if self.stride else distance
        self.last = row["step"]
        self._given[row["step"]] = dict(row)
        if len(self._given) > REACH:
            del self._given[next(iter(self._given))]
        return {**row, **self._carried()}

    def _carried(self) -> Row:
        return {"attempt": self.restarts if self.attempt is None else self.attempt}


def renamed(row: Mapping[str, Any], columns: Mapping[str, str]) -> Row:
    """columns: the source's name -> ours."""
    return {columns.get(key, key): value for key, value in row.items()}


def save(path: Path, content: Mapping[str, Any]) -> None:
    """A JSON file that appears whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(content), "utf-8")
    part.replace(path)
