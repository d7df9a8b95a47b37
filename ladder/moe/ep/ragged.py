"""ragged_all_to_all between the devices of one axis, and its exact stand-in where XLA has none (CPU).

Axes: S devices, R rows of the operand, C rows of the result, D width.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from ladder.moe.ep.plan import before


class Offsets(NamedTuple):
    """What one device tells the collective, an entry for each other device."""

    input: Int[Array, " S"]  # where my slice for r begins in my operand
    send: Int[Array, " S"]  # its rows
    output: Int[Array, " S"]  # where it lands in the result of *r*: the sender says so
    receive: Int[Array, " S"]  # rows that come from s


def offsets(sizes: Int[Array, "S S"], me: Int[Array, ""] | int) -> Offsets:
    """Slices in the order of their receiver in the operand and of their sender in the result; sizes[s, r]
    are the rows from s to r."""
    send = sizes[me]
    return Offsets(jnp.cumsum(send) - send, send, before(sizes)[me], sizes[:, me])


def _exchange(
    rows: Float[Array, "R D"], sizes: Int[Array, "S S"], most: int, axis: str
) -> Float[Array, "C D"]:
    """Send sizes[me, r] rows to each r. The result has C = `most` rows; those that nobody sent are 0."""
    at = offsets(sizes, jax.lax.axis_index(axis))
    output = jnp.zeros_like(rows, shape=(most, rows.shape[1]))
    return jax.lax.platform_dependent(
        rows, output, at, cpu=partial(emulated, axis=axis), default=partial(_collective, axis=axis)
    )


exchange = jax.custom_vjp(_exchange, nondiff_argnums=(2, 3))


def _forward(rows: Array, sizes: Array, most: int, axis: str):
    return exchange(rows, sizes, most, axis), (sizes, rows.shape[0])


def _backward(most: int, axis: str, kept: tuple[Array, int], cotangent: Array):
    sizes, rows = kept
    return exchange(cotangent, sizes.T, rows, axis), None


exchange.defvjp(_forward, _backward)


def _collective(rows: Array, output: Array, at: Offsets, *, axis: str) -> Array:
    return jax.lax.ragged_all_to_all(rows, output, *at, axis_name=axis)


def emulated(rows: Array, output: Array, at: Offsets, *, axis: str) -> Array:
    """The same by an all_gather of all operands and offsets: what no slice lands on keeps `output`."""
    me = jax.lax.axis_index(axis)
    operands, first, begins, sizes = (
        jax.lax.all_gather(a, axis) for a in (rows, at.input, at.output, at.send)
    )
    first, begins, sizes = first[:, me], begins[:, me], sizes[:, me]
    i = jnp.arange(output.shape[0])[:, None]
    lands = (i >= begins) & (i < begins + sizes)
    sender = jnp.argmax(lands, axis=1)
    source = jnp.clip(first[sender] + i[:, 0] - begins[sender], 0, rows.shape[0] - 1)
    return jnp.where(lands.any(axis=1)[:, None], operands[sender, source], output)
