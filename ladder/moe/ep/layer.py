"""The routed experts of one layer: x -> sum over a token's kept experts of weight * SwiGLU_e(x).

Axes: N tokens of this device, K experts of a token, S devices of the expert axis, E experts, D width.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from ladder.moe.ep.grouped import Experts
from ladder.moe.ep.plan import Bounds, Plan, bounds, make_plan
from ladder.moe.ep.transport import TRANSPORTS, a2a
from ladder.moe.mesh import EXPERT
from ladder.spec import ParallelSpec
from ladder.values import SpecError

BUFFER = 2**28  # entries of the rows in flight on one device, where nothing may be dropped
RAGGED = ("cpu", "gpu", "tpu")  # backends with ragged_all_to_all, or with its stand-in


class Stats(NamedTuple):
    """Assignments of this device's tokens; each sums over devices, micro-batches and layers."""

    demand: Int[Array, " E"]  # what the router chose
    accepted: Int[Array, " E"]  # what was computed
    dropped_sender: Int[Array, ""]  # turned away by the limit of a pair of devices
    dropped_receiver: Int[Array, ""]  # by the pool of a receiver
    padding: Int[Array, ""]  # of tokens that are padding: they ask for no expert and take no room


def moe(
    x: Float[Array, "N D"],
    expert: Int[Array, "N K"],
    weight: Float[Array, "N K"],
    experts: Experts,
    layout: ParallelSpec,
) -> tuple[Float[Array, "N D"], Stats]:
    """(output, who was served). Inside shard_map over the expert axis where `layout.expert` > 1; `experts`
    are then those of this device. An assignment to expert E (the number of all experts) is padding.

    Where a capacity turns an assignment away it adds nothing, and a token's other weights stay as they are.
    Without one nothing is dropped: as many tokens at a time as `BUFFER` has room for in the worst case.
    """
    if layout.transport == "ragged" and jax.default_backend() not in RAGGED:
        raise SpecError(
            f"parallel.transport='ragged' needs a collective that {jax.default_backend()} does not have: "
            f"use one of {', '.join(name for name in TRANSPORTS if name != 'ragged')}"
        )
    N, K = expert.shape
    S, E = layout.expert, layout.expert * experts.gate.shape[0]
    chunks = 1
    if S > 1 and not layout.drops:
        chunks = _chunks(N, S * min(K, E // S) * x.shape[1] // layout.waves)
    limits = bounds(N // chunks, K, E, S, layout.capacity, layout.sender_capacity)
    move = TRANSPORTS[layout.transport if S > 1 or layout.transport == "dense" else "local"]
    if S > 1 and layout.waves > 1:
        move = partial(a2a, waves=layout.waves)

    def chunk(given: tuple[Array, Array, Array]) -> tuple[Array, Stats]:
        x, expert, weight = given
        plan = make_plan(expert, limits, EXPERT)
        return move(x, weight, plan, experts, limits), stats(plan, limits, expert.size)

    if chunks == 1:
        return chunk((x, expert, weight))
    pieces = tuple(a.reshape(chunks, N // chunks, -1) for a in (x, expert, weight))
    y, each = jax.lax.map(jax.checkpoint(chunk), pieces)
    return y.reshape(x.shape), Stats(*(a.sum(axis=0) for a in each))


def stats(plan: Plan, limits: Bounds, assignments: int) -> Stats:
    me = jax.lax.axis_index(EXPERT) if limits.devices > 1 else 0
    demand, sent, accepted = plan.counts[me], plan.sent[me], plan.accepted[me]
    return Stats(
        demand,
        accepted,
        jnp.sum(demand - sent),
        jnp.sum(sent - accepted),
        assignments - jnp.sum(demand),
    )


def _chunks(tokens: int, entries: int) -> int:
    """The fewest equal parts of the tokens whose rows, `entries` for a token, stay under BUFFER."""
    least = min(tokens, max(1, -(-tokens * entries // BUFFER)))
    return next(n for n in range(least, tokens + 1) if tokens % n == 0)
