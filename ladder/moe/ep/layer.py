"""The routed experts of one layer: x -> sum over a token's experts of weight * SwiGLU_e(x).

Axes: N tokens, K experts of a token, E experts, D width, C rows of the expert-sorted layout.
An assignment is a pair (token, k); assignment a belongs to token a // K.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from ladder.moe.ep.grouped import Experts, block_rows, group_starts, grouped_mlp, layout_rows


class Dispatch(NamedTuple):
    """Where each row goes and comes from. Integers only."""

    slot: Int[Array, "N K"]  # the row of each assignment
    source: Int[Array, " C"]  # the assignment of each row; anything where the row is padding
    used: Bool[Array, " C"]
    group_sizes: Int[Array, " E"]


def moe(
    x: Float[Array, "N D"], expert: Int[Array, "N K"], weight: Float[Array, "N K"], experts: Experts
) -> tuple[Float[Array, "N D"], Int[Array, " E"]]:
    """(output, tokens of each expert). Dropless: every assignment is computed, whatever the load."""
    E = experts.gate.shape[0]
    b = block_rows(expert.size, E)
    plan = dispatch(expert, E, b)
    rows = grouped_mlp(_gather(x, plan), experts, plan.group_sizes, b)
    return _combine(rows, weight, plan), plan.group_sizes


def dispatch(expert: Int[Array, "N K"], experts: int, b: int) -> Dispatch:
    """Sort the assignments by expert, in token order within one, each expert at a multiple of `b` rows."""
    flat = expert.ravel()
    mine = (flat[:, None] == jnp.arange(experts)).astype(jnp.int32)
    rank = jnp.take_along_axis(jnp.cumsum(mine, axis=0), flat[:, None], axis=1)[:, 0] - 1
    group_sizes = mine.sum(axis=0)
    slot = group_starts(group_sizes, b)[flat] + rank
    source = jnp.full(layout_rows(flat.size, experts), -1, jnp.int32)
    source = source.at[slot].set(jnp.arange(flat.size, dtype=jnp.int32), unique_indices=True)
    return Dispatch(slot.reshape(expert.shape), jnp.maximum(source, 0), source >= 0, group_sizes)


# Both moves gather, forward and backward: the default transpose of a gather is a scatter-add.


@jax.custom_vjp
def _gather(x: Float[Array, "N D"], plan: Dispatch) -> Float[Array, "C D"]:
    return x[plan.source // plan.slot.shape[1]]


def _gather_forward(x: Array, plan: Dispatch):
    return _gather(x, plan), plan.slot


def _gather_backward(slot: Array, cotangent: Array):
    return cotangent[slot].sum(axis=1), None


_gather.defvjp(_gather_forward, _gather_backward)


@jax.custom_vjp
def _combine(rows: Float[Array, "C D"], weight: Float[Array, "N K"], plan: Dispatch) -> Float[Array, "N D"]:
    return jnp.einsum("nk,nkd->nd", weight, rows[plan.slot])


def _combine_forward(rows: Array, weight: Array, plan: Dispatch):
    mine = rows[plan.slot]
    return jnp.einsum("nk,nkd->nd", weight, mine), (mine, weight, plan)


def _combine_backward(kept: tuple[Array, Array, Dispatch], cotangent: Array):
    mine, weight, plan = kept
    # Padding rows get the weight 0, so that whatever they hold stays out of the experts' gradients.
    scale = jnp.where(plan.used, weight.ravel()[plan.source], 0)
    rows = cotangent[plan.source // weight.shape[1]] * scale[:, None]
    return rows, jnp.einsum("nd,nkd->nk", cotangent, mine), None


_combine.defvjp(_combine_forward, _combine_backward)
