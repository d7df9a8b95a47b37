"""Following a run: what its attempts have written since the last look, old attempts included."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ladder.store.attempt import numbers
from ladder.store.rows import read_lines
from ladder.store.run import RunRecord


class Entry(NamedTuple):
    attempt: int
    kind: Literal["row", "event"]
    content: dict


@dataclass
class Tail:
    """`new` gives each row and event once, in order of attempt and step; a segment is read only once."""

    record: RunRecord
    _read: dict[tuple[int, str], int] = field(default_factory=dict)  # segments read, by attempt and kind

    def new(self) -> list[Entry]:
        found: list[Entry] = []
        for attempt in numbers(self.record.files, f"runs/{self.record.id}"):
            events = self._segments(attempt, "events")
            rows = self._segments(attempt, "metrics")
            entries = [Entry(attempt, "event", event) for event in events]
            entries += [Entry(attempt, "row", row) for row in rows]
            # a start stands before the first row, anything else after the row of its step
            found += sorted(entries, key=lambda entry: (entry.content["step"], entry.kind == "event"))
        return found

    def _segments(self, attempt: int, kind: str) -> list[dict]:
        files, folder = self.record.files, f"runs/{self.record.id}/attempts/{attempt:04d}"
        done = self._read.get((attempt, kind), 0)
        names = [name for name in files.names(folder) if name.startswith(f"{kind}-")][done:]
        self._read[attempt, kind] = done + len(names)
        return read_lines([(files.path(f"{folder}/{name}"), files.get(f"{folder}/{name}")) for name in names])
