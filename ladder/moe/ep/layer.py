"""The routed experts of one layer: x -> sum over a token's experts of weight * SwiGLU_e(x).

Axes: N tokens, K experts of a token, E experts, D width, F hidden width of an expert.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int


class Experts(NamedTuple):
    gate: Float[Array, "E D F"]
    up: Float[Array, "E D F"]
    down: Float[Array, "E F D"]


def swiglu(x: Float[Array, "N D"], gate: Array, up: Array, down: Array) -> Float[Array, "N D"]:
    """(silu(x gate) * (x up)) down. Shazeer 2020."""
    return (jax.nn.silu(x @ gate) * (x @ up)) @ down


def moe(
    x: Float[Array, "N D"], expert: Int[Array, "N K"], weight: Float[Array, "N K"], experts: Experts
) -> tuple[Float[Array, "N D"], Int[Array, " E"]]:
    """(output, load): every assignment is computed; load counts the tokens of each expert."""
    E, D, F = experts.gate.shape
    chosen = jax.nn.one_hot(expert, E, dtype=x.dtype)
    share = jnp.einsum("nk,nke->ne", weight, chosen)
    gate = x @ experts.gate.transpose(1, 0, 2).reshape(D, E * F)
    up = x @ experts.up.transpose(1, 0, 2).reshape(D, E * F)
    h = (jax.nn.silu(gate) * up).reshape(-1, E, F) * share[:, :, None]
    y = h.reshape(-1, E * F) @ experts.down.reshape(E * F, D)
    return y, jax.lax.stop_gradient(chosen.sum((0, 1))).astype(jnp.int32)
