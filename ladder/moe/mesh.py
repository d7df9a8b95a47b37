"""The devices of one run, of one process or of several. One axis for now: `data`, whose devices share the
rows of a batch."""

from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Int

from ladder.spec import ParallelSpec
from ladder.values import SpecError

DATA = "data"


def make_mesh(parallel: ParallelSpec) -> Mesh:
    """The first `parallel.data` devices as a mesh. Raises SpecError when there are fewer."""
    devices = jax.devices()
    if len(devices) < parallel.data:
        raise SpecError(
            f"parallel.data={parallel.data} but jax sees {len(devices)} {devices[0].platform} device(s): "
            "lower it, or on a CPU set XLA_FLAGS=--xla_force_host_platform_device_count"
        )
    # Auto axes: jax.make_mesh's default, Explicit, makes shard_map refuse plain inputs.
    return jax.make_mesh(
        (parallel.data,), (DATA,), axis_types=(AxisType.Auto,), devices=devices[: parallel.data]
    )


def over_devices(mesh: Mesh, tokens: Int[np.ndarray, "R S"]) -> Int[jax.Array, "R S"]:
    """The rows of a batch laid out over `data`. Every process gives the same batch and keeps the rows of its
    own devices."""
    return jax.make_array_from_callback(tokens.shape, NamedSharding(mesh, P(DATA)), tokens.__getitem__)


def of_first_process(numbers: Sequence[int]) -> list[int]:
    """What process 0 gives, on every process: all of them call it at the same place, and wait there."""
    return [int(n) for n in multihost_utils.broadcast_one_to_all(np.array(numbers, dtype=np.int32))]


def in_every_process(true: bool) -> bool:
    """Is it true in all of them? All of them call it at the same place, and wait there."""
    return bool(np.all(multihost_utils.process_allgather(np.array(true, dtype=np.int32))))
