"""fit: refusals, grades, notices, and what an answer must be invariant to."""

import numpy as np
import pandas as pd
import pytest

from analysis import AnalysisError, EvalsError, fit
from analysis.priors import load_prior, widened


def codes(fitted):
    return [notice.code for notice in fitted.warnings]


def test_an_exact_law_is_recovered_and_its_continuation_inside(finals):
    fitted = fit(finals)
    assert fitted.grade == "strong"
    assert codes(fitted) == []
    row = fitted.predict({"flops": [6.4e20]}).iloc[0]
    truth = 1.7 + 1.4 * 640**-0.15
    assert row["lo"] < truth < row["hi"]
    assert row["median"] == pytest.approx(truth, rel=0.01)
    assert (row["hi"] - row["lo"]) / 2 / row["median"] < 0.03
    assert fitted.frame()["residual"].abs().max() < 0.002


@pytest.mark.parametrize(
    ("keep", "code", "said"),
    [
        (slice(0, 1), "too_few_runs", "1 runs on 1 rungs"),
        (slice(0, 0), "empty", "no rows"),
    ],
)
def test_too_few_runs(finals, keep, code, said):
    with pytest.raises(AnalysisError, match=said) as error:
        fit(finals.iloc[keep])
    assert error.value.code == code


def test_replicates_of_one_rung_are_not_a_ladder(finals):
    same = pd.concat([finals.iloc[:1].assign(run=f"s{k}", loss=3.1 + 0.01 * k) for k in range(4)])
    with pytest.raises(AnalysisError, match="4 runs on 1 rungs") as error:
        fit(same)
    assert error.value.code == "too_few_runs"


def test_spans_are_refused_graded_and_noted(ladder_rows):
    def spanning(times):
        return ladder_rows(sizes=tuple(1e18 * times ** (k / 3) for k in range(4)), progress=(1.0,))

    with pytest.raises(AnalysisError, match=r"1\.4x; at least 1\.5x") as error:
        fit(spanning(1.4))
    assert error.value.code == "span_too_small"
    short, medium, long = fit(spanning(5)), fit(spanning(20)), fit(spanning(40))
    assert (short.grade, codes(short)) == ("weak", ["short_span"])
    assert (medium.grade, codes(medium)) == ("strong", ["short_span"])
    assert (long.grade, codes(long)) == ("strong", [])


@pytest.mark.parametrize("count", [2, 3])
def test_two_or_three_rungs_are_answered_weakly(finals, count):
    fitted = fit(finals.iloc[[0, 2, 3][:count]])
    assert fitted.grade == "weak"
    assert "few_rungs" in codes(fitted)
    strong = fit(finals)
    far = {"flops": [1e21]}
    width = [f.predict(far).eval("hi - lo").item() for f in (fitted, strong)]
    assert width[0] > width[1]


def test_an_unfinished_run_is_named_and_left_out(ladder_rows):
    rows = ladder_rows()
    cut = rows[(rows["run"] != "r3") | (rows["progress"] < 0.9)]
    fitted = fit(cut)
    assert fitted.unfinished == ("r3",)
    assert "unfinished_runs" in codes(fitted)
    assert "r3" in fitted.summary()
    assert fitted.top_flops == 1.6e19


def test_tokens_per_parameter_decide_the_law(finals):
    assert "constant within 0.0%" in fit(finals).why
    drifting = finals.assign(
        tokens=finals["tokens"] * [1, 1.1, 1.2, 1.3], flops=finals["flops"] * [1, 1.1, 1.2, 1.3]
    )
    joint = fit(drifting)
    assert joint.law == "joint" and "from 20 to 26" in joint.why
    assert fit(drifting, law="compute").why == "asked for"
    assert "not checked" in fit(finals[["run", "flops", "loss"]]).why
    with pytest.raises(AnalysisError, match="auto, compute, joint"):
        fit(finals, law="cosmic")
    with pytest.raises(AnalysisError, match="joint law needs params_active and tokens"):
        fit(finals[["run", "flops", "loss"]], law="joint")


