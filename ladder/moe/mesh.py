"""The devices of one run. One axis for now: `data`, whose devices share the rows of a batch."""

import jax
from jax.sharding import AxisType, Mesh

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
