"""One contract for every place that rows can come from, and what a stitcher makes of a damaged log."""

import json
import random
from pathlib import Path

import pandas as pd
import pytest

from analysis.monitor import Monitor
from analysis.monitor.sources import JsonLines, SourceError, Stitch, StoreRun, Table
from ladder import Store
from ladder.cli.wandb_rows import WandbFile
from tests.ladder.examples import LADDER, RUN

ROWS = [{"step": k, "tokens": 32 * k, "train_ce": 3.0 - k / 100, "grad_norm": 0.5} for k in range(1, 21)]
ROWS[9]["eval_loss"] = 2.9


def store(folder: Path):
    Store(folder).create(LADDER)
    attempt = Store(folder).run("d8").begin(RUN, {})

    def write(rows):
        for row in rows:
            attempt.row(row)
        attempt.flush()

    return StoreRun(str(folder), "d8"), write


def jsonl(folder: Path):
    path = folder / "rows.jsonl"
    path.touch()

    def write(rows):
        with path.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    return JsonLines(path), write


def table(suffix: str):
    def build(folder: Path):
        path, kept = folder / f"rows.{suffix}", []

        def write(rows):
            kept.extend(rows)
            frame = pd.DataFrame(kept)
            frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)

        return Table(path), write

    return build


def wandb_file(folder: Path):
    """Records as the client writes them: header, then a LevelDB log of protobuf records."""
    import struct

    from wandb.proto.wandb_internal_pb2 import Record

    path = folder / "run-x.wandb"
    path.write_bytes(b":W&B" + struct.pack("<HB", 0xBEE1, 0))

    def write(rows):
        with path.open("ab") as file:
            for row in rows:
                record = Record()
                for key, value in {"_step": row["step"], **row}.items():
                    record.history.item.add(key=key, value_json=json.dumps(value))
                record.history.item.add(key="_pad", value_json=json.dumps("x" * 3000))  # blocks are crossed
                data, kind = record.SerializeToString(), 1
                while True:
                    left = 32768 - file.tell() % 32768
                    if left < 7:
                        file.write(b"\0" * left)
                        continue
                    part, data = data[: left - 7], data[left - 7 :]
                    kind = (4 if kind != 1 else 1) if not data else 2 if kind == 1 else 3
                    file.write(struct.pack("<IHB", 0, len(part), kind) + part)
                    if not data:
                        break

    return WandbFile(path), write


SOURCES = {
    "store": store,
    "jsonl": jsonl,
    "csv": table("csv"),
    "parquet": table("parquet"),
    "wandb": wandb_file,
}


@pytest.fixture(params=SOURCES)
def source(request, tmp_path):
    return SOURCES[request.param](tmp_path)


def rows_of(entries):
    keys = ROWS[9].keys()
    return [{k: v for k, v in entry.items() if k in keys} for entry in entries if "kind" not in entry]


def test_rows_come_once_whole_and_in_order(source):
    reads, write = source
    write(ROWS[:12])
    assert rows_of(reads.new()) == ROWS[:12]
    assert rows_of(reads.new()) == []
    write(ROWS[12:])
    assert rows_of(reads.new()) == ROWS[12:]


def test_a_row_has_only_what_was_measured(source):
    reads, write = source
    write(ROWS)
    entries = [entry for entry in reads.new() if "kind" not in entry]
    assert [("eval_loss" in entry) for entry in entries] == [k == 9 for k in range(20)]


def test_an_unfinished_line_is_left_for_the_next_look(tmp_path):
    reads, write = jsonl(tmp_path)
    write(ROWS[:2])
    with reads._path.open("a") as file:
        file.write('{"step": 3, "train')
    assert len(reads.new()) == 2
    with reads._path.open("a") as file:
        file.write('_ce": 2.5}\n')
    assert reads.new() == [{"step": 3, "train_ce": 2.5}]


def test_what_is_no_log_is_refused_with_its_place(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"step": 1}\nhello\n')
    with pytest.raises(SourceError, match=r"rows.jsonl:2 is no JSON object"):
        JsonLines(tmp_path / "rows.jsonl").new()
    with pytest.raises(SourceError, match="name an existing"):
        JsonLines(tmp_path / "none.jsonl").new()
    (tmp_path / "x.wandb").write_bytes(b"no")
    with pytest.raises(SourceError, match="does not begin with"):
        WandbFile(tmp_path / "x.wandb").new()


def outcome(forecast, rows):
    """(final state, steps and states of each change) of a monitor behind a stitcher."""
    monitor, stitch, changes, state = Monitor(forecast), Stitch(), [], "normal"
    for row in [*stitch.add(rows), *stitch.flush()]:
        verdict = monitor.update(row)
        if verdict.state != state:
            state = verdict.state
            changes.append((verdict.step, state))
    return state, [change for change in changes if change[1] in ("precursor", "runaway")]


def damaged(rows, rng, resumes):
    """The log with rows twice, out of order by a few, and resumes that go back up to 100 steps."""
    out, at = [], 0
    while at < len(rows):
        out.append(rows[at])
        if rng.random() < 0.02:
            out.append(rows[at])
        if resumes and rng.random() < 0.002 and at > 200:
            resumes, at = resumes - 1, at - rng.randrange(2, 100)
        at += 1
    for k in range(len(out) - 1):
        if rng.random() < 0.02 and abs(out[k]["step"] - out[k + 1]["step"]) == 1:
            out[k], out[k + 1] = out[k + 1], out[k]
    return out


def test_damaged_logs_give_the_same_alarms(forecast, clean):
    rows = clean(3, n=1300)
    rows[1100]["grad_norm"] *= 30
    wanted = outcome(forecast, rows)
    assert wanted[1] == [(1101, "precursor")]
    for seed in range(8):
        assert outcome(forecast, damaged(rows, random.Random(seed), 3)) == wanted, seed


def test_gaps_are_not_waited_for_for_ever():
    stitch = Stitch()
    given = stitch.add(row for row in ROWS if row["step"] not in (5, 6))
    assert [row["step"] for row in given] == [1, 2, 3, 4]
    assert [row["step"] for row in given + stitch.flush()] == [k for k in range(1, 21) if k not in (5, 6)]


def test_late_rows_find_their_place_and_steps_that_fall_back_are_a_restart():
    order = [1, 2, 4, 3, 5, 6, 7, 5, 6, 7, 8]
    given = Stitch().add({"step": step} for step in order)
    assert [(row["step"], row["attempt"]) for row in given] == [
        *((k, 1) for k in range(1, 8)),
        *((k, 2) for k in (5, 6, 7, 8)),
    ]
