"""Rows go in and come out: JSON, segments, torn lines."""

import json
import math
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder.store import StoreError, StoreWarning, attempt
from ladder.store.rows import decode, encode
from tests.ladder.examples import RUN, trained


def test_a_row_comes_back_as_it_was(store):
    row = {
        "step": 1,
        "tokens": np.int64(2**53 + 1),
        "train_ce": np.float32(0.5),
        "grad_norm": math.inf,
        "update_norm": -np.inf,
        "eval_loss": np.float32("nan"),
        "skipped": np.bool_(True),
        "config_hash": "abc",
    }
    life = store.run("d8").begin(RUN, {})
    life.row(row)
    life.flush()
    (back,) = store.run("d8").rows()
    assert math.isnan(back.pop("eval_loss"))
    assert back == {key: value for key, value in row.items() if key != "eval_loss"} | {"attempt": 1}
    assert type(back["tokens"]) is int and type(back["step"]) is int


TEXT = ("kind", "detail")  # whose values are text in every row


@given(
    st.dictionaries(
        st.text().filter(lambda key: key not in TEXT), st.floats() | st.integers() | st.booleans() | st.none()
    )
)
def test_any_row_is_one_line_of_strict_json(row):
    line = encode(row)
    assert "\n" not in line
    json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert repr(decode(line)) == repr(row)


def test_a_nan_deep_in_the_evidence_of_an_event_survives(store):
    life = store.run("d8").begin(RUN, {})
    life.event(3, "verdict", "nan", evidence={"z": [math.inf, np.float64("nan")]})
    (event,) = store.run("d8").events()
    assert event["detail"] == "nan"
    assert event["evidence"]["z"][0] == math.inf and math.isnan(event["evidence"]["z"][1])


def test_rows_are_seen_after_a_flush_and_cut_by_size_and_time(store, monkeypatch):
    run = store.run("d8")
    life = run.begin(RUN, {})
    life.row({"step": 1, "train_ce": 1.0})
    assert run.rows() == []
    life.flush()
    life.flush()  # nothing open: no empty segment
    assert len(run.rows()) == 1
    monkeypatch.setattr(attempt, "SEGMENT_BYTES", 40)  # two rows
    for step, seen in ((2, 1), (3, 3), (4, 3), (5, 5)):
        life.row({"step": step, "train_ce": 1.0})
        assert len(run.rows()) == seen
    monkeypatch.setattr(attempt, "SEGMENT_BYTES", 10**9)
    clock = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    life.row({"step": 6, "train_ce": 1.0})
    clock += attempt.SEGMENT_SECONDS
    life.row({"step": 7, "train_ce": 1.0})
    assert [row["step"] for row in run.rows()] == list(range(1, 8))


def test_parts_of_a_row_are_joined(store):
    life = store.run("d8").begin(RUN, {})
    life.row({"step": 5, "tokens": 160, "train_ce": 2.0})
    life.row({"step": 5, "tokens": 160, "eval_loss": 3.0, "eval/text": 3.5})
    life.row({"step": 6, "tokens": 192, "train_ce": 1.0})
    life.flush()
    assert store.run("d8").rows() == [
        {"step": 5, "tokens": 160, "train_ce": 2.0, "eval_loss": 3.0, "eval/text": 3.5, "attempt": 1},
        {"step": 6, "tokens": 192, "train_ce": 1.0, "attempt": 1},
    ]
    assert list(store.run("d8").frame()["step"]) == [5, 6]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"train_ce": 1.0}, "whole `step`"),
        ({"step": 1.0}, "whole `step`"),
        ({"step": -1}, "whole `step`"),
        ({"step": 4}, "after one of step 5"),
        ({"step": 5, "train_ce": 2.0}, "train_ce of step 5 was 1.0 and is now 2.0"),
    ],
)
def test_a_row_that_cannot_be_is_refused(store, row, words):
    life = store.run("d8").begin(RUN, {})
    life.row({"step": 5, "train_ce": 1.0})
    with pytest.raises(StoreError, match=words):
        life.row(row)


def test_a_torn_last_line_is_dropped_with_a_warning(folder):
    run = folder.run("d8")
    trained(run, 0, 3)
    (segment,) = Path(run.folder).rglob("metrics-*.jsonl")
    assert [row["step"] for row in run.rows()] == [1, 2, 3]
    for lost in (2, 5):
        segment.write_bytes(segment.read_bytes()[:-lost])
        with pytest.warns(StoreWarning, match="torn last line"):
            assert [row["step"] for row in run.rows()] == [1, 2]


def test_a_torn_line_before_the_last_is_an_error_with_its_place(folder):
    run = folder.run("d8")
    life = trained(run, 0, 3)
    life.row({"step": 4, "train_ce": 1.0})
    life.flush()
    segment = min(Path(run.folder).rglob("metrics-*.jsonl"))
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-4])
    with pytest.raises(StoreError, match=r"metrics-00000001\.jsonl:3: torn line"):
        run.rows()
    segment.write_bytes(whole[:4] + b"\xff" + whole[5:])
    with pytest.raises(StoreError, match=r"metrics-00000001\.jsonl:1: torn line"):
        run.rows()
    segment.unlink()
    with pytest.raises(StoreError, match=r"metrics-00000001\.jsonl is missing"):
        run.rows()
