"""The devices of one run, of one process or of several: `data` x `expert`, which share the rows of a batch.
Along `expert` they also share the experts and the storage of the other matrices."""

from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Int

from ladder.spec import ParallelSpec
from ladder.values import SpecError

DATA, EXPERT = "data", "expert"
ROWS = P((DATA, EXPERT))  # how the rows of a batch lie on the mesh


def make_mesh(parallel: ParallelSpec) -> Mesh:
    """The first `parallel.devices` devices as a mesh. Raises SpecError when there are fewer."""
    devices = jax.devices()
    if len(devices) < parallel.devices:
        raise SpecError(
            f"{parallel} but jax sees {len(devices)} {devices[0].platform} device(s): "
            "lower it, or on a CPU set XLA_FLAGS=--xla_force_host_platform_device_count"
        )
    # Auto axes: jax.make_mesh's default, Explicit, makes shard_map refuse plain inputs.
    return jax.make_mesh(
        (parallel.data, parallel.expert),
        (DATA, EXPERT),
        axis_types=(AxisType.Auto,) * 2,
        devices=devices[: parallel.devices],
    )


def over_devices(mesh: Mesh, tokens: Int[np.ndarray, "R S"]) -> Int[jax.Array, "R S"]:
    """The rows of a batch laid out over the mesh. Every process gives the same batch and keeps the rows of
    its own devices."""
    return jax.make_array_from_callback(tokens.shape, NamedSharding(mesh, ROWS), tokens.__getitem__)


def of_first_process(numbers: Sequence[int]) -> list[int]:
    """What process 0 gives, on every process: all of them call it at the same place, and wait there."""
    return [int(n) for n in multihost_utils.broadcast_one_to_all(np.array(numbers, dtype=np.int32))]


def in_every_process(true: bool) -> bool:
    """Is it true in all of them? All of them call it at the same place, and wait there."""
    return bool(np.all(multihost_utils.process_allgather(np.array(true, dtype=np.int32))))
