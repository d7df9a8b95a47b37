"""How parameters lie on the mesh, by one rule of the table of tensors, and how a device makes them whole."""

import jax
from jax.sharding import PartitionSpec as P

from ladder.moe.mesh import EXPERT
from ladder.moe.params import Params
from ladder.spec import ModelSpec, ParallelSpec
from ladder.tensors import shard_axis, tensors


def partitions(model: ModelSpec, layout: ParallelSpec) -> dict[str, P]:
    """How each parameter is divided over the expert axis of the mesh (see tensors.shard_axis)."""
    axes = {name: shard_axis(tensor, layout.expert) for name, tensor in tensors(model).items()}
    return {name: P() if axis is None else P(*[None] * axis, EXPERT) for name, axis in axes.items()}


def whole(params: Params, model: ModelSpec, layout: ParallelSpec) -> Params:
    """A device's shards -> whole tensors, but for the experts, of which each device keeps its own.

    Collective over the expert axis; its transpose adds up the gradients of all its devices and leaves each
    its shard. Takes whole stacks or, inside a scan over layers, single layers.
    """
    if layout.expert == 1:
        return params
    table = tensors(model)

    def gathered(name: str, x: jax.Array) -> jax.Array:
        tensor = table[name]
        axis = shard_axis(tensor, layout.expert)
        if axis is None or "expert" in tensor.axes:
            return x
        return jax.lax.all_gather(x, EXPERT, axis=axis + x.ndim - len(tensor.shape), tiled=True)

    return {name: gathered(name, x) for name, x in params.items()}