def test_two_sizes_at_one_budget_are_no_compute_law(finals):
    grid = pd.concat([finals, finals.assign(run=finals["run"] + "b", rung=None, loss=finals["loss"] + 0.05)])
    grid["rung"] = grid["run"]
    with pytest.raises(AnalysisError, match="best run of each budget") as error:
        fit(grid, law="compute")
    assert error.value.code == "one_run_a_budget"


def test_losses_that_rise_are_no_scaling_law(finals):
    """Rising losses are fitted at best by a flat law, and flagged as scatter; never extrapolated up."""
    rising = fit(finals.assign(loss=finals["loss"].to_numpy()[::-1]))
    assert "noisy_ladder" in codes(rising)
    assert rising.predict({"flops": [1e21]})["median"].item() < finals["loss"].max()


def test_a_run_in_bits_is_found_by_leaving_it_out(finals):
    finals.loc[1, "loss"] /= np.log(2)
    fitted = fit(finals)
    texts = [n.text for n in fitted.warnings if n.code == "outlier_rung" and n.text.startswith("rung r1 ")]
    assert texts and "is it in bits?" in texts[0]


def test_predict_keeps_rows_and_marks_far_and_low_targets(finals):
    at = pd.DataFrame({"name": ["far", "near", "low"], "flops": [6.4e22, 6.4e20, 1e17]}, index=[7, 3, 5])
    out = fit(finals).predict(at)
    assert list(out["name"]) == ["far", "near", "low"]
    assert list(out.index) == [7, 3, 5]
    assert list(out["mark"]) == ["point only", "", "below the rungs"]
    assert out["lo"].isna().tolist() == [True, False, False]
    assert out["median"].notna().all()
    assert out["times"].tolist() == pytest.approx([1000, 10, 1 / 640])


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ({"tokens": [1e9]}, "no column 'flops'"),
        ({"flops": ["1e21"]}, "'1e21' (str)"),
        ({"flops": [1e21], "progress": [0.2]}, "analysis.forecast"),
        ({"flops": [1e21], "unit": ["bits/byte"]}, "the target's unit is 'bits/byte'"),
    ],
)
def test_predict_refuses_what_it_cannot_mean(finals, at, said):
    with pytest.raises(EvalsError) as error:
        fit(finals).predict(at)
    assert said in str(error.value)


def test_level_is_a_probability(finals):
    with pytest.raises(AnalysisError, match="level=90"):
        fit(finals).predict({"flops": [1e21]}, level=90)


def test_order_of_rows_changes_nothing_at_all(ladder_rows):
    rows = ladder_rows()
    one, other = fit(rows), fit(rows.sample(frac=1, random_state=1))
    at = {"flops": [1e20, 1e21]}
    pd.testing.assert_frame_equal(one.predict(at), other.predict(at), check_exact=True)
    assert one.summary() == other.summary()


def test_units_scale_out(finals):
    """In an unknown unit, twice the losses give twice the band; FLOPs in any unit give the same."""
    at = {"flops": [1e21]}
    one = fit(finals, unit="other").predict(at)
    double = fit(finals.assign(loss=2 * finals["loss"]), unit="other").predict(at)
    peta = fit(finals.assign(flops=finals["flops"] / 1e15), unit="other").predict({"flops": [1e6]})
    for name in ("median", "lo", "hi"):
        assert double[name].item() == pytest.approx(2 * one[name].item(), rel=1e-9)
        assert peta[name].item() == pytest.approx(one[name].item(), rel=1e-9)


def test_the_unit_chooses_the_prior_of_the_floor(finals):
    nats = fit(finals, unit="nats/token").posterior.coefficient("E").average
    byte = fit(finals, unit="bits/byte").posterior.coefficient("E").average
    assert abs(nats - 1.7) < 0.2
    assert byte < nats - 0.3


