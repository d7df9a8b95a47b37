"""Back-tests: which runs are predicted from which, what is counted, and the usual fits beside."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

from analysis import AnalysisError, backtest
from analysis.backtests import OURS, clopper_pearson, interval_score, pooled
from analysis.baselines import BASELINES, nls, pinned


@pytest.fixture
def rungs(rng):
    flops = 1e18 * 4.0 ** np.arange(7)
    loss = (1.7 + 1.4 * (flops / 1e18) ** -0.15) * (1 + 0.002 * rng.standard_normal(7))
    return pd.DataFrame({"run": [f"r{k}" for k in range(7)], "flops": flops, "loss": loss})


def test_rolling_origin_predicts_every_larger_run_from_the_smaller(rungs):
    frame = backtest(rungs, baselines=()).frame()
    pairs = list(zip(frame["rungs"], frame["run"], strict=True))
    assert pairs == [(k, f"r{j}") for k in range(3, 7) for j in range(k, 7)]
    first = frame.iloc[0]
    assert first["times"] == pytest.approx(4)
    assert first["error"] == pytest.approx(first["median"] / rungs["loss"][3] - 1)
    assert first["inside"] == (first["lo"] <= rungs["loss"][3] <= first["hi"])


def test_a_split_by_names_or_by_flops_is_one_origin(rungs):
    named = backtest(rungs, ["r5", "r6"], baselines=()).frame()
    above = backtest(rungs, float(rungs["flops"][4]), baselines=()).frame()
    pd.testing.assert_frame_equal(named, above)
    assert list(named["run"]) == ["r5", "r6"] and set(named["rungs"]) == {5}


def test_what_leaves_nothing_to_predict_is_refused(rungs):
    for hold_out, code in ((["r9"], "unknown_run"), (1e30, "nothing_to_predict")):
        with pytest.raises(AnalysisError) as error:
            backtest(rungs, hold_out)
        assert error.value.code == code
    with pytest.raises(AnalysisError, match="rolling origin needs 4 rungs"):
        backtest(rungs.iloc[:3])


def test_baselines_stand_beside_and_say_nothing_without_degrees_of_freedom(rungs):
    test = backtest(rungs)
    frame, table = test.frame(), test.coverage().set_index("method")
    assert set(frame["method"]) == {OURS, *BASELINES}
    assert frame[frame["method"] == "nls+t"]["rungs"].min() == 4
    assert frame[frame["method"] == "huber"]["rungs"].min() == 3
    assert table.loc[OURS, "score_ratio"] == 1
    shared = frame[frame["method"] == "nls+t"].set_index(["rungs", "run"])["score"]
    ours = frame[frame["method"] == OURS].set_index(["rungs", "run"])["score"].reindex(shared.index)
    assert table.loc["nls+t", "score_ratio"] == pytest.approx(ours.mean() / shared.mean())
    assert "1 independent ladder:" in test.summary()


def test_pooled_tests_count_ladders(rungs):
    two = pooled([backtest(rungs, name=name, baselines=()) for name in ("a", "b")])
    row = two.coverage().iloc[0]
    assert (row["ladders"], row["targets"]) == (2, 20)
    with pytest.raises(AnalysisError, match="different levels"):
        pooled([backtest(rungs, baselines=()), backtest(rungs, level=0.5, baselines=())])


def test_clopper_pearson_is_exact():
    """At the lower end so many hits or more have probability 2.5 %, at the upper so many or fewer."""
    low, high = clopper_pearson(17, 20)
    assert binom.sf(16, 20, low) == pytest.approx(0.025) == binom.cdf(17, 20, high)
    assert clopper_pearson(0, 5)[0] == 0 and clopper_pearson(5, 5) == (pytest.approx(0.4782, abs=1e-4), 1)


def test_interval_score_charges_twenty_times_the_miss_at_90():
    assert interval_score(2.0, 1.9, 2.2, 0.9) == pytest.approx(0.3)
    assert interval_score(2.3, 1.9, 2.2, 0.9) == pytest.approx(0.3 + 20 * 0.1)


def test_an_exact_law_is_found_by_the_baselines():
    x = np.log(1e18 * 4.0 ** np.arange(6))[None]
    y = 1.5 + 1.4 * np.exp(-0.15 * (x[0] - x[0, 0]))
    at = x[:, -1:] + np.log(10)
    truth = 1.5 + 1.4 * np.exp(-0.15 * (at[0] - x[0, 0]))
    for method in (nls, pinned):
        median, lo, hi = method(x, y, at, 0.9, "nats/token")
        assert median == pytest.approx(truth, rel=1e-6) and lo <= median <= hi


@pytest.mark.parametrize(
    ("family", "untuned"),
    [
        ("rw/tuned/short/const", False),
        ("owt2/tuned/short/const", False),
        ("rw/base/short/kaplan", True),
        ("rw/base/short/chinchilla", True),
        ("owt2/base/short/chinchilla", True),
    ],
)
def test_public_isoflop_ladders(public_data, family, untuned):
    """Minima of C <= 4.1e17 -> C >= 6e18: tuned families inside within 2.3 %, untuned ones flagged."""
    runs = pd.read_csv(public_data / "isoflop_discrepancy" / "runs.csv")
    runs = runs.rename(columns={"run_id": "run", "final_loss": "loss"}).drop(columns="lr")
    runs = runs[(runs["family"] == f"{family}/params=standard") & ~runs["flops"].between(4.2e17, 5e18)]
    frame = backtest(runs, 1e18, baselines=()).frame()
    assert frame["flagged"].all() == untuned and len(frame) == 3
    if not untuned:
        assert frame["inside"].all()
        assert frame["error"].abs().max() <= 0.023 and frame["half_width"].mean() <= 0.06


def test_public_joint_ladders(public_data):
    """OLMo: 16 rungs -> 3B to 13B; Chinchilla points: C < 3e20 -> C >= 2e21; datablations -> 7x and 30x."""
    olmo = pd.read_csv(public_data / "olmo_ladder" / "runs.csv").drop(columns=["lr"])
    olmo = olmo.rename(columns={"run_id": "run", "final_loss": "loss"})
    far = ["3B-1xC", "3B-5xC", "3B-10xC", "peteish7_eval_anneal", "peteish13_eval_final"]
    found = backtest(olmo[(olmo["role"] == "fit") | olmo["run"].isin(far)], far, baselines=()).frame()
    assert found["inside"].sum() >= 4 and found["error"].abs().max() <= 0.012
    assert found["half_width"].mean() <= 0.045
    table = pd.read_csv(public_data / "datablations" / "runs.csv").drop(columns=["lr"])
    table = table.rename(columns={"run_id": "run", "final_loss": "loss"})
    table = table[(table["metric"] == "openLM_loss") & (table["epochs"] <= 1.05)]
    table = table[(table["flops"] <= 3.1e20) | table["run"].isin(["contour028", "contour034"])]
    found = backtest(table, 1e21, baselines=()).frame()
    assert found["inside"].all() and found["error"].abs().max() <= 0.035


@pytest.mark.slow
def test_public_chinchilla_points(public_data):
    table = pd.read_csv(public_data / "chinchilla_epoch" / "runs.csv").drop(columns=["lr"])
    table = table.rename(columns={"run_id": "run", "final_loss": "loss"})
    deep = table["tokens"] / table["params_active"] >= 5
    table = table[(deep & (table["flops"] < 3e20)) | (table["flops"] >= 2e21)]
    found = backtest(table, 1e21, law="joint", baselines=()).frame()
    assert len(found) == 14 and found["inside"].sum() >= 12
    assert found["error"].abs().mean() <= 0.013 and found["half_width"].mean() <= 0.026
