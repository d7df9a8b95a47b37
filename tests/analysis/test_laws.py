"""One contract for every law of the final loss: terms, bounds, recovery, refusals."""

import numpy as np
import pandas as pd
import pytest

from analysis import AnalysisError, fit
from analysis.laws import LAWS
from analysis.posterior import solve
from analysis.priors import coefficient_prior, exponent_grid, load_prior

SIZES = {"compute": (1.4,), "joint": (0.9, 0.7)}
EXPONENTS = {"compute": (0.15,), "joint": (0.34, 0.30)}


def sizes():
    """Twelve runs, three tokens-per-parameter ratios on each of four sizes."""
    params = np.repeat([1e8, 3e8, 9e8, 2.7e9], 3)
    tokens = params * np.tile([20.0, 60.0, 180.0], 4)
    return pd.DataFrame({"flops": 6 * params * tokens, "params_active": params, "tokens": tokens})


def exact(name, rows, reference):
    law = LAWS[name]
    X = law.terms(np.array([EXPONENTS[name]]), rows, reference)[0]
    return X @ np.array([1.8, *SIZES[name]])


def ladder(name):
    rows = sizes().sort_values("flops").reset_index(drop=True)
    if name == "compute":
        rows = rows.drop_duplicates("flops").reset_index(drop=True)
    reference = LAWS[name].reference(rows)
    names = [f"r{k}" for k in range(len(rows))]
    return rows.assign(run=names, rung=names, loss=exact(name, rows, reference)), reference


@pytest.mark.parametrize("name", LAWS)
def test_terms_are_one_at_the_reference_and_fall_from_it(name):
    law, (_, reference) = LAWS[name], ladder(name)
    theta, _ = exponent_grid(law, load_prior())
    at = pd.DataFrame({column: [reference[column], 3 * reference[column]] for column in law.columns})
    X = law.terms(theta, at, reference)
    assert X.shape == (len(theta), 2, len(law.coefficients))
    assert np.allclose(X[:, 0], 1)
    assert np.all(X[:, 1, 0] == 1) and np.all(X[:, 1, 1:] < 1) and np.all(X > 0)


@pytest.mark.parametrize("name", LAWS)
def test_the_slope_in_each_size_is_the_exponent(name):
    """d log(term) / d log(size) = -exponent, by a central difference."""
    law, (rows, reference) = LAWS[name], ladder(name)
    theta = np.array([EXPONENTS[name]])
    for k, column in enumerate(law.columns if name == "compute" else law.columns[1:]):
        up, down = (rows.assign(**{column: rows[column] * f}) for f in (1.001, 1 / 1.001))
        change = np.log(law.terms(theta, up, reference) / law.terms(theta, down, reference))[0, :, k + 1]
        base = 10 if name == "compute" else np.e
        unit = np.log(1.001**2) / np.log(base) * np.log(base)
        assert np.allclose(change / unit, -EXPONENTS[name][k], rtol=1e-6)


@pytest.mark.parametrize("name", LAWS)
def test_an_exact_law_is_recovered_and_its_continuation_is_inside(name):
    rows, reference = ladder(name)
    fitted = fit(rows, law=name)
    assert fitted.law == name and fitted.posterior.noise < 0.003
    big = rows.iloc[[-1]][["flops", "params_active", "tokens"]] * [10.0, 10**0.5, 10**0.5]
    truth = exact(name, big, reference)[0]
    row = fitted.predict(big).iloc[0]
    assert row["lo"] < truth < row["hi"] and row["median"] == pytest.approx(truth, rel=0.01)
    low, _, high = fitted.parameters()["E"]
    assert low < 1.8 < high
    for exponent, value in zip(LAWS[name].exponents, EXPONENTS[name], strict=True):
        low, _, high = fitted.parameters()[exponent]
        assert low < value < high


@pytest.mark.parametrize("name", LAWS)
def test_coefficients_stay_positive(name):
    """A flat ladder: every falling term is pressed against zero and none goes below."""
    rows, _ = ladder(name)
    flat = rows.assign(loss=3.0 + 0.001 * np.cos(np.arange(len(rows))))
    found = solve(LAWS[name], flat, load_prior(), "nats/token")
    assert all(found.coefficient(each).average > 0 for each in LAWS[name].coefficients)
    assert np.all(found._parts.mean[:, 1:] > -1e-9)


@pytest.mark.parametrize("name", LAWS)
def test_a_known_coefficient_moves_the_band_to_where_it_says(name):
    """A floor known to .001 is the floor of the answer: priors are used as written."""
    rows, _ = ladder(name)
    prior = load_prior({"E": {"mean": 1.5, "sd": 0.001}})
    m, sd = coefficient_prior(LAWS[name], prior, "nats/token", rows["loss"].to_numpy())
    assert (m[0], sd[0]) == (1.5, 0.001)
    fitted = fit(rows, law=name, prior={"E": {"mean": 1.5, "sd": 0.001}})
    assert fitted.parameters()["E"][1] == pytest.approx(1.5, abs=0.005)


@pytest.mark.parametrize("name", LAWS)
def test_what_a_law_needs_and_does_not_get_is_named(name):
    rows, _ = ladder(name)
    fitted = fit(rows, law=name)
    for column in LAWS[name].columns:
        with pytest.raises(AnalysisError, match=f"no column '{column}'"):
            fitted.predict(rows[[c for c in LAWS[name].columns if c != column] or ["run"]])
    with pytest.raises(AnalysisError, match="a law needs at least 2 rungs"):
        fit(rows.iloc[:1], law=name)
    report = fitted.report()
    assert sum(report.shares.values()) == pytest.approx(1)
    assert report.wide_prior_half_width > 0.5 * report.half_width
