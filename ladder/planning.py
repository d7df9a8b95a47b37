"""The table before money is spent: what a ladder trains, what it costs, and why it may not work here."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from ladder.accounting import active_parameters, forward_flops, parameters, scaling_flops, shared_fraction
from ladder.gating import waves
from ladder.numerals import gigabytes, power
from ladder.plan_table import render
from ladder.spec import Ladder, Resources, Rung, RunSpec

CALIBRATION_S = 2.0

# Fitted to the processor time of steps of ladder.train.loop on recipe.laptop at d 24, 32, 48, 72, 88 (27, 37,
# 70, 257, 511 ms), one thread of a Xeon core whose GEMM took 129 GFLOP/s of processor time: 31 GFLOP/s and
# 8 ms a step come within 20 % at every width from 32 on.
EFFICIENCY = 0.24  # of the GEMM rate
STEP_FLOPS = 250_000_000  # what a step costs besides its FLOPs (optimizer, dispatch), in FLOPs of that rate
START_S = 15.0  # imports and compilation (12 to 17 s of processor time, nothing cached)
CORE_EXPONENT = 0.6  # a run on two cores is 1.5x faster than on one: 160 instead of 257 ms at d 72

# Peak memory of the same runs was 880 to 980 MB, nearly all of it the runtime and compiled code.
PROCESS_BYTES = 900_000_000

CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class PlannedRun:
    """One run. flops counts the output head where the ladder does; memory_bytes is an estimate for one
    accelerator, or one host of processors; seconds is None where this machine's calibration says nothing
    (accelerators, several hosts)."""

    run: str
    rung: str
    role: str  # rung or target
    width: int
    params_total: int
    params_active: int
    shared_fraction: float  # of a token's expert compute
    tokens: int
    tokens_per_active: float
    steps: int
    batch_tokens: int
    peak_lr: float
    peak_matrix_lr: float
    flops: float
    flops_of_target: float | None
    memory_bytes: int
    seconds: float | None
    devices: str


@dataclass(frozen=True)
class Plan:
    """`problems` are reasons not to start here, `elsewhere` names what this machine does not have at all
    (`ladder run` refuses both with exit code 2), `warnings` are reasons to think. `seconds` is the whole
    ladder's wall time, placed by resources; None when a run's is not known."""

    name: str
    runs: tuple[PlannedRun, ...]
    seconds: float | None
    warnings: tuple[str, ...]
    problems: tuple[str, ...]
    elsewhere: tuple[str, ...]

    def frame(self) -> pd.DataFrame:
        """A row a run, in the columns of PlannedRun; what is not known is NaN."""
        frame = pd.DataFrame([asdict(run) for run in self.runs])
        return frame.astype({"flops_of_target": float, "seconds": float})

    def to_json(self) -> str:
        """Every field of the plan and of its runs; what is not known is null."""
        return json.dumps(asdict(self), allow_nan=False)

    def __str__(self) -> str:
        return render(self)


def plan(ladder: Ladder, *, calibrate: bool = True) -> Plan:
    """Price every run of `ladder`. `calibrate` times this machine for two seconds; without it no times."""
    gemm_rate = measure_gemm_rate() if calibrate else None
    target = scaling_flops(ladder.target.run) if ladder.target else None
    runs = tuple(
        _planned(name, spec, rung, rung is ladder.target, target, gemm_rate)
        for rung in ladder.everything
        for name, spec in rung.runs
    )
    cpus, memory = len(os.sched_getaffinity(0)), machine_memory()
    asked = [(run, rung.resources) for rung in ladder.everything for run in runs if run.rung == rung.name]
    last = ((ladder.target,),) if ladder.target else ()
    names = [{rung.name for rung in wave} for wave in (*waves(ladder), *last)]
    peak, seconds = placed([[item for item in asked if item[0].rung in wave] for wave in names], cpus)
    return Plan(
        ladder.name,
        runs,
        seconds,
        tuple(_warnings(runs)),
        tuple(_problems(asked, peak, cpus, memory)),
        tuple(filter(None, (not_here(run.run, resources) for run, resources in asked))),
    )


def _planned(
    name: str, spec: RunSpec, rung: Rung, is_target: bool, target: int | None, gemm_rate: float | None
) -> PlannedRun:
    active, flops = active_parameters(spec), scaling_flops(spec)
    timed = gemm_rate if is_local(rung.resources) and rung.resources.hosts == 1 else None
    return PlannedRun(
        run=name,
        rung=rung.name,
        role="target" if is_target else "rung",
        width=spec.model.width,
        params_total=parameters(spec.model).total,
        params_active=active,
        shared_fraction=shared_fraction(spec.model),
        tokens=spec.tokens,
        tokens_per_active=spec.tokens / active,
        steps=spec.steps,
        batch_tokens=spec.batch_tokens,
        peak_lr=spec.optimizer.lr,
        peak_matrix_lr=spec.optimizer.matrix_lr,
        flops=float(flops),
        flops_of_target=flops / target if target else None,
        memory_bytes=memory_bytes(spec, rung.resources),
        seconds=seconds(spec, rung.resources, timed) if timed else None,
        devices=_devices(rung.resources),
    )


def is_local(resources: Resources) -> bool:
    """Does the run fit the machine that plans it by kind: processors and nothing else? Several hosts of them
    are processes that share it."""
    return resources.gpus == 0 and not resources.custom


def memory_bytes(spec: RunSpec, resources: Resources) -> int:
    """Estimate of the memory of one accelerator, or of one host where processors train.

    A device holds float32 weights, gradients and two AdamW moments (16 bytes a parameter), and for one
    micro-batch what the backward pass keeps of each layer and the logits with their gradient. A host holds
    that for each of its devices, and `PROCESS_BYTES` of runtime and compiled code.
    """
    model = spec.model
    rows = spec.parallel.micro_batch_rows or spec.rows // spec.parallel.data
    tokens = rows * model.context
    expert = 4 * (model.top_k * model.expert_width + model.shared_experts * model.shared_width)
    attention = 4 * (model.heads + model.kv_heads) * model.head_dim + 3 * model.heads * model.context
    layer = 8 * model.width + model.top_k * 2 * model.width + expert + attention
    device = 16 * parameters(model).total + 4 * tokens * (model.layers * layer + 3 * model.vocab_size)
    if resources.gpus:
        return device
    return PROCESS_BYTES + device * math.ceil(spec.parallel.data / resources.hosts)


def seconds(spec: RunSpec, resources: Resources, gemm_rate: float) -> float:
    """Wall time of a run on `resources.cpus` processors, each with `gemm_rate` FLOP/s of float32 GEMM."""
    forward = forward_flops(spec.model, lm_head=True)  # the head is computed, whether or not it is counted
    evaluated = len(spec.eval_steps) * len(spec.data.sources) * spec.evaluation.rows * spec.model.context
    flops = forward * (3 * spec.tokens + evaluated) + STEP_FLOPS * spec.steps
    return START_S + flops / (EFFICIENCY * gemm_rate * resources.cpus**CORE_EXPONENT)


def placed(waves: list[list[tuple[PlannedRun, Resources]]], cpus: int) -> tuple[int, float | None]:
    """(peak memory in bytes, wall seconds) of the driver's queue on this machine: wave after wave (the rungs
    that may run side by side, last the target), in each as many at a time as processors allow, in order. None
    seconds when a run's time is not known."""
    memory, total = 0, 0.0
    for wave in waves:
        running: list[tuple[float, int, int]] = []  # (end, processors, bytes)
        now = 0.0
        for run, resources in [item for item in wave if is_local(item[1])]:
            wanted = resources.cpus * resources.hosts
            while running and sum(used for _, used, _ in running) + wanted > cpus:
                first = min(running)
                now = first[0]
                running.remove(first)
            running.append((now + (run.seconds or 0), wanted, run.memory_bytes * resources.hosts))
            memory = max(memory, sum(held for *_, held in running))
        total += max((end for end, *_ in running), default=0.0)
    return memory, None if any(run.seconds is None for wave in waves for run, _ in wave) else total


