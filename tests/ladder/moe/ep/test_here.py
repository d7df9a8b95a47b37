"""Sorted dispatch against every expert on every token: values, gradients, and nothing dropped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladder.moe.ep import layer
from ladder.moe.ep.grouped import Experts, block_rows, layout_rows
from ladder.moe.ep.oracle import dense_moe

N, E, K, D, F = 48, 6, 2, 5, 7
TOLERANCE = 1e-5  # float32 sums in another order


def choices(kind: str, rng) -> np.ndarray:
    """int32[N, K]: distinct experts for each token."""
    if kind == "one expert gets everything":
        return np.stack([np.full(N, 3), np.where(np.arange(N) % 2, 0, 5)], 1).astype(np.int32)
    taste = np.zeros(E) if kind == "uniform" else np.linspace(0, 6, E)
    return np.argsort(-(rng.gumbel(size=(N, E)) + taste), axis=1)[:, :K].astype(np.int32)


@pytest.fixture(scope="module", params=["uniform", "skewed", "one expert gets everything"])
def case(request):
    rng = np.random.default_rng(5)
    draw = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)  # noqa: E731
    experts = Experts(draw(E, D, F), draw(E, D, F), draw(E, F, D))
    return draw(N, D), jnp.asarray(choices(request.param, rng)), draw(N, K), experts, draw(N, D)


def relative(a, b) -> float:
    a, b = np.asarray(a), np.asarray(b)
    assert np.isfinite(a).all()
    return float(np.abs(a - b).max() / np.abs(b).max())


def test_outputs_loads_and_all_gradients_match_the_oracle(case):
    x, expert, weight, experts, cotangent = case

    def value_and_gradients(moe):
        def read(x, weight, experts):
            y, load = moe(x, expert, weight, experts)
            return (y * cotangent).sum(), (y, load)

        return jax.jit(jax.grad(read, argnums=(0, 1, 2), has_aux=True))(x, weight, experts)

    ours, (y, load) = value_and_gradients(layer.moe)
    theirs, (dense_y, dense_load) = value_and_gradients(dense_moe)
    np.testing.assert_array_equal(load, dense_load)
    assert int(load.sum()) == N * K
    assert relative(y, dense_y) < TOLERANCE
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert relative(a, b) < TOLERANCE


def test_large_experts_take_turns_and_expert_e_is_none(case, monkeypatch):
    """Blocks one after the other, and assignments to no expert: still the oracle's output and gradients."""
    x, expert, weight, experts, cotangent = case
    expert = expert.at[::5].set(E)

    def gradients(moe):
        return jax.jit(
            jax.grad(lambda x, w, e: (moe(x, expert, w, e)[0] * cotangent).sum(), argnums=(0, 1, 2))
        )(x, weight, experts)

    monkeypatch.setattr("ladder.moe.ep.grouped.LARGE", 0)
    ours, theirs = gradients(layer.moe), gradients(dense_moe)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert relative(a, b) < TOLERANCE
    assert not np.asarray(ours[0])[::5].any() and not np.asarray(ours[1])[::5].any()


def test_what_padding_rows_hold_reaches_neither_output_nor_gradient(case, monkeypatch):
    x, expert, weight, experts, cotangent = case

    def read(x, weight):
        return (layer.moe(x, expert, weight, experts)[0] * cotangent).sum()

    clean = jax.value_and_grad(read, argnums=(0, 1))(x, weight)
    grouped_mlp = layer.grouped_mlp

    def poisoned(rows, experts, group_sizes, b):
        used = layer.dispatch(expert, E, b).used[:, None]
        return jnp.where(used, grouped_mlp(rows, experts, group_sizes, b), jnp.nan)

    monkeypatch.setattr(layer, "grouped_mlp", poisoned)
    dirty = jax.value_and_grad(read, argnums=(0, 1))(x, weight)
    for a, b in zip(jax.tree.leaves(dirty), jax.tree.leaves(clean), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


SORTED = jax.jit(layer.dispatch, static_argnums=(1, 2))


@settings(max_examples=60)
@given(st.sampled_from([(2, 1), (5, 2), (9, 4)]), st.data())
def test_every_assignment_has_a_row_of_its_own_in_its_experts_group(sizes, data):
    experts, top_k = sizes
    flat = data.draw(st.lists(st.integers(0, experts - 1), min_size=40, max_size=40))
    expert = np.array(flat, np.int32).reshape(-1, top_k)
    b = block_rows(expert.size, experts, weights=1)
    plan = jax.tree.map(np.asarray, SORTED(jnp.asarray(expert), experts, b))

    slots = plan.slot.ravel()
    assert len(set(slots.tolist())) == expert.size
    assert slots.max() < layout_rows(expert.size, experts, b) == len(plan.source)
    np.testing.assert_array_equal(plan.source[slots], np.arange(expert.size))
    assert plan.used.sum() == expert.size and plan.used[slots].all()
    np.testing.assert_array_equal(plan.group_sizes, np.bincount(expert.ravel(), minlength=experts))
    for e in range(experts):
        mine = slots[expert.ravel() == e]
        assert (np.diff(mine) == 1).all()  # in token order, without gaps
        assert len(mine) == 0 or mine[0] % b == 0  # from the start of a block
