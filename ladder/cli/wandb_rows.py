"""A watched run's rows from W&B: an offline run's .wandb file, or the service."""

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analysis.monitor.sources import Row, SourceError

HEADER, BLOCK, HEAD = 7, 32768, 7  # bytes: of the file; of a block of records; of a record's own header
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class WandbFile:
    """The history of an offline run, read on as the file grows. Its records are those of a LevelDB log."""

    ended = False

    def __init__(self, path: str | Path):
        self._path, self._at, self.name = Path(path), HEADER, str(path)

    def new(self) -> list[Row]:
        from wandb.proto.wandb_internal_pb2 import Record

        try:
            content = self._path.read_bytes()
        except OSError as error:
            raise SourceError("no_file", f"{self.name}: {error.strerror}: name an existing file") from None
        if content[:4] != b":W&B":
            raise SourceError("not_wandb", f"{self.name} is no .wandb file: it does not begin with :W&B")
        rows = []
        for data in self._records(content):
            record = Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                rows.append(
                    stepped({i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in items})
                )
        return rows

    def _records(self, content: bytes) -> Iterator[bytes]:
        """Whole records past the last one that was read."""
        at, parts = self._at, b""
        while True:
            left = BLOCK - at % BLOCK
            if left < HEAD:  # a block's last bytes hold no record
                at += left
                continue
            if at + HEAD > len(content):
                return
            _, length, kind = struct.unpack("<IHB", content[at : at + HEAD])
            if kind not in (FULL, FIRST, MIDDLE, LAST) or at + HEAD + length > len(content):
                return
            parts += content[at + HEAD : at + HEAD + length]
            at += HEAD + length
            if kind in (FULL, LAST):
                self._at = at
                yield parts
                parts = b""


class WandbRun:
    """A run on the service: [entity/]project/run. Each look asks only for lines past the last one."""

    def __init__(self, path: str):
        import wandb

        self.name, self._path, self._api, self._next = path, path, wandb.Api(timeout=20), 0
        self._run: Any = None

    def new(self) -> list[Row]:
        from wandb.errors import CommError

        try:
            self._run = self._api.run(self._path)
        except (CommError, ValueError) as error:
            text = f"W&B has no run {self._path} for this key ({error}): give [entity/]project/run"
            raise SourceError("no_run", text) from None
        self._run.load(force=True)
        lines = list(self._run.scan_history(min_step=self._next, use_cache=False))
        self._next = max([self._next, *(int(line["_step"]) + 1 for line in lines)])
        return [stepped(line) for line in lines]

    @property
    def ended(self) -> bool:
        return self._run is not None and self._run.state in ("finished", "failed", "crashed", "killed")


def stepped(line: dict[str, Any]) -> Row:
    """A line of history as a row: its own step where it has one, else W&B's; NaN as a number."""
    row = {key: WORDS.get(value, value) if isinstance(value, str) else value for key, value in line.items()}
    step = row.get("step", row.get("_step"))
    return {"step": step} | {k: v for k, v in row.items() if not k.startswith("_") and v is not None}
