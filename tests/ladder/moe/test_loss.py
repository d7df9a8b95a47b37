"""Cross-entropy and z-loss: the gradient made in the forward pass is the derivative of the value."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ladder.moe.loss import loss_sums, targets_of

N, D, V = 12, 5, 9


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(2)
    h, head = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in ((N, D), (D, V)))
    weight = jnp.asarray(rng.integers(0, 2, N), jnp.float32)
    return h, head, jnp.asarray(rng.integers(0, V, N), jnp.int32), weight


def plain(h, head, target, weight, z_loss):
    """The same sum, written for autodiff."""
    logits = h @ head
    lse = jax.nn.logsumexp(logits, axis=-1)
    aimed = logits[jnp.arange(N), target]
    return (weight * (lse - aimed + z_loss * lse**2)).sum(), (weight * (lse - aimed)).sum()


@pytest.mark.parametrize("z_loss", [0.0, 0.3])
def test_value_and_gradient_match_autodiff_of_the_formula(case, z_loss):
    h, head, target, weight = case
    total, (ce, square) = loss_sums(h, head, target, weight, z_loss)
    expected, expected_ce = plain(h, head, target, weight, z_loss)
    assert float(total) == pytest.approx(float(expected), rel=1e-6)
    assert float(ce) == pytest.approx(float(expected_ce), rel=1e-6)
    assert float(total) == pytest.approx(float(ce) + z_loss * float(square), rel=1e-6)

    # scaled, as a mean over the batch scales it
    ours = jax.grad(lambda h, w: loss_sums(h, w, target, weight, z_loss)[0] / 7, argnums=(0, 1))(h, head)
    theirs = jax.grad(lambda h, w: plain(h, w, target, weight, z_loss)[0] / 7, argnums=(0, 1))(h, head)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_many_tokens_are_scored_a_part_at_a_time(case, monkeypatch):
    h, head, target, weight = case

    def read():
        return jax.value_and_grad(
            lambda h, w: loss_sums(h, w, target, weight, 0.3), argnums=(0, 1), has_aux=True
        )(h, head)

    whole = read()
    monkeypatch.setattr("ladder.moe.loss.LOGITS", 5 * V)  # 5 tokens do not divide 12: parts of 4
    for a, b in zip(jax.tree.leaves(read()), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_the_z_loss_pulls_the_normaliser_towards_one(case):
    h, head, target, weight = case

    def square(head):
        return float(loss_sums(h, head, target, weight, 0.0)[1][1])

    with_z, without = (
        jax.grad(lambda w, z=z: loss_sums(h, w, target, weight, z)[0])(head) for z in (1.0, 0.0)
    )
    assert square(head - 1e-3 * (with_z - without)) < square(head)


def test_the_last_position_and_padding_are_not_predicted():
    tokens = jnp.array([[3, 4, 5], [6, 7, -1], [-1, -1, -1]])
    target, weight = targets_of(tokens)
    assert np.asarray(weight).tolist() == [[1, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert np.asarray(target)[np.asarray(weight) > 0].tolist() == [4, 5, 7]
