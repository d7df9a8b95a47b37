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


def rope_angles(positions: int, head_dim: int, theta: float) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of t * theta^(-2j / head_dim), each [positions, head_dim / 2]; computed in float64."""
    frequency = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    angle = np.arange(positions)[:, None] * frequency
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def rope(x: Float[Array, "B S H C"], theta: float) -> Float[Array, "B S H C"]:
    """Turn channel pairs (2j, 2j + 1) by an angle that grows with position. Su et al. 2021."""
    cos, sin = (a[:, None] for a in rope_angles(x.shape[1], x.shape[-1], theta))
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = jnp.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1)
    return turned.reshape(x.shape)


def attention(layer: Params, a: Float[Array, "B S D"], model: ModelSpec) -> Float[Array, "B S D"]:
    """Attention output for the normed input `a`; every position sees itself and what came before it.

    Query head h reads key/value head floor(h * G / H).
    """
    B, S, _ = a.shape
    G, R, C = model.kv_heads, model.heads // model.kv_heads, model.head_dim
    k = a @ layer["wk"]
    if model.conv_taps:
        k = short_conv(k, layer["conv_k"])
    q = (a @ layer["wq"]).reshape(B, S, G * R, C)
    q = rope(rms_norm(q, eps=QK_EPS), model.rope_theta).reshape(B, S, G, R, C)
    k = rope(rms_norm(k.reshape(B, S, G, C), eps=QK_EPS), model.rope_theta)
    v = (a @ layer["wv"]).reshape(B, S, G, C)

    scores = jnp.einsum("bsgrc,btgc->bgrst", q * (1 / math.sqrt(C)), k)
    causal = np.tril(np.ones((S, S), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1)
    y = jnp.einsum("bgrst,btgc->bsgrc", weights, v).reshape(B, S, G * R * C)
    o = y @ layer["wo"]
    return short_conv(o, layer["conv_attn"]) if model.conv_taps else o
