"""The posterior against a hand calculation and against brute force."""

import math
import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from analysis.laws import COMPUTE
from analysis.posterior import Mixture, solve, truncated, wiener
from analysis.priors import load_prior

TWIN = runpy.run_path(str(Path(__file__).parents[1] / "reference" / "compute_law.py"))


def runs(u, y, flops=1e18):
    return pd.DataFrame(
        {"run": range(len(u)), "rung": range(len(u)), "flops": flops * 10.0 ** np.array(u), "loss": y}
    )


def at(u, flops=1e18):
    return pd.DataFrame({"flops": [flops * 10.0**u]})


def single_node(g, tau, s, **changes):
    """A prior with one exponent, one tau and one s: the posterior is then one normal."""
    return load_prior(
        {"g": {"grid": [g, g, 1]}, "tau": {"values": [tau]}, "s": {"grid": [s, s, 1]}, **changes}
    )


def by_hand(y, E, K, s):
    """Two runs a decade apart with 10^-g = 1/2, X = [[1, 1], [1, 1/2]]; target two decades up, h = (1, 1/4).

    The posterior precision is [[1/E.sd^2 + 2 p, 1.5 p], [1.5 p, 1/K.sd^2 + 1.25 p]] with p = 1 / (Lbar s)^2.
    """
    scale = (y[0] + y[1]) / 2
    p = 1 / (scale * s) ** 2
    a, b, d = 1 / E[1] ** 2 + 2 * p, 1.5 * p, 1 / K[1] ** 2 + 1.25 * p
    r0, r1 = y[0] - E[0] - K[0], y[1] - E[0] - K[0] / 2
    c0, c1 = p * (r0 + r1), p * (r0 + r1 / 2)
    det = a * d - b * b
    beta0, beta1 = E[0] + (d * c0 - b * c1) / det, K[0] + (a * c1 - b * c0) / det
    var = (d - 2 * b / 4 + a / 16) / det + (scale * s) ** 2
    return beta0 + beta1 / 4, math.sqrt(var)


@pytest.mark.parametrize("E_sd", [0.3, 0.6, 0.01])
def test_two_runs_by_hand_and_a_changed_prior_moves_the_band_as_computed(E_sd):
    y, s = (3.0, 2.4), 0.01
    prior = single_node(math.log10(2), 1e-9, s, E={"mean": 1.7, "sd": E_sd}, K={"mean": 1.5, "sd": 0.4})
    found = solve(COMPUTE, runs((0, 1), y), prior, "nats/token").predictive(at(2))[0]
    mean, sd = by_hand(y, (1.7, E_sd), (1.5, 0.4), s)  # K's scale is max(L) / 3 = 1 here
    assert found.average == pytest.approx(mean, rel=1e-9)
    assert math.sqrt(found.variance) == pytest.approx(sd, rel=1e-7)
    assert found.quantile(0.95) == pytest.approx(mean + 1.6448536269514722 * sd, rel=1e-9)


def test_discrepancy_covariance_is_the_integral_and_grows_as_stated():
    points = np.array([0.0, 0.4, 1.1, 1.5, 2.0, 3.0])
    assert np.allclose(wiener(points, 1.5), TWIN["discrepancy"](points, 1.5), rtol=1e-6, atol=1e-9)
    assert wiener(np.array([1.5, 3.5]), 1.5)[1, 1] == pytest.approx(2.0**3 / 3)


CASES = {
    "ordinary": ((0, 0.5, 1.1, 1.6), (3.0, 2.72, 2.45, 2.31), 2.6, (1.7, 0.3), (1.5, 1.5)),
    "inside the rungs": ((0, 0.5, 1.1, 1.6), (3.0, 2.72, 2.55, 2.31), 0.8, (1.7, 0.3), (1.5, 1.5)),
    "below the rungs": ((0, 0.5, 1.1), (3.0, 2.72, 2.45), -0.5, (1.7, 0.3), (1.5, 1.5)),
    "floor near zero": ((0, 0.6, 1.3), (3.0, 2.2, 1.55), 2.3, (0.2, 0.3), (1.5, 1.5)),
    "nearly flat": ((0, 0.6, 1.2), (3.0, 2.99, 3.02), 2.2, (2.8, 0.3), (0.2, 0.5)),
}


@pytest.mark.parametrize("case", CASES)
def test_predictive_against_brute_force(case):
    """Where the coefficients' Gaussian is cut at zero, too; .002 of probability is .2 % of 90 % claimed."""
    u, y, target, E, K = CASES[case]
    prior = load_prior(
        {
            "g": {"grid": [0.08, 0.26, 3]},
            "tau": {"values": [0.006, 0.03]},
            "s": {"grid": [0.008, 0.03, 2], "scale": 0.01},
            "E": {"mean": E[0], "sd": E[1]},
            "K": {"mean": K[0], "sd": K[1]},
        }
    )
    found = solve(COMPUTE, runs(u, y), prior, "nats/token").predictive(at(target))[0]
    thresholds = [found.quantile(q) for q in (0.02, 0.05, 0.3, 0.5, 0.8, 0.95, 0.98)]
    g_nodes = [(g, -0.5 * ((g - 0.14) / 0.045) ** 2) for g in (0.08, 0.17, 0.26)]
    s_nodes = [(s, -6 * math.log(s) - 3 * (0.01 / s) ** 2) for s in (0.008, 0.03)]
    k = max(y) / 3
    exact = TWIN["cdf"](
        u,
        y,
        target,
        thresholds,
        E,
        (k * K[0], k * K[1]),
        g_nodes,
        (0.006, 0.03),
        s_nodes,
        1.0,
        ((0, 4), (0, 5)),
    )
    assert np.allclose(exact, (0.02, 0.05, 0.3, 0.5, 0.8, 0.95, 0.98), atol=2e-3)


