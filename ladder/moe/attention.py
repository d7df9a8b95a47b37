"""Causal self-attention with QK norm, RoPE and ShortConv.

Axes: B rows, S positions, T positions of keys, H query heads, G key/value heads, C channels of a head,
D width, K taps.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from ladder.moe.params import Params
from ladder.spec import ModelSpec

NORM_EPS = 1e-5
QK_EPS = 1e-6


def rms_norm(x: Float[Array, "... D"], gain: Array | None = None, eps: float = NORM_EPS) -> Array:
    """x / sqrt(mean(x²) + eps), times `gain` where there is one. Zhang & Sennrich 2019."""
    y = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)
    return y if gain is None else y * gain


def short_conv(x: Float[Array, "B S D"], taps: Float[Array, "K D"]) -> Float[Array, "B S D"]:
    """Causal depthwise convolution: sum over j of taps[j] * x[t - j], zeros before the row."""
    y = taps[0] * x
    for j in range(1, taps.shape[0]):
        y = y + taps[j] * jnp.pad(x, ((0, 0), (j, 0), (0, 0)))[:, : x.shape[1]]
    return y


def rope(x: Float[Array, "... S C"], theta: float) -> Float[Array, "... S C"]:
    """Turn channels (2j, 2j + 1) at position t by the angle t * theta^(-2j / C). Su et al. 2021."""
    S, C = x.shape[-2:]
    angle = np.arange(S)[:, None] * theta ** (-np.arange(0, C, 2) / C)
    cos = np.repeat(np.cos(angle), 2, axis=1).astype(np.float32)
    sin = np.repeat(np.sin(angle), 2, axis=1).astype(np.float32)
    sin[:, ::2] *= -1
    partner = jnp.flip(x.reshape(*x.shape[:-1], C // 2, 2), axis=-1).reshape(x.shape)
    return x * cos + partner * sin


def attention(layer: Params, a: Float[Array, "B S D"], model: ModelSpec) -> Float[Array, "B S D"]:
    """Attention output for the normed input `a`; every position sees itself and what came before it.

    Query head h reads key/value head floor(h * G / H).
    """
    B, S, _ = a.shape
    G, R, C = model.kv_heads, model.heads // model.kv_heads, model.head_dim
    k = a @ layer["wk"]
    if model.conv_taps:
        k = short_conv(k, layer["conv_k"])
    q = rms_norm((a @ layer["wq"]).reshape(B, S, G, R, C), eps=QK_EPS).transpose(0, 2, 3, 1, 4)
    k = rms_norm(k.reshape(B, S, G, C), eps=QK_EPS).transpose(0, 2, 1, 3)
    v = (a @ layer["wv"]).reshape(B, S, G, C).transpose(0, 2, 1, 3)
    q = (rope(q, model.rope_theta) * (1 / math.sqrt(C))).reshape(B, G, R * S, C)
    k = rope(k, model.rope_theta)

    # QK norm bounds a score by sqrt(C), so its exponential needs no maximum taken off first; and dividing
    # after the product with v divides S * C numbers, not S * S.
    causal = np.tile(np.tril(np.ones((S, S), np.float32)), (R, 1))
    exp = jnp.exp(q @ k.swapaxes(-1, -2)) * causal
    y = (exp @ v) / exp.sum(axis=-1, keepdims=True)
    o = y.reshape(B, G * R, S, C).transpose(0, 2, 1, 3).reshape(B, S, G * R * C) @ layer["wo"]
    return short_conv(o, layer["conv_attn"]) if model.conv_taps else o
