"""Attention by its behaviour: who sees whom, where position counts, and what the switches do to a head."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ladder.moe import attention as module
from ladder.moe.attention import rope
from ladder.moe.params import init
from tests.ladder.examples import MODEL

S, H, C, D = 12, 4, 8, 16
PLAIN = MODEL.replace(width=D, heads=H, head_dim=C, kv_heads=2, context=S, layers=1)
MIXED = PLAIN.replace(layers=2, global_every=2, global_kv_heads=1, window=5, rope_fraction=0.5, qk_mult=1.3)
SAME = dict(rtol=1e-5, atol=1e-6)
attention = jax.jit(module.attention, static_argnames="model")


def layer_of(model, seed=0):
    rng = np.random.default_rng(seed)
    params = jax.jit(lambda: init(model, jax.random.key(seed)))()
    moved = {name: v for name, v in params.items() if v.shape[0] == model.layers and v.ndim > 1}
    return {
        name: v[0] + 0.3 * jnp.asarray(rng.standard_normal(v.shape[1:]), v.dtype) for name, v in moved.items()
    }


def inputs(seed=1, rows=2, positions=S):
    return jnp.asarray(np.random.default_rng(seed).standard_normal((rows, positions, D)), jnp.float32)


def moved_by(f, a, position):
    """Positions of the output that change with the input at one position."""
    change = np.abs(np.asarray(f(a.at[:, position].add(1.0)) - f(a))).max(axis=(0, 2))
    return np.flatnonzero(change > 1e-5).tolist()


@pytest.mark.parametrize(("everywhere", "seen"), [(False, range(3, 8)), (True, range(3, S))])
def test_a_local_layer_sees_its_window_and_a_global_one_the_row(everywhere, seen):
    layer = layer_of(MIXED)
    f = jax.jit(lambda a: attention(layer, a, MIXED, is_global=jnp.array(everywhere)))
    assert moved_by(f, inputs(), 3) == list(seen)


@pytest.mark.parametrize("conv_taps", [0, 4])
def test_nothing_crosses_the_border_of_documents(conv_taps):
    model = MIXED.replace(isolate_documents=True, conv_taps=conv_taps)
    layer = layer_of(model)
    documents = jnp.array([[0] * 5 + [1] * 7] * 2)
    f = jax.jit(lambda a: attention(layer, a, model, documents, jnp.array(True)))
    a = inputs()
    assert moved_by(f, a, 3) == [3, 4]
    assert moved_by(f, a, 5) == list(range(5, S))
    alone = attention(layer, a[:, 5:], model, documents[:, 5:], jnp.array(True))
    np.testing.assert_allclose(f(a)[:, 5:], alone, **SAME)


@pytest.mark.parametrize(("everywhere", "isolated"), [(False, True), (True, False)])
def test_long_rows_block_by_block_are_the_row_at_once(monkeypatch, everywhere, isolated):
    model = MIXED.replace(exclusive_attention=True)
    layer, a = layer_of(model), inputs()
    documents = jnp.array([[0] * 5 + [1] * 7, [0] * 9 + [1] * 3]) if isolated else None

    def read():
        def f(layer, a):
            return (module.attention(layer, a, model, documents, jnp.array(everywhere)) ** 2).sum()

        return jax.jit(jax.value_and_grad(f, argnums=(0, 1)))(layer, a)

    whole = read()
    monkeypatch.setattr(module, "BLOCK", 5)  # does not divide the row, and a window spans two blocks
    for x, y in zip(jax.tree.leaves(read()), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


def test_position_counts_in_local_layers_alone():
    """Without ShortConv a global layer cannot tell the order of what came before."""
    model = MIXED.replace(window=None)
    layer, a = layer_of(model), inputs()
    swapped = a.at[:, 2].set(a[:, 7]).at[:, 7].set(a[:, 2])
    last = lambda a, kind: np.asarray(attention(layer, a, model, is_global=jnp.array(kind)))[:, -1]  # noqa: E731
    np.testing.assert_allclose(last(swapped, True), last(a, True), **SAME)
    assert np.abs(last(swapped, False) - last(a, False)).max() > 1e-3


def test_rope_turns_its_share_of_the_channels_and_keeps_distances():
    x = inputs(rows=1)[0, :, :C]
    turned = np.asarray(rope(x, 10_000.0, C // 2))
    np.testing.assert_array_equal(turned[:, C // 2 :], x[:, C // 2 :])
    np.testing.assert_array_equal(turned[0], x[0])
    assert np.abs(turned[1:, : C // 2] - np.asarray(x[1:, : C // 2])).max(axis=1).min() > 1e-2
    np.testing.assert_allclose(np.linalg.norm(turned, axis=1), np.linalg.norm(x, axis=1), rtol=1e-5)
    same = jnp.broadcast_to(x[0], x.shape)  # one vector everywhere: scores depend on the distance
    scores = np.asarray(rope(same, 10_000.0, C) @ rope(same, 10_000.0, C).T)
    np.testing.assert_allclose(scores[1:, 1:], scores[:-1, :-1], rtol=1e-4, atol=1e-5)


def test_exclusive_attention_leaves_nothing_along_a_heads_own_value():
    model = PLAIN.replace(exclusive_attention=True)
    layer = layer_of(model) | {"wo": jnp.eye(H * C, dtype=jnp.float32)}  # the heads themselves
    a = inputs()
    y = attention(layer, a, model).reshape(2, S, H, C)
    v = jnp.repeat((a @ layer["wv"]).reshape(2, S, 2, C), H // 2, axis=2)
    along = np.abs((y * v).sum(-1)) / (jnp.linalg.norm(y, axis=-1) * jnp.linalg.norm(v, axis=-1) + 1e-6)
    assert along.max() < 1e-3
    assert np.abs(y[:, 1:]).max(axis=(0, 2, 3)).min() > 1e-2  # only the first position sees itself alone
    assert np.abs(y[:, 0]).max() < 1e-5


def test_a_head_gate_is_one_at_the_start_and_scales_its_head():
    layer = {
        name: v[0] for name, v in init(PLAIN.replace(head_gate=True), jax.random.key(0)).items() if v.ndim > 1
    }
    a, gated = inputs(), PLAIN.replace(head_gate=True)
    np.testing.assert_allclose(attention(layer, a, gated), attention(layer, a, PLAIN), **SAME)
    layer["wo"] = jnp.eye(H * C, dtype=jnp.float32)
    layer["attn_gate"] = jnp.asarray(np.random.default_rng(0).standard_normal((D, H)), jnp.float32)
    scaled = (
        attention(layer, a, PLAIN).reshape(2, S, H, C)
        * (2 * jax.nn.sigmoid(a @ layer["attn_gate"]))[..., None]
    )
    np.testing.assert_allclose(attention(layer, a, gated).reshape(scaled.shape), scaled, **SAME)


def test_key_value_columns_that_a_global_layer_does_not_read_get_no_gradient():
    model = MIXED.replace(conv_taps=4)
    layer, a = layer_of(model), inputs()

    def gradients(kind):
        read = lambda p: (attention(p, a, model, is_global=jnp.array(kind)) ** 2).sum()  # noqa: E731
        return jax.jit(jax.grad(read))(layer)

    for name in ("wk", "wv", "conv_k"):
        everywhere, local = (np.asarray(gradients(kind)[name]) for kind in (True, False))
        assert not everywhere[:, C:].any() and everywhere[:, :C].any() and local[:, C:].any(), name


def test_half_precision_stays_near_single():
    layer, a = layer_of(MIXED), inputs()
    f = jax.jit(lambda layer, a: attention(layer, a, MIXED, is_global=jnp.array(False)))
    half = f(jax.tree.map(lambda v: v.astype(jnp.bfloat16), layer), a.astype(jnp.bfloat16))
    full = np.asarray(f(layer, a))
    assert half.dtype == jnp.bfloat16
    assert np.abs(np.asarray(half, np.float32) - full).max() < 3e-2 * np.abs(full).max()
