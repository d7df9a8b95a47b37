"""The fast Huber fit against SciPy on synthetic sets, and its derivatives against differences."""

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize

from analysis.hubers import _derivatives, huber_fit, refits


def runs(seed, n=60, q=2, noise=0.01):
    rng = np.random.default_rng(seed)
    x = np.log(np.stack([10 ** rng.uniform(7.5, 10, n), 10 ** rng.uniform(9, 11.5, n)])[:q])
    exponents = np.array([0.34, 0.3])[:q] + 0.05 * rng.standard_normal(q)
    terms = np.array([0.8, 0.7])[:q, None] * np.exp(-exponents[:, None] * (x - x.mean(axis=1)[:, None]))
    return x, np.log(1.7 + terms.sum(axis=0)) + noise * rng.standard_t(3, n)


def slow(x, y, starts, delta=1e-3):
    """Hoffmann et al.'s way: L-BFGS from a grid of starts."""

    def loss(p):
        e, c, powers = p[0], p[1 : 1 + len(x)], p[1 + len(x) :]
        parts = np.vstack([np.full(len(y), e), c[:, None] - powers[:, None] * x])
        top = parts.max(axis=0)
        share = np.exp(parts - top)
        r = top + np.log(share.sum(axis=0)) - y
        share /= share.sum(axis=0)
        psi = np.clip(r, -delta, delta)
        size = np.abs(r)
        value = np.where(size <= delta, r * r / 2, delta * (size - delta / 2)).sum()
        return value, np.concatenate([share @ psi, -(share[1:] * x) @ psi])

    options = {"maxiter": 5000, "ftol": 1e-16, "gtol": 1e-13}
    return min(minimize(loss, s, jac=True, method="L-BFGS-B", options=options).fun for s in starts)


@pytest.mark.parametrize(("q", "seed"), [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)])
def test_the_optimum_is_that_of_many_slow_starts(q, seed):
    x, y = runs(seed, q=q)
    found = huber_fit(x, y)
    rng = np.random.default_rng(9)
    starts = [np.concatenate([[0.5], rng.uniform(0, 12, q), rng.uniform(0.1, 0.8, q)]) for _ in range(12)]
    best = slow(x, y, starts)
    assert found.objective <= best * (1 + 1e-8)
    assert np.median(np.abs(np.log(found.predict(x)) - y)) < 0.01


def test_gradient_and_hessian_are_differences_of_the_objective():
    x, y = runs(3)
    at, weight = x - x.mean(axis=1)[:, None], np.ones((1, y.size))
    theta = np.array([[0.5, -0.2, -0.3, 0.33, 0.28]])
    _, gradient, hessian = _derivatives(theta, at, y, weight, 0.05)
    for k in range(5):
        step = 1e-6 * np.eye(5)[k]
        up, down = (_derivatives(theta + sign * step, at, y, weight, 0.05) for sign in (1, -1))
        assert (up[0] - down[0]) / 2e-6 == pytest.approx(gradient[:, k], rel=1e-5, abs=1e-8)
        assert np.allclose((up[1] - down[1]) / 2e-6, hessian[:, k], rtol=1e-4, atol=1e-5)


def test_refits_are_fits_of_the_resampled_runs():
    x, y = runs(4)
    best = huber_fit(x, y)
    weight = np.random.default_rng(0).multinomial(60, np.full(60, 1 / 60), size=3).astype(float)
    for count, found in zip(weight, refits(best, x, y, weight), strict=True):
        again = huber_fit(np.repeat(x, count.astype(int), axis=1), np.repeat(y, count.astype(int)))
        assert found.objective == pytest.approx(again.objective, rel=1e-6)


def test_the_public_refit_is_reproduced(public_data):
    """Epoch's refit of the Chinchilla points (2024) leaves out the five of least loss per budget outliers and
    reads alpha .3478, beta .3658; on all 245 points alpha is the same, and beta rises with the outliers."""
    table = pd.read_csv(public_data / "chinchilla_epoch" / "runs.csv")
    table = table[table["tokens"] / table["params_active"] >= 1]
    x = np.log(table[["params_active", "tokens"]].to_numpy().T)
    found = huber_fit(x, np.log(table["final_loss"].to_numpy()))
    assert found.exponents[0] == pytest.approx(0.3478, abs=0.02)
    assert found.exponents[1] == pytest.approx(0.3658, abs=0.03)