def test_many_rungs_are_tempered_to_twelve(rng):
    """24 rungs count half, in the fit and in the weight of each noise level."""
    u = np.linspace(0, 2, 24)
    y = (1.7 + 1.4 * 10 ** (-0.17 * u)) * (1 + 0.017 * rng.standard_normal(24))
    prior = load_prior(
        {
            "g": {"grid": [0.17, 0.17, 1]},
            "tau": {"values": [0.01]},
            "s": {"grid": [0.01, 0.02, 2], "scale": 0.01},
        }
    )
    found = solve(COMPUTE, runs(u, y), prior, "nats/token").predictive(at(3))[0]
    thresholds = [found.quantile(q) for q in (0.05, 0.5, 0.95)]
    k = max(y) / 3 * 1.5
    s_nodes = [(s, -6 * math.log(s) - 3 * (0.01 / s) ** 2) for s in (0.01, 0.02)]
    args = list(u), list(y), 3, thresholds, (1.7, 0.3), (k, k), [(0.17, 0.0)], (0.01,), s_nodes
    edges = ((0.7, 2.6), (0.4, 2.5))
    assert np.allclose(TWIN["cdf"](*args, 0.5, edges, size=250), (0.05, 0.5, 0.95), atol=1e-3)
    assert abs(TWIN["cdf"](*args, 1.0, edges, size=250)[0] - 0.05) > 3e-3  # the temper matters


def test_truncated_normal_moments():
    """One coefficient far from zero, the other cut: a half-normal has mean sqrt(2 / pi)."""
    weight, point, var = truncated(np.array([[10.0, 0.0]]), np.eye(2)[None])
    share = weight[0] / weight.sum()
    assert weight.sum() == pytest.approx(0.5, rel=1e-9)
    assert share @ point[0, :, 1] == pytest.approx(math.sqrt(2 / math.pi), rel=1e-9)
    assert share @ var[0] == pytest.approx(1 - 2 / math.pi, rel=1e-9)
    first, point, _ = truncated(np.array([[0.0, 10.0]]), np.eye(2)[None])
    assert (first[0] / first.sum()) @ point[0, :, 0] == pytest.approx(math.sqrt(2 / math.pi), rel=2e-3)


def test_mixture_quantiles_by_root_finding(rng):
    mixture = Mixture(np.array([0.5, 0.3, 0.2]), np.array([1.0, 2.0, 2.5]), np.array([0.1, 0.4, 0.02]))
    for q in (1e-4, 0.05, 0.5, 0.9, 0.9999):
        x = mixture.quantile(q)
        by_hand = sum(w * norm.cdf(x, m, s) for w, m, s in ((0.5, 1, 0.1), (0.3, 2, 0.4), (0.2, 2.5, 0.02)))
        assert by_hand == pytest.approx(q, rel=1e-9)
    draws = mixture.spread(4000)
    assert np.quantile(draws, [0.05, 0.5, 0.95]) == pytest.approx(
        [mixture.quantile(q) for q in (0.05, 0.5, 0.95)], rel=2e-3
    )
    assert Mixture(np.ones(1), np.array([2.0]), np.array([0.3])).quantile(0.5) == 2.0


def test_grids_are_fine_enough():
    """Twice as fine in every direction moves the 90 % band by under 1 % of its width."""
    data, target = runs((0, 0.6, 1.2, 1.8), (3.1, 2.77, 2.52, 2.33)), at(2.8)
    fine = load_prior({"g": {"grid": [0.02, 0.34, 129]}, "s": {"grid": [0.0008, 0.08, 48]}})
    coarse_band, fine_band = (
        [
            solve(COMPUTE, data, prior, "nats/token").predictive(target)[0].quantile(q)
            for q in (0.05, 0.5, 0.95)
        ]
        for prior in (load_prior(), fine)
    )
    width = fine_band[2] - fine_band[0]
    assert np.allclose(coarse_band, fine_band, atol=0.01 * width)


def test_coverage_on_ladders_drawn_from_the_prior(rng):
    """120 four-rung ladders from P0, a decade beyond: 90 % nominal; bounds are three binomial sd wide."""
    prior, hits, count = load_prior(), 0, 120
    u, target = np.array([0, 0.5, 1.0, 1.5]), 2.5
    form = np.linalg.cholesky(wiener(np.append(u, target), 1.5) + 1e-12 * np.eye(5))
    for _ in range(count):
        g = max(0.02, rng.normal(0.14, 0.045))
        E, k = abs(rng.normal(1.7, 0.3)), 3.0
        while not 0.1 < k < 2.4:
            k = rng.normal(1.5, 1.5)
        K = E * (k / 3) / (1 - k / 3)  # so that K is k times a third of the largest loss
        s = 0.003 * math.sqrt(6 / rng.chisquare(6))
        tau = rng.choice([0.003, 0.006, 0.012, 0.024])
        trend = E + K * 10 ** (-g * np.append(u, target))
        y = trend + trend[:-1].mean() * (tau * form @ rng.standard_normal(5) + s * rng.standard_normal(5))
        found = solve(COMPUTE, runs(u, y[:-1]), prior, "nats/token").predictive(at(target))[0]
        hits += found.quantile(0.05) <= y[-1] <= found.quantile(0.95)
    assert 0.82 <= hits / count <= 0.98, hits
