"""What speaks against a plan: doubtful designs, machines that are too small, machines that are not here."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ladder.plan_table import bytes_text, flops_text
from ladder.resources import Resources
from ladder.spec import Rung

if TYPE_CHECKING:
    from ladder.planning import PlannedRun


def is_local(resources: Resources) -> bool:
    """Does the run fit the machine that plans it by kind: processors and nothing else? Several hosts of them
    are processes that share it."""
    return resources.gpus == 0 and not resources.custom


def not_here(run: str, resources: Resources) -> str:
    """Why a local cluster has no place for a run, whatever its size; empty when it has."""
    if is_local(resources):
        return ""
    wanted = [f"gpus={resources.gpus}"] * bool(resources.gpus)
    wanted += [f"hosts={resources.hosts}"] * (resources.hosts > 1)
    wanted += [f"custom={dict(resources.custom)}"] * bool(resources.custom)
    return (
        f"{run} asks for Resources({', '.join(wanted)}), the local cluster has processors only: it does not "
        "fit this machine, and `ladder run` refuses it here"
    )


def warnings(runs: tuple["PlannedRun", ...]) -> Iterator[str]:
    """Reasons to think about the design."""
    ratios = {run.run: run.tokens_per_active for run in runs}
    low, high = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
    if ratios[high] / ratios[low] >= 1.1:
        yield (
            f"tokens per active parameter go from {ratios[low]:.3g} ({low}) to {ratios[high]:.3g} ({high}): "
            "the law in compute allows 10 %; set steps so that steps * batch_tokens is the same multiple of "
            "every run's active parameters"
        )
    rungs = [run for run in runs if run.role == "rung"]
    bottom, top = min(run.flops for run in rungs), max(run.flops for run in rungs)
    if top < 10 * bottom:
        yield (
            f"the rungs span {top / bottom:.2g}x in FLOPs: below 10x they say little about the exponent "
            "of the law, and the band will be wide"
        )
    for target in runs[len(rungs) :]:
        if target.flops < top:
            less, more = flops_text(target.flops), flops_text(top)
            yield f"the target has {less} FLOPs, less than the top rung's {more}"
        elif target.flops > 500 * top:
            yield (
                f"the target is {target.flops / top:.3g}x the top rung in FLOPs: beyond 500x no public "
                "ladder shows what a forecast is worth"
            )


def idle_or_missing(asked: list[tuple["PlannedRun", Rung]]) -> Iterator[str]:
    """Runs whose layout is not that of the accelerators that they ask for."""
    for run, rung in asked:
        there, wanted = rung.resources.devices, rung.run.parallel.devices
        if rung.resources.gpus and there != wanted:
            yield (
                f"{run.run} is laid out over {wanted} devices ({rung.run.parallel}), its Resources hold "
                f"{there}"
            )


def problems(asked: list[tuple["PlannedRun", Resources]], peak: int, cpus: int, memory: int) -> Iterator[str]:
    """Reasons not to start on this machine of `cpus` and `memory` bytes, where all that runs at the same time
    needs `peak` bytes; and what no machine of the declared kind holds."""
    for run, resources in asked:
        if (kind := resources.accelerator) and run.memory_bytes > kind.memory_bytes:
            yield (
                f"{run.run} needs about {bytes_text(run.memory_bytes)} on each device, {kind.name} has "
                f"{bytes_text(kind.memory_bytes)}: use more devices on parallel.expert, fewer "
                "parallel.micro_batch_rows or parallel.remat='layer'"
            )
        if not is_local(resources):
            continue
        if (wanted := resources.cpus * resources.hosts) > cpus:
            yield (
                f"{run.run} asks for {wanted} CPUs (Resources(cpus={resources.cpus}, hosts="
                f"{resources.hosts})), this machine has {cpus}: lower its Resources"
            )
        if (needed := run.memory_bytes * resources.hosts) > memory:
            yield (
                f"{run.run} needs about {bytes_text(needed)}, this machine has {bytes_text(memory)}: use a "
                "smaller parallel.micro_batch_rows or a smaller model"
            )
    single = [run.memory_bytes * resources.hosts for run, resources in asked if is_local(resources)]
    if peak > memory >= max(single, default=0):
        yield (
            f"runs that train at the same time need about {bytes_text(peak)}, this machine has "
            f"{bytes_text(memory)}: raise Resources(cpus=...), so that fewer run together"
        )
