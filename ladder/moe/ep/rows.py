"""Rows between tokens and a buffer: gathers in both directions, forward and backward.

Axes: N tokens, K experts of a token, C rows of a buffer, D width. The default transpose of a gather is a
scatter-add; both moves here have a derivative that gathers instead, and keep rows of padding out of it.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ladder.moe.ep.plan import Dispatch


@jax.custom_vjp
def gather(x: Float[Array, "N D"], plan: Dispatch) -> Float[Array, "C D"]:
    """The token of each row; 0 in rows of padding, so that no product sees what lies in a buffer's tail."""
    return jnp.where(plan.used[:, None], x[plan.source // plan.slot.shape[1]], 0)


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
