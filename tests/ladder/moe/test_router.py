"""Selection, combine weights, and the bias that keeps the load even."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ladder.moe import router
from tests.reference import decoder

E, K, SUM = 8, 2, 2.5


@pytest.fixture(scope="module")
def skewed():
    """Fixed scores that like some experts much better: max / mean load about 3 without a bias."""
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.standard_normal((4096, E)) + np.linspace(-1.5, 1.5, E), jnp.float32)


def test_a_token_is_routed_as_the_twin_routes_it():
    rng = np.random.default_rng(1)
    scores, bias = rng.standard_normal((64, E)).astype(np.float32), rng.standard_normal(E).astype(np.float32)
    ours = router.route(jnp.asarray(scores), jnp.asarray(bias), K, SUM)
    for n in range(64):
        chosen, margin = decoder.select(scores[n], bias, K)
        assert np.asarray(ours.expert[n]).tolist() == chosen
        np.testing.assert_allclose(ours.margin[n], margin, rtol=1e-5, atol=1e-6)
        weights = decoder.combine_weights(np.float64(scores[n]), chosen, SUM, np)
        np.testing.assert_allclose(ours.weight[n], weights, rtol=1e-5)


def test_combine_weights_add_up_to_the_declared_sum_and_come_from_unbiased_scores(skewed):
    routing = router.route(skewed, jnp.zeros(E), K, SUM)
    np.testing.assert_allclose(routing.weight.sum(axis=1), SUM, rtol=1e-6)
    favoured = router.route(skewed, jnp.full(E, 7.0), K, SUM)  # the same bias for all changes no choice
    np.testing.assert_array_equal(favoured.expert, routing.expert)
    np.testing.assert_array_equal(favoured.weight, routing.weight)


def test_the_lowest_index_wins_a_tie():
    routing = router.route(jnp.zeros((1, E)), jnp.zeros(E), K, SUM)
    assert np.asarray(routing.expert).tolist() == [[0, 1]]


def test_the_bias_has_no_gradient_and_the_scores_of_chosen_experts_have_one(skewed):
    def read(scores, bias):
        return (router.route(scores, bias, K, SUM).weight * jnp.arange(1.0, K + 1)).sum()

    scores, bias = jax.grad(read, argnums=(0, 1))(skewed[:16], jnp.linspace(0, 1, E))
    chosen = router.route(skewed[:16], jnp.linspace(0, 1, E), K, SUM).expert
    assert not np.asarray(bias).any()
    assert np.asarray(jnp.take_along_axis(scores, chosen, 1)).all()
    assert (np.asarray(scores) != 0).sum() == 16 * K


@jax.jit
def balanced(scores, bias):
    """(load under `bias`, the bias of the next step, beta, margins)"""
    routing = router.route(scores, bias, K, SUM)
    load = jnp.bincount(routing.expert.ravel(), length=E)
    beta = measured(routing.margin)
    return load, router.balancing_bias(beta[None])[0], beta, routing.margin


def measured(margin):
    lo, hi = router.margin_range(margin)
    return router.measured_beta(router.margin_counts(margin, lo, hi), lo, hi, K)


def test_quantile_balancing_evens_out_a_skewed_load_within_ten_steps(skewed):
    bias = jnp.zeros(E)
    worst = []
    for _ in range(11):
        load, bias, _, _ = balanced(skewed, bias)
        worst.append(load.max() / load.mean())
    assert worst[0] > 2
    assert worst[-1] < 1.02
    assert abs(float(bias.mean())) < 1e-6


def test_beta_is_the_exact_quantile_to_one_bin(skewed):
    _, _, beta, margin = (np.asarray(x) for x in balanced(skewed, jnp.linspace(1, -1, E)))
    n = len(margin)
    exact = np.sort(margin, axis=0)[n - n * K // E]  # a K / E share of the tokens is at or above it
    width = (margin.max() - margin.min()) / router.BINS
    assert np.abs(beta - exact).max() <= width


def test_margins_that_are_all_equal_give_that_margin():
    np.testing.assert_allclose(measured(jnp.full((16, E), 0.25)), 0.25, atol=2e-6)


def test_padding_moves_no_balance(skewed):
    margin = router.route(skewed[:256], jnp.zeros(E), K, SUM).margin
    padded = jnp.concatenate([margin, jnp.full((64, E), jnp.inf)])
    np.testing.assert_array_equal(measured(padded), measured(margin))
    np.testing.assert_array_equal(measured(padded[256:]), np.zeros(E))  # nothing but padding
