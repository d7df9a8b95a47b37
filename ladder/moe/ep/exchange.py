"""Routed experts that several devices share: rows go to the devices of their experts and come back.

Axes: N tokens of this device, K experts of a token, E experts of all S devices, P rows that a device sends to
one other, D width.
"""

import math

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from ladder.moe.ep.grouped import Experts
from ladder.moe.ep.layer import Dispatch, combine, gather, moe, placed, ranks
from ladder.moe.mesh import EXPERT
from ladder.spec import ParallelSpec

BUFFER = 2**28  # entries of the rows in flight on one device, where nothing may be dropped


def moe_over_devices(
    x: Float[Array, "N D"],
    expert: Int[Array, "N K"],
    weight: Float[Array, "N K"],
    experts: Experts,
    layout: ParallelSpec,
) -> tuple[Float[Array, "N D"], Int[Array, " E"], Int[Array, ""]]:
    """(output, this device's tokens of each expert, its dropped assignments), inside shard_map.

    `experts` are those of this device. With `layout.capacity` a device sends at most capacity * N * K / S
    rows to each other; those that find no room add nothing, and a token's other weights stay as they are.
    Without it all are sent, as many tokens at a time as `BUFFER` has room for in the worst case.
    """
    N, K = expert.shape
    S, mine = layout.expert, experts.gate.shape[0]
    load = jnp.zeros(S * mine, jnp.int32).at[expert.ravel()].add(1, mode="drop")
    if layout.capacity is not None:
        y, dropped = _there_and_back(x, expert, weight, experts, S, math.ceil(layout.capacity * N * K / S))
        return y, load, dropped
    chunks = _chunks(N, S * min(K, mine) * x.shape[1])
    size = N // chunks

    def chunk(given: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        return _there_and_back(*given, experts, S, size * min(K, mine))

    if chunks == 1:
        y, dropped = chunk((x, expert, weight))
        return y, load, dropped
    pieces = tuple(a.reshape(chunks, size, -1) for a in (x, expert, weight))
    y, dropped = jax.lax.map(jax.checkpoint(chunk), pieces)
    return y.reshape(x.shape), load, dropped.sum()


def _chunks(tokens: int, entries: int) -> int:
    """The fewest equal parts of the tokens whose rows, `entries` for a token, stay under BUFFER."""
    least = min(tokens, max(1, tokens * entries // BUFFER))
    return next(n for n in range(least, tokens + 1) if tokens % n == 0)


def _there_and_back(
    x: Array, expert: Array, weight: Array, experts: Experts, S: int, P: int
) -> tuple[Array, Array]:
    mine = experts.gate.shape[0]
    plan = pools(expert // mine, S, P)
    sent = gather(x, plan).reshape(S, P, -1)
    whose = jnp.where(plan.used, (expert % mine).ravel()[plan.source], mine).reshape(S, P)
    rows, whose = (jax.lax.all_to_all(a, EXPERT, 0, 0) for a in (sent, whose))
    flat = rows.reshape(S * P, -1)
    y, _ = moe(flat, whose.reshape(S * P, 1), jnp.ones_like(flat[:, :1]), experts)
    back = jax.lax.all_to_all(y.reshape(rows.shape), EXPERT, 0, 0).reshape(flat.shape)
    dropped = jnp.sum(expert < S * mine) - jnp.sum(plan.keep)
    return combine(back, weight, plan), dropped.astype(jnp.int32)


def pools(device: Int[Array, "N K"], S: int, P: int) -> Dispatch:
    """Rows by destination, P for each, filled in token order: no expert of a device is favoured."""
    demand, rank = ranks(device.ravel(), S)
    rank = rank.reshape(device.shape)
    keep = (device < S) & (rank < P)
    return placed(device * P + rank, keep, jnp.minimum(demand, P), S * P)
