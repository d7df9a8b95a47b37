"""What a user is told about a table that cannot be used, and about one that can but should be looked at."""

import numpy as np
import pandas as pd
import pytest

from analysis.frame import EvalsError, read_evals


def change(rows, name, value, where=None):
    rows = rows.copy()
    if where is None:
        rows[name] = value
    else:
        rows[name] = rows[name].astype(object) if name in rows else None
        rows.loc[where, name] = value
    return rows


BAD = {
    "not_a_table": (lambda r: "evals.csv", "list of rows"),
    "missing_column": (lambda r: r.drop(columns="flops"), "flops"),
    "empty": (lambda r: r.iloc[:0], "no rows"),
    "run_missing": (lambda r: change(r, "run", None, 2), "row 2"),
    "not_a_number": (lambda r: change(r, "tokens", "1,234", 3), "'1,234' (str) in row 3 (run 'r0')"),
    "not_finite": (lambda r: change(r, "loss", np.nan, 4), "row 4 (run 'r0') (1 such rows)"),
    "not_positive": (lambda r: change(r, "loss", -1.0, 5), "loss is -1 in row 5"),
    "unknown_unit": (lambda r: change(r, "unit", "bits/token"), "nats/token, bits/byte, other"),
    "mixed_units": (
        lambda r: change(change(r, "unit", "nats/token"), "unit", "bits/byte", 3),
        "bits/byte, nats",
    ),
    "unit_needed": (lambda r: r.assign(loss=r["loss"] / 3), "pass unit="),
    "mixed_definitions": (lambda r: change(change(r, "metric", "c4"), "metric", "pile", 0), "c4, pile"),
    "duplicate_rows": (lambda r: pd.concat([r, r.iloc[[3]].assign(loss=3.3)]), "same step but different"),
    "progress_percent": (lambda r: r.assign(progress=100 * r["progress"]), "divide by 100"),
    "progress_missing": (lambda r: r.drop(columns="progress"), "has 7 rows and there is no progress"),
    "not_increasing": (lambda r: change(r, "step", 5000, 3), "step does not grow"),
    "mixed_rung": (lambda r: r.assign(rung="one"), "replicates differ by seed only"),
}


@pytest.mark.parametrize("code", BAD)
def test_unusable_tables_are_refused_with_the_place_and_the_next_step(ladder_rows, code):
    spoil, said = BAD[code]
    with pytest.raises(EvalsError) as error:
        read_evals(spoil(ladder_rows()))
    assert error.value.code == code
    assert said in str(error.value)


def test_parameters_counted_two_ways_are_found(finals):
    """The third run's parameters with a large embedding added, those of its neighbours without."""
    finals.loc[2, "params_active"] *= 2.5
    with pytest.raises(EvalsError, match=r"r3.*counted in two ways"):
        read_evals(finals)


def test_one_run_has_one_size(ladder_rows):
    rows = ladder_rows()
    rows.loc[0, "params_active"] *= 2
    with pytest.raises(EvalsError, match="one run, one size"):
        read_evals(rows)


def test_row_order_container_and_exact_repeats_do_not_matter(ladder_rows):
    rows = ladder_rows()
    read = read_evals(rows)
    shuffled = read_evals(rows.sample(frac=1, random_state=3))
    pd.testing.assert_frame_equal(read.rows, shuffled.rows)
    as_dicts = read_evals(rows.to_dict("records"))
    pd.testing.assert_frame_equal(read.rows, as_dicts.rows)
    repeated = read_evals(pd.concat([rows, rows.iloc[:2]]))
    pd.testing.assert_frame_equal(read.rows, repeated.rows)
    assert [n.code for n in repeated.notices] == ["repeated_rows"]
    assert list(read.final["run"]) == ["r0", "r1", "r2", "r3"]


def test_flops_beyond_int64_and_ignored_columns(finals):
    rows = finals.to_dict("records")
    for row in rows:
        row["flops"] = int(row["flops"]) * 10**6  # Python ints of 1e24: pandas holds them as objects
        row["comment"] = {"any": "thing"}
    read = read_evals(rows)
    assert read.final["flops"].max() == pytest.approx(6.4e25)
    assert "comment" not in read.rows


def test_unfinished_runs_are_named_and_not_final(ladder_rows):
    rows = ladder_rows()
    cut = rows[(rows["run"] != "r3") | (rows["progress"] < 0.9)]
    read = read_evals(cut)
    assert read.unfinished == ("r3",)
    assert "r3" not in set(read.final["run"])
    assert "r3 (80.0%)" in read.notices[0].text


def test_replicates_share_a_rung(finals):
    twice = pd.concat([finals, finals.iloc[:2].assign(run=["r0-r1", "r1-r1"], loss=[3.09, 2.83])])
    assert list(read_evals(twice).final["rung"]) == ["r0", "r0", "r1", "r1", "r2", "r3"]
    named = twice.assign(rung=["a", "b", "c", "d", "a", "b"])
    assert sorted(set(read_evals(named).final["rung"])) == ["a", "b", "c", "d"]


def test_incomplete_decay_and_shallow_rungs_are_flagged(finals):
    finals["lr"] = [1e-4, 1e-4, 8e-4, 0.0]
    finals["peak_lr"] = 1e-3
    finals.loc[0, "tokens"] = 4 * finals.loc[0, "params_active"]
    finals.loc[0, "flops"] *= 4 / 20
    texts = {n.code: n.text for n in read_evals(finals).notices}
    assert texts["decay_incomplete"].startswith("r2 ends at 80%")
    assert texts["shallow_rung"].startswith("r0 saw 4 tokens")


def test_unit_is_asked_for_only_when_it_is_needed(finals):
    assert read_evals(finals).unit == "nats/token"
    assert read_evals(finals.assign(loss=finals["loss"] / 3), unit="bits/byte").unit == "bits/byte"
    with pytest.raises(EvalsError, match="make them agree"):
        read_evals(finals.assign(unit="bits/byte"), unit="other")