def test_replicates_inform_the_noise_and_count_as_one_rung(finals):
    noisy = pd.concat(
        [
            finals,
            *(
                finals.assign(run=finals["run"] + f"-{k}", loss=finals["loss"] * (1 + 0.01 * k))
                for k in (-1, 1)
            ),
        ]
    )
    single, replicated = fit(finals), fit(noisy)
    assert replicated.posterior.noise > 2 * single.posterior.noise
    assert replicated.final["rung"].nunique() == 4
    two = pd.concat([finals.iloc[[0, 3]], finals.iloc[[0, 3]].assign(run=["a", "b"])])
    assert fit(two).grade == "weak"  # four runs, two rungs


def test_a_users_prior_is_used_and_recorded(finals):
    pulled = fit(finals, prior={"E": {"mean": 1.2, "sd": 0.02}})
    assert pulled.posterior.coefficient("E").average == pytest.approx(1.2, abs=0.05)
    assert pulled.prior["version"] == "P0, changed: E"
    assert pulled.prior["E"]["nats/token"]["mean"] == 1.2
    by_unit = fit(finals, prior={"E": {"nats/token": {"mean": 1.2, "sd": 0.02}}})
    assert (
        by_unit.predict({"flops": [1e21]})["median"].item()
        == pulled.predict({"flops": [1e21]})["median"].item()
    )


@pytest.mark.parametrize(
    "change",
    [
        "P0",
        {"E": 1.5},
        {"E": {"sd": 0.6}},
        {"F": {"mean": 1}},
        {"g": {"sd": 0.0}},
        {"E": {"mean": float("nan"), "sd": 1}},
    ],
)
def test_a_prior_that_cannot_be_is_refused(change):
    with pytest.raises(AnalysisError) as error:
        load_prior(change)
    assert error.value.code == "bad_prior"


def test_every_entry_of_the_prior_has_a_source():
    prior = load_prior()
    entries = [v for k, v in prior.items() if k not in ("version", "E")] + list(prior["E"].values())
    assert len(entries) == 12
    assert all(entry["source"] for entry in entries)


def test_a_wider_prior_is_wider_in_everything():
    prior = load_prior()
    wide = widened(prior, 2)
    assert (wide["g"]["sd"], wide["K"]["sd"]) == (2 * prior["g"]["sd"], 2 * prior["K"]["sd"])
    assert all(wide["E"][unit]["sd"] == 2 * prior["E"][unit]["sd"] for unit in prior["E"])
    assert wide["tau"] == prior["tau"]


def test_report_says_what_the_band_is_made_of(finals):
    fitted = fit(finals)
    report = fitted.report(6.4e20)
    assert sum(report.shares.values()) == pytest.approx(1)
    assert set(report.shares) == {"prior", "form", "noise"}
    assert report.times == pytest.approx(10)
    assert list(report.influence) == ["r0", "r1", "r2", "r3"]
    assert abs(report.influence["r3"]) < 0.02
    assert list(report.rolling["rungs"]) == [2, 3, 4]
    assert report.rolling["median"].iloc[-1] == pytest.approx(report.median)
    assert report.wide_prior_half_width > report.half_width
    assert list(report.left_out["rung"]) == ["r0", "r1", "r2", "r3"]
    assert report.left_out["z"].abs().max() < 1
    assert "prior twice as wide" in report.summary()


def test_farther_targets_have_wider_bands_with_more_of_the_form(finals):
    fitted = fit(finals)
    near, far = fitted.report(2 * fitted.top_flops), fitted.report(100 * fitted.top_flops)
    assert far.half_width > near.half_width
    assert far.shares["form"] > near.shares["form"]
    assert far.shares["noise"] < near.shares["noise"]


def test_summary_always_states_the_condition(finals):
    text = fit(finals).summary()
    assert "given that the recipe transfers" in text
    assert "prior P0" in text
