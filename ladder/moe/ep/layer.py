"""The routed experts of one layer: x -> sum over a token's experts of weight * SwiGLU_e(x).

Axes: N tokens, K experts of a token, E experts, D width, C rows of the expert-sorted layout.
An assignment is a pair (token, k); assignment a belongs to token a // K. Expert E stands for none: such an
assignment has no row and adds nothing.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from ladder.moe.ep.grouped import Experts, block_rows, group_starts, grouped_mlp, layout_rows


class Dispatch(NamedTuple):
    """Where each row goes and comes from. Integers only."""

    slot: Int[Array, "N K"]  # the row of each assignment; anything where it has none
    keep: Bool[Array, "N K"]  # has it a row?
    source: Int[Array, " C"]  # the assignment of each row; anything where the row is padding
    used: Bool[Array, " C"]
    group_sizes: Int[Array, " E"]


def moe(
    x: Float[Array, "N D"], expert: Int[Array, "N K"], weight: Float[Array, "N K"], experts: Experts
) -> tuple[Float[Array, "N D"], Int[Array, " E"]]:
    """(output, tokens of each expert). Dropless: every assignment is computed, whatever the load."""
    E = experts.gate.shape[0]
    b = block_rows(expert.size, E, math.prod(experts.gate.shape[1:]))
    plan = dispatch(expert, E, b)
    rows = grouped_mlp(gather(x, plan), experts, plan.group_sizes, b)
    return combine(rows, weight, plan), plan.group_sizes


def dispatch(expert: Int[Array, "N K"], experts: int, b: int) -> Dispatch:
    """Sort the assignments by expert, in token order within one, each expert at a multiple of `b` rows."""
    group_sizes, rank = ranks(expert.ravel(), experts)
    keep = expert < experts
    slot = group_starts(group_sizes, b)[expert.ravel()] + rank
    return placed(slot.reshape(expert.shape), keep, group_sizes, layout_rows(expert.size, experts, b))


def ranks(group: Int[Array, " A"], groups: int) -> tuple[Int[Array, " G"], Int[Array, " A"]]:
    """(members of each group, place of each assignment among those of its group)."""
    mine = (group[:, None] == jnp.arange(groups)).astype(jnp.int32)
    rank = jnp.take_along_axis(jnp.cumsum(mine, axis=0), group[:, None], axis=1, mode="clip")[:, 0] - 1
    return mine.sum(axis=0), rank


def placed(slot: Int[Array, "N K"], keep: Bool[Array, "N K"], group_sizes: Array, rows: int) -> Dispatch:
    """The dispatch that puts each kept assignment into its slot of `rows`, and the others nowhere."""
    source = jnp.full(rows, -1, jnp.int32)
    where = jnp.where(keep, slot, rows + jnp.arange(slot.size).reshape(slot.shape)).ravel()
    numbers = jnp.arange(slot.size, dtype=jnp.int32)
    source = source.at[where].set(numbers, unique_indices=True, mode="drop")
    return Dispatch(jnp.where(keep, slot, 0), keep, jnp.maximum(source, 0), source >= 0, group_sizes)


# Both moves gather, forward and backward: the default transpose of a gather is a scatter-add.


@jax.custom_vjp
def gather(x: Float[Array, "N D"], plan: Dispatch) -> Float[Array, "C D"]:
    """The token of each row."""
    return x[plan.source // plan.slot.shape[1]]


def _gather_forward(x: Array, plan: Dispatch):
    return gather(x, plan), plan


def _gather_backward(plan: Dispatch, cotangent: Array):
    mine = jnp.where(plan.keep[..., None], cotangent[plan.slot], 0)
    return mine.sum(axis=1, dtype=jnp.float32).astype(cotangent.dtype), None


gather.defvjp(_gather_forward, _gather_backward)


@jax.custom_vjp
def combine(rows: Float[Array, "C D"], weight: Float[Array, "N K"], plan: Dispatch) -> Float[Array, "N D"]:
    """The weighted sum of each token's rows, accumulated in float32."""
    return _combine_forward(rows, weight, plan)[0]


def _combine_forward(rows: Array, weight: Array, plan: Dispatch):
    mine = jnp.where(plan.keep[..., None], rows[plan.slot], 0)
    y = jnp.einsum("nk,nkd->nd", weight.astype(rows.dtype), mine, preferred_element_type=jnp.float32)
    return y.astype(rows.dtype), (mine, weight, plan)


def _combine_backward(kept: tuple[Array, Array, Dispatch], cotangent: Array):
    mine, weight, plan = kept
    # Padding rows get the weight 0, so that whatever they hold stays out of the experts' gradients.
    scale = jnp.where(plan.used, weight.astype(mine.dtype).ravel()[plan.source], 0)
    rows = cotangent[plan.source // weight.shape[1]] * scale[:, None]
    return rows, jnp.einsum("nd,nkd->nk", cotangent, mine).astype(weight.dtype), None


combine.defvjp(_combine_forward, _combine_backward)
