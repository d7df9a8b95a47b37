"""Ways to bring rows to the devices of their experts and back. None of them decides who is kept.

Axes: N tokens of this device, K experts of a token, S devices of the expert axis, L experts of each, P rows
from one device to one other, W waves, C rows that a device receives, D width.

A transport is (x[N, D], weight[N, K], plan, experts of this device, limits) -> y[N, D], inside shard_map over
EXPERT where S > 1; the sum over a token's kept experts of weight * expert(x).
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from ladder.moe.ep.grouped import Experts, block_rows, group_starts, grouped_mlp, layout_rows
from ladder.moe.ep.oracle import dense_moe
from ladder.moe.ep.plan import Bounds, Plan, before, placed
from ladder.moe.ep.ragged import exchange
from ladder.moe.ep.rows import combine, gather
from ladder.moe.mesh import EXPERT

Transport = Callable[[Array, Array, Plan, Experts, Bounds], Array]


def here(
    x: Float[Array, "N D"],
    expert: Int[Array, "N K"],
    rank: Int[Array, "N K"],
    sizes: Int[Array, " E"],
    weight: Float[Array, "N K"],
    experts: Experts,
    most: int,
    usual: int,
) -> Float[Array, "N D"]:
    """The layer on one device: assignment (t, k) is number `rank` of the `sizes[expert]` rows of its expert.

    `most`: rows that there can be; `usual`: rows of even routing, for the size of a block.
    """
    E = sizes.shape[0]
    b = block_rows(usual, E, math.prod(experts.gate.shape[1:]))
    starts = group_starts(sizes, b)
    rows = placed(starts.at[expert].get(mode="clip") + rank, expert < E, layout_rows(most, E, b))
    return combine(grouped_mlp(gather(x, rows), experts, sizes, b), weight, rows)


def local(x: Array, weight: Array, plan: Plan, experts: Experts, limits: Bounds) -> Array:
    """Rows stay; experts of other devices are gathered whole."""
    own = plan.accepted[_me(limits)]
    return here(x, plan.expert, plan.rank, own, weight, _all(experts, limits), weight.size, weight.size)


def dense(x: Array, weight: Array, plan: Plan, experts: Experts, limits: Bounds) -> Array:
    """The oracle: every expert on every token, masked by the plan."""
    return dense_moe(x, plan.expert, weight, _all(experts, limits))[0]


def ring(x: Array, weight: Array, plan: Plan, experts: Experts, limits: Bounds) -> Array:
    """All tokens go to all devices; each adds its own experts' part, and the sums return to their owners."""
    L, me = limits.local_experts, _me(limits)
    gathered = partial(jax.lax.all_gather, axis_name=EXPERT, tiled=True)
    expert = gathered(plan.expert) - me * L
    mine = (expert >= 0) & (expert < L)
    accepted = jax.lax.dynamic_slice_in_dim(plan.accepted, me * L, L, axis=1)
    sender = jnp.repeat(jnp.arange(limits.devices), x.shape[0])[:, None]
    rank = gathered(plan.rank) + before(accepted)[sender, jnp.clip(expert, 0, L - 1)]
    sizes, expert = accepted.sum(axis=0), jnp.where(mine, expert, L)
    y = here(gathered(x), expert, rank, sizes, gathered(weight), experts, limits.receiver, weight.size)
    return jax.lax.psum_scatter(y, EXPERT, tiled=True)


