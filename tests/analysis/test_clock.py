"""The trajectory law in tokens and steps: its derivatives, what it recovers, and when it is used."""

import numpy as np
import pandas as pd
import pytest

from analysis import AnalysisError, clock, fit, forecast
from analysis.frame import read_evals
from analysis.priors import load_prior
from analysis.trajectory import conditioned

PROGRESS = np.geomspace(0.05, 1, 12)
RUNGS = ((6e7, 4e10, 9000), (1.8e8, 1.2e11, 11000), (5.4e8, 3.6e11, 12000), (1.6e9, 1.1e12, 14000))
TARGET = (1.4e10, 9e12, 250_000)


def run(name, params, tokens, steps, rng=None):
    """L = 1.6 + .6 (N/N_r)^-.3 + .2 (D/D_r)^-.3 + .2 S^-.8 + .1 (1 - x); N_r, D_r: the second rung's."""
    x = PROGRESS
    loss = 1.6 + 0.6 * (params / 1.8e8) ** -0.3 + 0.2 * (tokens * x / 1.2e11) ** -0.3
    loss = loss + 0.2 * (steps * x / 1000) ** -0.8 + 0.1 * (1 - x)
    if rng is not None:
        loss = loss + 0.003 * rng.standard_normal(len(x))
    return pd.DataFrame(
        {
            "run": name, "step": np.round(steps * x), "tokens": tokens * x, "flops": 6 * params * tokens * x,
            "params_active": params, "progress": x, "loss": loss,
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def rungs():
    rng = np.random.default_rng(3)
    return pd.concat([run(f"r{k}", *size, rng) for k, size in enumerate(RUNGS)], ignore_index=True)


@pytest.fixture(scope="module")
def target():
    return run("big", *TARGET)


@pytest.fixture(scope="module")
def frozen(rungs, target):
    return forecast(fit(rungs), target.drop(columns="loss"))


def test_a_target_of_many_more_steps_is_forecast_by_the_clock(frozen, rungs, target):
    assert frozen.payload["trajectory"]["law"] == "clock"
    assert "17.9x the steps of the longest rung" in frozen.payload["trajectory"]["why"]
    frame = frozen.frame((0.9,))
    assert np.all((target["loss"] > frame["sim_lo90"]) & (target["loss"] < frame["sim_hi90"]))
    matched = forecast(fit(rungs), target.drop(columns="loss"), trajectory="shape").frame((0.9,))
    early = slice(0, 4)
    bias = [(f["median"] - target["loss"])[early].mean() for f in (frame, matched)]
    assert abs(bias[0]) < 0.5 * abs(bias[1])


def test_a_target_of_the_rungs_steps_is_matched_by_progress(rungs):
    same = run("big", 5e9, 3.3e12, 20_000).drop(columns="loss")
    assert forecast(fit(rungs), same).payload["trajectory"]["law"] == "shape"
    asked = forecast(fit(rungs), same, trajectory="clock").payload["trajectory"]
    assert (asked["law"], asked["why"]) == ("clock", "asked for")
    with pytest.raises(AnalysisError, match="auto, clock, shape"):
        forecast(fit(rungs), same, trajectory="by eye")
    with pytest.raises(AnalysisError, match="the clock needs step, tokens") as error:
        forecast(fit(rungs.drop(columns="step")), same, trajectory="clock")
    assert error.value.code == "clock_unusable"


def test_derivatives_are_differences(rungs):
    rows = read_evals(rungs).rows
    at = clock.points(rows, clock.reference(rows))
    phi, E, p = np.array([-0.4, 0.3, -1.2, 0.25, -1.5, 0.8, 0.1]), np.array(1.6), np.array(0.5)
    _, J = clock._law(phi, E, p, at)
    for k in range(7):
        step = 1e-6 * np.eye(7)[k]
        slope = (clock._law(phi + step, E, p, at)[0] - clock._law(phi - step, E, p, at)[0]) / 2e-6
        assert np.allclose(slope, J[:, k], atol=1e-8)


def test_modes_are_modes_and_members_keep_their_weight(rungs):
    rows = read_evals(rungs).rows
    ref = clock.reference(rows)
    found = clock.solve(clock.points(rows, ref), ref, 0.001, load_prior(), "nats/token")
    assert found.weight.sum() == pytest.approx(1)
    assert np.allclose(found.weight[:, found.p == 0].sum(axis=1), 1 / 8)
    assert np.isfinite(found.phi).all()
    best = np.unravel_index(found.weight.argmax(), found.weight.shape)
    fitted = clock._law(found.phi[best], found.E[best[1]], found.p[best[1]], found.data)[0]
    assert np.abs(fitted - found.data.loss).max() < 0.03


def test_the_targets_own_rows_narrow_the_band_and_leave_the_frozen_one_alone(frozen, target):
    before = frozen.sha256
    own = target[target["progress"] <= 0.2]
    updated = frozen.update(own[["step", "loss"]])
    assert frozen.sha256 == before != updated.sha256
    assert updated.payload["updates"] == before
    later = (frozen.frame()["progress"] > 0.2).to_numpy()
    width = [(f.frame()["hi90"] - f.frame()["lo90"])[later].mean() for f in (frozen, updated)]
    assert width[1] < 0.4 * width[0]
    frame = updated.frame((0.9,))[later]
    loss = target["loss"][later]
    assert np.all((loss > frame["sim_lo90"]) & (loss < frame["sim_hi90"]))
    assert updated.recomputed().sha256 == updated.sha256


def test_rows_after_a_change_of_regime_do_not_update(frozen, target):
    rows = target[target["progress"] <= 0.4].rename(columns={"loss": "eval_loss"}).to_dict("records")
    cut = [row for row in rows if row["progress"] < 0.2]
    change = {"step": 0.2 * TARGET[2], "kind": "mixture", "registered": True}
    assert frozen.update(rows, events=[change]).sha256 == frozen.update(cut).sha256
    with pytest.raises(AnalysisError, match="first change of regime") as error:
        frozen.update(rows, events=[change | {"step": 1}])
    assert error.value.code == "nothing_to_update"


def test_conditioning_draws_is_the_regression_for_normal_logs():
    """Two correlated logs, sd 1 and .5, correlation .8: given the first at +1 the second is .4 +- .3."""
    rng = np.random.default_rng(0)
    root = np.linalg.cholesky(np.array([[1.0, 0.4], [0.4, 0.25]]))
    samples = np.exp(rng.standard_normal((4000, 2)) @ root.T)
    given = np.log(conditioned(samples, np.array([np.e])))
    assert given.mean() == pytest.approx(0.4, abs=0.03)
    assert given.std() == pytest.approx(0.3, rel=0.05)


def test_many_evaluations_are_thinned(rungs):
    dense = pd.concat([rungs] * 1)
    assert len(clock.thinned(dense)) == len(dense)
    long = pd.concat([run("a", *RUNGS[0]).assign(step=np.arange(12) + 12 * k + 1) for k in range(20)])
    long["progress"] = np.linspace(0.01, 1, len(long))
    kept = clock.thinned(long)
    assert len(kept) <= clock.MOST and kept["progress"].iloc[[0, -1]].tolist() == [0.01, 1.0]


def test_the_public_535b_run(public_data):
    """Four public rungs -> the first quarter of the 535B run, in nats; measured .0046, -.0027, .122, and
    .0071, .0155 updated at 10 %."""
    evals = pd.read_csv(public_data / "marin_ladder" / "evals.csv")
    landed = pd.read_csv(public_data / "marin_ladder" / "target_first_quarter.csv")
    frozen = forecast(fit(evals, prior={"E": {"mean": 1.5, "sd": 0.25}}), landed.drop(columns="loss"))

    def compare(forecast, low):
        both = forecast.frame((0.9,)).merge(landed[["step", "loss"]], on="step")
        both = both[both["progress"] >= low]
        error, frame = both["median"] - both["loss"], both
        inside = (both["loss"] >= frame["sim_lo90"]) & (both["loss"] <= frame["sim_hi90"])
        return error, inside.all(), ((frame["hi90"] - frame["lo90"]) / 2).mean(), both["progress"]

    error, inside, half_width, progress = compare(frozen, 0.05)
    assert inside and error.abs().mean() <= 0.015 and half_width < 0.13
    assert abs(error[progress <= 0.1].mean()) <= 0.035
    error, inside, half_width, _ = compare(frozen.update(landed[landed["progress"] <= 0.1]), 0.1)
    assert inside and error.abs().mean() <= 0.008 and half_width <= 0.028
