"""A run's real programs, lowered and compiled on virtual CPU devices from shapes alone.

`python -m ladder.train.rehearsal DEVICES < RUN.json` prints one line of JSON. A process of its own, because
the number of CPU devices is a setting of the whole process, and because its peak memory is measured. No
weight is ever allocated.
"""

import json
import math
import os
import re
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

from ladder.spec import RunSpec
from ladder.values import SpecError

WIDTHS = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8}
COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
PLATFORM = "cuda"  # lowered for as well


def replica(run: RunSpec, devices: int) -> RunSpec:
    """The share of a batch that the `devices` of one expert axis train, as a run of its own."""
    layout = run.parallel
    if devices != layout.expert:
        raise SpecError(
            f"devices={devices}: the run shares its experts over parallel.expert={layout.expert} devices, "
            "give --devices that number"
        )
    return run.replace(batch_tokens=run.batch_tokens // layout.data, parallel=layout.replace(data=1))


def rehearse(run: RunSpec) -> dict[str, Any]:
    """Bytes per device by kind, collectives and compile seconds of the training step and of evaluation.

    weights and optimizer are exact; temporaries are those of the program for CPUs, which computes bfloat16
    products in float32. Needs `run.parallel.devices` devices.
    """
    import jax
    import jax.numpy as jnp

    from ladder.moe.mesh import make_mesh
    from ladder.train.step import make_eval, make_step, shapes, shardings

    mesh, state = make_mesh(run.parallel), shapes(run)
    laid_out = shardings(run, mesh)

    def held(part: Any, where: Any) -> int:
        pairs = zip(jax.tree.leaves(part), jax.tree.leaves(where), strict=True)
        return sum(math.prod(s.shard_shape(x.shape)) * x.dtype.itemsize for x, s in pairs)

    found: dict[str, Any] = {
        "weights": held(state.params, laid_out.params),
        "optimizer": held(state.optimizer, laid_out.optimizer),
    }
    rows = (run.parallel.micro_batch_rows or run.rows // run.parallel.devices) * run.parallel.devices
    for name, program, many in (
        ("step", make_step(run, mesh), run.rows),
        ("eval", make_eval(run, mesh), rows),
    ):
        tokens = jax.ShapeDtypeStruct((many, run.model.context), jnp.int32)
        found[name] = _compiled(program.trace(state, tokens))
    found["peak_memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return found


def _compiled(traced: Any) -> dict[str, Any]:
    start = time.monotonic()
    program = traced.lower().compile()
    seconds, start = time.monotonic() - start, time.monotonic()
    traced.lower(lowering_platforms=(PLATFORM,))
    memory = program.memory_analysis()
    return {
        "compile_s": seconds,
        f"lower_{PLATFORM}_s": time.monotonic() - start,
        "arguments": memory.argument_size_in_bytes,
        "outputs": memory.output_size_in_bytes - memory.alias_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "collectives": collectives(program.as_text()),
    }


def collectives(hlo: str) -> dict[str, dict[str, int]]:
    """Of a compiled program's text: how often a device runs each kind of collective in one call, and the
    bytes of their results. A loop's body counts as often as the loop is known to run."""
    bodies = dict(_computations(hlo))
    found = {kind: {"count": 0, "bytes": 0} for kind in COLLECTIVES}

    def visit(name: str, times: int) -> None:
        for line in bodies[name]:
            operation = re.search(r"= (.*?) ([a-z0-9-]+)\(", line)
            kind = operation[2].removesuffix("-start") if operation else ""
            if operation and kind in found:
                found[kind]["count"] += times
                found[kind]["bytes"] += times * _bytes(operation[1])
            trips = re.search(r'"known_trip_count":\{"n":"(\d+)"', line)
            inside = times * int(trips[1]) if trips else times
            for called in re.findall(
                r"(?:body|calls|to_apply|branch_computations)=\{?(%[\w.-]+(?:, %[\w.-]+)*)", line
            ):
                for each in called.split(", "):
                    visit(each, inside)

    visit(next(name for name in bodies if name.startswith("ENTRY ")), 1)
    return {kind: numbers for kind, numbers in found.items() if numbers["count"]}


def _computations(hlo: str) -> Iterator[tuple[str, list[str]]]:
    """(name, instructions) of each; the entry's name begins with ENTRY."""
    for block in re.findall(r"^(?:ENTRY )?%[\w.-]+ .*?^\}", hlo, re.MULTILINE | re.DOTALL):
        head, *lines = block.splitlines()
        name = head.split(" (")[0]
        yield name, lines[:-1]


def _bytes(shapes: str) -> int:
    sizes = re.findall(r"(\w+)\[([\d,]*)\]", shapes)
    return sum(WIDTHS[kind] * math.prod(int(n) for n in axes.split(",") if n) for kind, axes in sizes)


def main(devices: int, text: str) -> None:
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    print(json.dumps(rehearse(replica(RunSpec.from_json(text), devices))))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.stdin.read())
