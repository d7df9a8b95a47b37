"""Causal self-attention: grouped heads, windows, RoPE, QK norm, exclusive attention and head gates.

Axes: B rows, S positions, T positions of keys, H query heads, G key/value heads of a layer, R = H / G query
heads for each, C channels of a head, D width.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from ladder.moe.norms import rms_norm, short_conv
from ladder.moe.params import Params
from ladder.spec import ModelSpec

QK_EPS = 1e-6
XSA_EPS = 1e-6
BLOCK = 512  # queries at a time in rows longer than this: scores of a whole row would fill the memory


def rope(x: Float[Array, "... S C"], theta: float, channels: int) -> Float[Array, "... S C"]:
    """Turn channels (2j, 2j + 1) of the first `channels` at position t by the angle t * theta^(-2j /
    channels), in float32. Su et al. 2021."""
    if channels < x.shape[-1]:
        turned = rope(x[..., :channels], theta, channels)
        return jnp.concatenate([turned, x[..., channels:]], axis=-1)
    S = x.shape[-2]
    angle = np.arange(S)[:, None] * theta ** (-np.arange(0, channels, 2) / channels)
    cos = np.repeat(np.cos(angle), 2, axis=1).astype(np.float32)
    sin = np.repeat(np.sin(angle), 2, axis=1).astype(np.float32)
    sin[:, ::2] *= -1
    partner = jnp.flip(x.reshape(*x.shape[:-1], channels // 2, 2), axis=-1).reshape(x.shape)
    return (x * cos + partner * sin).astype(x.dtype)


def attention(
    layer: Params,
    a: Float[Array, "B S D"],
    model: ModelSpec,
    documents: Int[Array, "B S"] | None = None,
    is_global: Bool[Array, ""] | None = None,
) -> Float[Array, "B S D"]:
    """Attention output for the normed input `a`; a position sees itself and what came before it.

    Query head h reads key/value head floor(h * G / H). With `documents` a position sees its own document
    alone. `is_global` may be a traced value: layers of both kinds then share one program.
    """
    B, S, _ = a.shape
    H, C = model.heads, model.head_dim
    k = a @ layer["wk"]
    if model.conv_taps:
        k = short_conv(k, layer["conv_k"], documents)
    q, k, v = (x.reshape(B, S, -1, C) for x in (a @ layer["wq"], k, a @ layer["wv"]))
    if model.global_every:
        kinds = [partial(_heads, model=model, is_global=kind) for kind in (True, False)]
        y = jax.lax.cond(is_global, *kinds, q, k, v, documents)
    else:
        y = _heads(q, k, v, documents, model=model, is_global=False)
    if model.head_gate:
        y = y * (2 * jax.nn.sigmoid(a @ layer["attn_gate"]))[..., None]
    o = y.reshape(B, S, H * C) @ layer["wo"]
    return short_conv(o, layer["conv_attn"], documents) if model.conv_taps else o


def _heads(q: Array, k: Array, v: Array, documents: Array | None, *, model: ModelSpec, is_global: bool):
    """What every head reads: q [B S H C], k and v [B S stored-G C] -> [B S H C]."""
    B, S, H, C = q.shape
    G = (is_global and model.global_kv_heads) or model.kv_heads
    k, v = k[:, :, :G], v[:, :, :G]
    q = rms_norm(q.reshape(B, S, G, H // G, C), eps=QK_EPS).transpose(0, 2, 3, 1, 4)
    k = rms_norm(k, eps=QK_EPS).transpose(0, 2, 1, 3)
    v = v.transpose(0, 2, 1, 3)
    if not is_global:
        q = rope(q, model.rope_theta, model.rope_channels)
        k = rope(k, model.rope_theta, model.rope_channels)
    q = q * (model.qk_mult / math.sqrt(C))
    window = S if is_global else (model.window or S)
    y = (_all_at_once if S <= BLOCK else _by_blocks)(q, k, v, documents, window)
    if model.exclusive_attention:
        y = _without(y, v[:, :, None])
    return y.transpose(0, 3, 1, 2, 4).reshape(B, S, H, C)


def _without(y: Array, v: Array) -> Array:
    """y less its part along v, the value at its own position: exclusive self-attention."""
    wide = v.astype(jnp.float32)
    along = (y * wide).sum(-1, keepdims=True) / ((wide * wide).sum(-1, keepdims=True) + XSA_EPS)
    return (y - along * wide).astype(y.dtype)


def _all_at_once(q: Array, k: Array, v: Array, documents: Array | None, window: int):
    """q [B G R S C], k and v [B G S C] -> [B G R S C]."""
    S = q.shape[3]
    at = np.arange(S)
    see: Any = _visible(at, at, window)
    if documents is not None:
        see = see & (documents[:, None, :, None] == documents[:, None, None, :])
    return _attend(q, k, v, see)


def _by_blocks(q: Array, k: Array, v: Array, documents: Array | None, window: int):
    """The same, one row and `BLOCK` queries at a time; the backward pass computes scores again.

    Queries past the end see themselves and are cut off; keys before the start belong to no document.
    """
    B, _, _, S, _ = q.shape
    blocks = -(-S // BLOCK)
    before = min(-(-(window - 1) // BLOCK), blocks - 1) * BLOCK  # keys of earlier blocks that are seen
    documents = jnp.zeros((B, S), jnp.int32) if documents is None else documents
    end = blocks * BLOCK - S

    @jax.checkpoint
    def block(row: tuple, i: Array) -> Array:
        q, k, v, documents = row
        start = (
            i * BLOCK
        )  # of the queries; their keys begin `before` earlier, at the same index after padding
        cut = lambda x, axis, size: jax.lax.dynamic_slice_in_dim(x, start, size, axis)  # noqa: E731
        keys = before + BLOCK
        see = _visible(start + jnp.arange(BLOCK), start - before + jnp.arange(keys), window)
        mine = jax.lax.dynamic_slice_in_dim(documents, start + before, BLOCK)
        see &= mine[:, None] == cut(documents, 0, keys)
        return _attend(cut(q, 3, BLOCK), cut(k, 2, keys), cut(v, 2, keys), see)

    def one(row: tuple) -> Array:
        q, k, v, documents = (x[None] for x in row)
        q = jnp.pad(q, ((0, 0), (0, 0), (0, 0), (0, end), (0, 0)))
        k, v = (jnp.pad(x, ((0, 0), (0, 0), (before, end), (0, 0))) for x in (k, v))
        ids = jnp.pad(documents[0], (before, end), constant_values=-2)
        y = jax.lax.map(partial(block, (q, k, v, ids)), jnp.arange(blocks))
        return jnp.moveaxis(y[:, 0], 0, 2).reshape(*q.shape[1:3], -1, q.shape[-1])[:, :, :S]

    return jax.lax.map(one, (q, k, v, documents))


def _visible(query: Any, key: Any, window: int) -> Any:
    """Positions -> [queries, keys]: not later, and among the last `window`."""
    back = query[:, None] - key
    return (back >= 0) & (back < window)


def _attend(q: Array, k: Array, v: Array, see: Any) -> Array:
    """Softmax in float32 of q k' over what is seen ([..., S, T] without the axis R), times v.

    QK norm bounds a score by qk_mult * sqrt(C), so its exponential needs no maximum taken off first; and
    dividing after the product with v divides S * C numbers, not S * T.
    """
    B, G, R, S, C = q.shape
    mask = (np if isinstance(see, np.ndarray) else jnp).tile(see.astype(np.float32), (R, 1))
    scores = _product(q.reshape(B, G, R * S, C), k.swapaxes(-1, -2))
    exp = jnp.exp(scores) * mask
    y = _product(exp.astype(v.dtype), v) / exp.sum(axis=-1, keepdims=True)
    return y.astype(v.dtype).reshape(B, G, R, S, C)


def _product(x: Array, y: Array) -> Array:
    return jnp.matmul(x, y, preferred_element_type=jnp.float32)
