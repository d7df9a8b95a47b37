"""What works channel by channel around the matrices: norms, their gates, ShortConv.

Axes: B rows, S positions, D channels, K taps.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from ladder.moe.params import Params

NORM_EPS = 1e-5


def rms_norm(x: Float[Array, "... D"], gain: Array | None = None, eps: float = NORM_EPS) -> Array:
    """x / sqrt(mean(x²) + eps), times `gain` where there is one; in float32. Zhang & Sennrich 2019."""
    wide = x.astype(jnp.float32)
    y = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (y if gain is None else y * gain).astype(x.dtype)


def gated_norm(params: Params, name: str, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
    """RMS norm `name`, and behind it GatedNorm where the model has one: y * sigmoid(silu(y down) up)."""
    y = rms_norm(x, params[f"{name}_norm"])
    if f"{name}_norm_down" not in params:
        return y
    down, up = params[f"{name}_norm_down"], params[f"{name}_norm_up"]
    return y * jax.nn.sigmoid(jax.nn.silu(y @ down) @ up)


def short_conv(
    x: Float[Array, "B S D"], taps: Float[Array, "K D"], documents: Int[Array, "B S"] | None = None
) -> Float[Array, "B S D"]:
    """Causal depthwise convolution: sum over j of taps[j] * x[t - j], zeros before row or document."""
    y = taps[0] * x
    for j in range(1, taps.shape[0]):
        earlier = jnp.pad(x, ((0, 0), (j, 0), (0, 0)))[:, : x.shape[1]]
        if documents is not None:
            same = documents == jnp.pad(documents, ((0, 0), (j, 0)), constant_values=-2)[:, : x.shape[1]]
            earlier = jnp.where(same[..., None], earlier, 0)
        y = y + taps[j] * earlier
    return y
