"""Who is kept and which row it gets: decided once, from counts that every device has. Integers only.

Axes: N tokens of this device, K experts of a token, S devices of the expert axis, E experts,
L = E / S experts of a device, A assignments, G groups, M cells that share a limit. An assignment is a pair
(token, k); expert E stands for none. A cell is a pair (sender, expert).

The drop rule belongs here and not to a transport, so that all of them keep the same assignments.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int

from ladder.values import SpecError

MOST = 2**31  # row numbers are int32


class Plan(NamedTuple):
    """The fate of every assignment. `counts` and `accepted` are the same on every device."""

    expert: Int[Array, "N K"]  # the expert of a kept assignment, E of any other
    rank: Int[Array, "N K"]  # its place in its cell, in token order
    counts: Int[Array, "S E"]  # assignments that ask, by sender
    sent: Int[Array, "S E"]  # those that the sender's limit lets go
    accepted: Int[Array, "S E"]  # those that the receiver then takes: the first ones of each cell


@dataclass(frozen=True)
class Bounds:
    """Static sizes. An even share is what falls to one receiver, or to one pair, of perfectly even routing.

    devices: S; experts: E; receiver: rows of one device for all its experts and senders; pair: rows that one
    device sends to one other. Both always suffice where the capacity is None.
    """

    devices: int
    experts: int
    receiver: int
    pair: int
    limited: tuple[bool, bool] = (False, False)  # can the receiver, the pair turn anything away?

    @property
    def local_experts(self) -> int:
        return self.experts // self.devices


def bounds(
    tokens: int,
    top_k: int,
    experts: int,
    devices: int,
    capacity: float | None = None,
    sender_capacity: float | None = None,
) -> Bounds:
    """Rows for `tokens` tokens a device: ceil(capacity * tokens * top_k) for a receiver and
    ceil(sender_capacity * tokens * top_k / devices) for a pair, never more than can come.

    Raises SpecError when a capacity is not positive, the experts do not divide, or rows pass int32.
    """
    for name, value in {"capacity": capacity, "sender_capacity": sender_capacity}.items():
        if value is not None and not value > 0:
            raise SpecError(f"{name}={value}: give more than 0, or None to keep all")
    if experts % devices:
        raise SpecError(f"{experts} experts do not divide over {devices} devices of the expert axis")
    local = experts // devices
    if max(devices * tokens * top_k * (local + 1), tokens * top_k * (experts + 1)) >= MOST:
        raise SpecError(
            f"{devices} devices x {tokens} tokens x {top_k} experts a token pass 2^31 numbers of rows: "
            "lower parallel.micro_batch_rows"
        )
    pair = tokens * min(top_k, local)
    clipped = pair if sender_capacity is None else min(pair, _share(sender_capacity, tokens * top_k, devices))
    receiver = devices * clipped
    pooled = receiver if capacity is None else min(receiver, _share(capacity, tokens * top_k, 1))
    return Bounds(devices, experts, pooled, min(clipped, pooled), (pooled < receiver, clipped < pair))


def _share(capacity: float, rows: int, parts: int) -> int:
    """ceil(capacity * rows / parts), with the capacity as it is written: 1.1 of 10 rows is 11, not 12."""
    return math.ceil(Fraction(repr(float(capacity))) * rows / parts)


def make_plan(expert: Int[Array, "N K"], limits: Bounds, axis: str) -> Plan:
    """The plan of one device, inside shard_map over `axis` where there are several. One all_gather of E
    integers; the rest is the same arithmetic on every device."""
    S, E = limits.devices, limits.experts
    mine, rank = ranks(expert.ravel(), E)
    counts = jax.lax.all_gather(mine, axis) if S > 1 else mine[None]
    sent, accepted = accept(counts, limits, turn_of(counts))
    own = accepted[jax.lax.axis_index(axis) if S > 1 else 0]
    rank = rank.reshape(expert.shape)
    keep = (expert < E) & (rank < own.at[expert].get(mode="clip"))
    return Plan(jnp.where(keep, expert, E), rank, counts, sent, accepted)


def ranks(group: Int[Array, " A"], groups: int) -> tuple[Int[Array, " G"], Int[Array, " A"]]:
    """(members of each group, place of each assignment among those of its group). Group G counts for none.

    One sort of group * A + number: equal groups stay in order and the number needs no second operand.
    """
    A = group.size
    numbers = jnp.arange(A, dtype=jnp.int32)
    key = jnp.sort(group.astype(jnp.int32) * A + numbers)
    starts = jnp.searchsorted(key, jnp.arange(groups + 1, dtype=jnp.int32) * A).astype(jnp.int32)
    rank = jnp.zeros_like(group).at[key % A].set(numbers - starts[key // A], unique_indices=True)
    return jnp.diff(starts), rank


def accept(
    counts: Int[Array, "S E"], limits: Bounds, turn: Int[Array, ""] | int
) -> tuple[Int[Array, "S E"], Int[Array, "S E"]]:
    """(rows that the senders' limit lets go, those that the receivers then take), of each cell.

    First each pair of devices shares its rows among the receiver's experts, then each receiver its pool
    among all its senders and experts, both max-min fair.
    """
    S, L = limits.devices, limits.local_experts
    pairs = counts.reshape(S, S, L)
    if limits.limited[1]:
        pairs = max_min(pairs, limits.pair, turn)
    sent, pools = pairs.reshape(counts.shape), pairs.transpose(1, 0, 2)
    if limits.limited[0]:
        pools = max_min(pools.reshape(S, S * L), limits.receiver, turn).reshape(pools.shape)
    return sent, pools.transpose(1, 0, 2).reshape(counts.shape)


def max_min(demand: Int[Array, "... M"], limit: int, turn: Int[Array, ""] | int) -> Int[Array, "... M"]:
    """Max-min fair shares: min(demand, level) with the highest level that fits (Bertsekas & Gallager 1992,
    6.5.2); what is left goes one each to cells above the level, the first of them at or after `turn` mod M.

    Only the hottest cells are cut; whoever asks for no more than the level gets it all.
    """
    M = demand.shape[-1]

    def raise_level(i: Array, level: Array) -> Array:
        higher = level + jnp.left_shift(1, 30 - i)
        fits = jnp.minimum(demand, higher[..., None]).sum(-1) <= limit
        return jnp.where(fits, higher, level)

    level = jax.lax.fori_loop(0, 31, raise_level, jnp.zeros_like(demand[..., 0]))[..., None]
    share = jnp.minimum(demand, level)
    cut = jnp.roll(demand > level, -(turn % M), axis=-1)
    more = cut & (jnp.cumsum(cut, axis=-1) <= limit - share.sum(-1, keepdims=True))
    return share + jnp.roll(more, turn % M, axis=-1).astype(share.dtype)


def turn_of(counts: Int[Array, "S E"]) -> Int[Array, ""]:
    """Where the remainder of a share begins: a number that all devices have and that changes with every
    batch and layer, so that no cell is favoured for long."""
    S, E = counts.shape
    return jnp.sum(counts * (jnp.arange(S * E).reshape(S, E) % 8191)) % 8191


def before(sizes: Int[Array, "S L"]) -> Int[Array, "S L"]:
    """What earlier rows of the table hold: the exclusive cumulative sum over its first axis."""
    return jnp.cumsum(sizes, axis=0) - sizes


class Dispatch(NamedTuple):
    """Rows of a buffer, and the assignments they belong to."""

    slot: Int[Array, "N K"]  # the row of each assignment; anything where it has none
    keep: Bool[Array, "N K"]  # has it a row?
    source: Int[Array, " C"]  # the assignment of each row; anything where the row is padding
    used: Bool[Array, " C"]


def placed(slot: Int[Array, "N K"], keep: Bool[Array, "N K"], rows: int) -> Dispatch:
    """The dispatch that puts each kept assignment into its slot of `rows`, and the others nowhere."""
    source = jnp.full(rows, -1, jnp.int32)
    where = jnp.where(keep, slot, rows + jnp.arange(slot.size).reshape(slot.shape)).ravel()
    numbers = jnp.arange(slot.size, dtype=jnp.int32)
    source = source.at[where].set(numbers, unique_indices=True, mode="drop")
    return Dispatch(jnp.where(keep, slot, 0), keep, jnp.maximum(source, 0), source >= 0)