def measure_gemm_rate() -> float:
    """float32 GEMM FLOP/s of one core of this machine, the median over two seconds.

    In a process of its own: the BLAS reads its number of threads when it is loaded.
    """
    code = f"""
import time
import numpy as np
a = np.ones((512, 512), np.float32)
rates, end = [], time.perf_counter() + {CALIBRATION_S}
while time.perf_counter() < end:
    start = time.perf_counter()
    for _ in range(4):
        a @ a
    rates.append(4 * 2 * 512**3 / (time.perf_counter() - start))
print(np.median(rates))
"""
    one = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "VECLIB_MAXIMUM")}
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | one, capture_output=True, check=True)
    return float(done.stdout)


def machine_memory() -> int:
    """Bytes this process may use: the machine's, or its control group's where that is less."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    text = CGROUP_LIMIT.read_text().strip() if CGROUP_LIMIT.is_file() else "max"
    return physical if text == "max" else min(physical, int(text))


def _warnings(runs: tuple[PlannedRun, ...]) -> Iterator[str]:
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
            yield f"the target has {power(target.flops)} FLOPs, less than the top rung's {power(top)}"
        elif target.flops > 500 * top:
            yield (
                f"the target is {target.flops / top:.3g}x the top rung in FLOPs: beyond 500x no public "
                "ladder shows what a forecast is worth"
            )


def _problems(asked: list[tuple[PlannedRun, Resources]], peak: int, cpus: int, memory: int) -> Iterator[str]:
    for run, resources in asked:
        if not is_local(resources):
            continue
        if (wanted := resources.cpus * resources.hosts) > cpus:
            yield (
                f"{run.run} asks for {wanted} CPUs (Resources(cpus={resources.cpus}, hosts="
                f"{resources.hosts})), this machine has {cpus}: lower its Resources"
            )
        if (needed := run.memory_bytes * resources.hosts) > memory:
            yield (
                f"{run.run} needs about {gigabytes(needed)}, this machine has {gigabytes(memory)}: use a "
                "smaller parallel.micro_batch_rows or a smaller model"
            )
    single = [run.memory_bytes * resources.hosts for run, resources in asked if is_local(resources)]
    if peak > memory >= max(single, default=0):
        yield (
            f"runs that train at the same time need about {gigabytes(peak)}, this machine has "
            f"{gigabytes(memory)}: raise Resources(cpus=...), so that fewer run together"
        )


def not_here(run: str, resources: Resources) -> str:
    """Why a local cluster has no place for a run, whatever its size; empty when it has."""
    if is_local(resources):
        return ""
    wanted = [f"gpus={resources.gpus}"] * bool(resources.gpus)
    wanted += [f"custom={dict(resources.custom)}"] * bool(resources.custom)
    return (
        f"{run} asks for Resources({', '.join(wanted)}), the local cluster has processors only: "
        "`ladder run` refuses it here"
    )


def _devices(resources: Resources) -> str:
    each = f"{resources.gpus} GPU" if resources.gpus else f"{resources.cpus} CPU"
    return each if resources.hosts == 1 else f"{resources.hosts} x {each}"
