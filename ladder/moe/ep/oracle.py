"""The layer without dispatch: every expert on every token. Slow, obvious, and what fast forms are held to."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from ladder.moe.ep.grouped import Experts


def dense_moe(
    x: Float[Array, "N D"], expert: Int[Array, "N K"], weight: Float[Array, "N K"], experts: Experts
) -> tuple[Float[Array, "N D"], Int[Array, " E"]]:
    """Same arguments and results as `ladder.moe.ep.layer.moe`."""
    chosen = jax.nn.one_hot(expert, experts.gate.shape[0], dtype=x.dtype)
    hidden = jax.nn.silu(jnp.einsum("nd,edf->nef", x, experts.gate))
    hidden = hidden * jnp.einsum("nd,edf->nef", x, experts.up)
    each = jnp.einsum("nef,efd->ned", hidden, experts.down)
    y = jnp.einsum("nk,nke,ned->nd", weight, chosen, each)
    return y, jnp.sum(chosen, axis=(0, 1)).astype(jnp.int32)