def a2a(x: Array, weight: Array, plan: Plan, experts: Experts, limits: Bounds, *, waves: int = 1) -> Array:
    """Pools of P rows for each pair of devices, shared by the receiver's experts, in W all_to_alls there and
    W back. Wave w takes rows w, w + W, ... of every pool, so that each has its share of every expert."""
    S, L, W = limits.devices, limits.local_experts, waves
    P = -(-limits.pair // W)
    cells = plan.accepted.reshape(S, S, L)
    starts = jnp.cumsum(cells, axis=-1) - cells  # of each cell in its pool
    own = starts[_me(limits)].ravel()
    place = own.at[plan.expert].get(mode="clip") + plan.rank
    comes = jax.lax.dynamic_index_in_dim(cells, _me(limits), axis=1, keepdims=False)
    at = jax.lax.dynamic_index_in_dim(starts, _me(limits), axis=1, keepdims=False)

    def wave(w: Array | int) -> Array:
        keep = (plan.expert < limits.experts) & (place % W == w)
        pool = placed(plan.expert // L * P + place // W, keep, S * P)
        sent = gather(x, pool).reshape(S, P, -1)
        rows = jax.lax.all_to_all(sent, EXPERT, 0, 0).reshape(S * P, -1)
        # The same integers as the sender's: place i of a pool is row i * W + w, of the cell that covers it.
        first, end = (jnp.maximum(n - w + W - 1, 0) // W for n in (at, at + comes))  # places of each cell
        i = jnp.arange(P)[None, :, None]
        expert = jnp.sum(i >= end[:, None, :], axis=-1)  # L past the last
        skipped = jnp.take_along_axis(before(end - first) - first, jnp.minimum(expert, L - 1), axis=1)
        rank = i[..., 0] + skipped
        ones = jnp.ones_like(rows[:, :1])
        sizes, usual = (end - first).sum(axis=0), weight.size // W
        one = lambda a: a.reshape(-1, 1)  # noqa: E731
        most = min(S * P, limits.receiver)
        y = here(rows, one(expert), one(rank), sizes, ones, experts, most, usual)
        back = jax.lax.all_to_all(y.reshape(sent.shape), EXPERT, 0, 0).reshape(rows.shape)
        return combine(back, weight, pool)

    if W == 1:
        return wave(0)

    def add(y: Array, w: Array) -> tuple[Array, None]:
        return y + jax.checkpoint(wave)(w).astype(jnp.float32), None

    return jax.lax.scan(add, jnp.zeros_like(x, jnp.float32), jnp.arange(W))[0].astype(x.dtype)


def ragged(x: Array, weight: Array, plan: Plan, experts: Experts, limits: Bounds) -> Array:
    """Exactly the kept rows travel, with ragged_all_to_all, in the order of (receiver, expert, token)."""
    S, L, C, me = limits.devices, limits.local_experts, limits.receiver, _me(limits)
    own = plan.accepted[me]
    place = (jnp.cumsum(own) - own).at[plan.expert].get(mode="clip") + plan.rank
    sent = placed(place, plan.expert < limits.experts, weight.size)
    sizes = plan.accepted.reshape(S, S, L).sum(axis=-1)  # rows from s to r
    rows = exchange(gather(x, sent), sizes, C, EXPERT)
    cells = jax.lax.dynamic_slice_in_dim(plan.accepted, me * L, L, axis=1)
    ends = jnp.cumsum(cells.ravel())
    i = jnp.arange(C)
    cell = jnp.searchsorted(ends, i, side="right").astype(jnp.int32)
    expert = jnp.where(cell < S * L, cell % L, L)
    rank = i - (ends - cells.ravel() - before(cells).ravel()).at[cell].get(mode="clip")
    ones = jnp.ones_like(rows[:, :1])
    y = here(rows, expert[:, None], rank[:, None], cells.sum(axis=0), ones, experts, C, weight.size)
    return combine(exchange(y, sizes.T, weight.size, EXPERT), weight, sent)


TRANSPORTS: dict[str, Transport] = {
    "dense": dense,
    "local": local,
    "ring": ring,
    "a2a": a2a,
    "ragged": ragged,
}


def _me(limits: Bounds) -> Array | int:
    return jax.lax.axis_index(EXPERT) if limits.devices > 1 else 0


def _all(experts: Experts, limits: Bounds) -> Experts:
    if limits.devices == 1:
        return experts
    return Experts(*(jax.lax.all_gather(w, EXPERT, tiled=True) for w in experts))
