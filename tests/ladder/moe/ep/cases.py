"""Layers over a mesh beside the oracle: the same tokens, routing and cotangent for both."""

from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from ladder import ParallelSpec
from ladder.moe.ep.grouped import Experts
from ladder.moe.ep.layer import Stats, moe
from ladder.moe.ep.oracle import dense_moe
from ladder.moe.ep.plan import bounds, turn_of
from ladder.moe.mesh import DATA, EXPERT, ROWS, make_mesh
from tests.reference import plan as slow

N, K, E, D, F = 24, 2, 8, 6, 10  # N tokens of each of 8 devices
ROUTINGS = ("uniform", "skewed", "one-hot")
SPECS = (ROWS, ROWS, ROWS, Experts(P(EXPERT), P(EXPERT), P(EXPERT)), ROWS)


class Inputs(NamedTuple):
    x: jax.Array
    expert: jax.Array
    weight: jax.Array
    experts: Experts
    cotangent: jax.Array


class Result(NamedTuple):
    y: np.ndarray
    x: np.ndarray  # gradients
    weight: np.ndarray
    experts: Experts


def inputs(routing: str, dtype: str = "float32", tokens: int = N) -> Inputs:
    rng = np.random.default_rng(5)
    draw = lambda *shape: jnp.asarray(rng.standard_normal(shape), dtype)  # noqa: E731
    total = 8 * tokens
    taste = np.linspace(0, 6, E) if routing == "skewed" else np.zeros(E)
    expert = np.argsort(-(rng.gumbel(size=(total, E)) + taste), axis=1)[:, :K].astype(np.int32)
    if routing == "one-hot":
        expert = np.stack([np.full(total, 3), np.where(np.arange(total) % 2, 0, 5)], 1).astype(np.int32)
    if routing == "skewed":
        expert[::5] = E  # padding
    experts = Experts(draw(E, D, F) / D**0.5, draw(E, D, F) / D**0.5, draw(E, F, D) / F**0.5)
    return Inputs(draw(total, D), jnp.asarray(expert), draw(total, K), experts, draw(total, D))


def gradients(layer, given: Inputs):
    """((y, aux), gradients) of the layer under the cotangent."""

    def read(x, weight, experts):
        y, aux = layer(x, given.expert, weight, experts)
        return jnp.sum(y.astype(jnp.float32) * given.cotangent), (y, aux)

    return jax.grad(read, argnums=(0, 1, 2), has_aux=True)(given.x, given.weight, given.experts)


def over_mesh(layout: ParallelSpec):
    """`moe` on the rows of all devices -> (y, Stats with a leading axis of devices)."""

    def on_device(x, expert, weight, experts):
        experts = Experts(*(jax.lax.pcast(w, DATA, to="varying") for w in experts))
        y, stats = moe(x, expert, weight, experts, layout)
        return y, Stats(*(a[None] for a in stats))

    mesh = make_mesh(layout)
    return jax.shard_map(on_device, mesh=mesh, in_specs=SPECS[:4], out_specs=(ROWS, ROWS))


@cache
def program(layout: ParallelSpec):
    return jax.jit(partial(gradients, over_mesh(layout)))


def ours(layout: ParallelSpec, given: Inputs, program=program) -> tuple[Result, Stats]:
    (x, weight, experts), (y, stats) = program(layout)(given)
    return _numpy(Result(y, x, weight, experts)), jax.tree.map(np.asarray, stats)


def kept(layout: ParallelSpec, given: Inputs) -> np.ndarray:
    """bool[tokens, K] by counting, for each group of devices along the expert axis."""
    S = layout.expert
    expert = np.asarray(given.expert).reshape(layout.data, S, -1, K)
    limits = bounds(expert.shape[2], K, E, S, layout.capacity, layout.sender_capacity)
    keep = []
    for group in expert:
        counts = slow.counts(group, E)
        turn = int(turn_of(jnp.asarray(counts)))
        keep.append(slow.kept(group, slow.accepted(counts, limits.pair, limits.receiver, turn)))
    return np.stack(keep).reshape(-1, K)


def oracle(given: Inputs, keep: np.ndarray) -> Result:
    """Every expert on every kept token of all devices, in float32."""
    wide = jax.tree.map(lambda a: a.astype(jnp.float32) if a.dtype == jnp.bfloat16 else a, given)
    wide = wide._replace(expert=jnp.where(jnp.asarray(keep), given.expert, E))
    (x, weight, experts), (y, _) = ORACLE(wide)
    return _numpy(Result(y, x, weight, experts))


ORACLE = jax.jit(partial(gradients, dense_moe))


def _numpy(result: Result) -> Result:
    return jax.tree.map(lambda a: np.asarray(a.astype(jnp.float32)), result)


def relative(a: np.ndarray, b: np.ndarray) -> float:
    """max |a - b| / max |b|; inf where a is not finite, judged by numpy."""
    return float(np.abs(a - b).max() / np.abs(b).max()) if np.isfinite(a).all() else np.inf


def norm(result: Result) -> float:
    return float(np.sqrt(sum((a.astype(np.float64) ** 2).sum() for a in jax.tree.leaves(result[1:]))))
