"""The table before money is spent: what a ladder trains, what it costs, and why it may not work here."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from ladder.accounting import (
    active_parameters,
    device_bytes,
    forward_flops,
    parameters,
    scaling_flops,
    shared_fraction,
    train_flops,
)
from ladder.gating import waves
from ladder.plan_checks import idle_or_missing, is_local, not_here, problems, warnings
from ladder.plan_table import render
from ladder.resources import Accelerator, Resources
from ladder.spec import Ladder, Rung, RunSpec

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
    accelerator, or one host of processors, and the four kinds of bytes before it are on one device. seconds
    is wall time: on this machine's processors by its calibration, on accelerators by their stated MFU, else
    None. usd is the cost of those seconds at the stated price, None where none is stated."""

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
    flops_without_head: float
    flops_with_head: float
    flops_of_target: float | None
    weight_bytes: int
    optimizer_bytes: int
    gradient_bytes: int
    activation_bytes: int
    memory_bytes: int
    seconds: float | None
    usd: float | None
    devices: str
    accelerator: Accelerator | None


@dataclass(frozen=True)
class Plan:
    """`problems` are reasons not to start here, `elsewhere` names what this machine does not have at all
    (`ladder run` refuses both with exit code 2), `warnings` are reasons to think. `seconds` is the whole
    ladder's wall time on this machine, placed by resources, and `usd` its cost on accelerators; None when
    that of a run is not known. rungs_of_target: FLOPs of all rungs over the target's."""

    name: str
    hypothesis: Mapping[str, str]  # its parts that say something
    runs: tuple[PlannedRun, ...]
    seconds: float | None
    usd: float | None
    rungs_of_target: float | None
    warnings: tuple[str, ...]
    problems: tuple[str, ...]
    elsewhere: tuple[str, ...]

    def frame(self) -> pd.DataFrame:
        """A row a run, in the columns of PlannedRun, accelerators by name; what is not known is NaN."""
        rows = [asdict(run) | {"accelerator": run.accelerator and run.accelerator.name} for run in self.runs]
        return pd.DataFrame(rows).astype({"flops_of_target": float, "seconds": float, "usd": float})

    def to_json(self) -> str:
        """Every field of the plan and of its runs; what is not known is null."""
        return json.dumps(asdict(self), allow_nan=False, default=Accelerator.model_dump)

    def __str__(self) -> str:
        return render(self)


def plan(ladder: Ladder, *, calibrate: bool = True) -> Plan:
    """Price every run of `ladder`. `calibrate` times this machine for two seconds if a run is to train on
    it; without it no such times."""
    here = any(is_local(rung.resources) for rung in ladder.everything)
    gemm_rate = measure_gemm_rate() if calibrate and here else None
    target = scaling_flops(ladder.target.run) if ladder.target else None
    runs = tuple(
        _planned(name, spec, rung, rung is ladder.target, target, gemm_rate)
        for rung in ladder.everything
        for name, spec in rung.runs
    )
    cpus, memory = len(os.sched_getaffinity(0)), machine_memory()
    asked = [(run, rung) for rung in ladder.everything for run in runs if run.rung == rung.name]
    last = ((ladder.target,),) if ladder.target else ()
    names = [{rung.name for rung in wave} for wave in (*waves(ladder), *last)]
    placeable = [(run, rung.resources) for run, rung in asked]
    peak, seconds = placed([[item for item in placeable if item[0].rung in wave] for wave in names], cpus)
    costs = [run.usd for run in runs if run.usd is not None]
    return Plan(
        name=ladder.name,
        hypothesis=_said(ladder),
        runs=runs,
        seconds=seconds,
        usd=sum(costs) if len(costs) == len(runs) else None,
        rungs_of_target=sum(run.flops for run in runs if run.role == "rung") / target if target else None,
        warnings=(*warnings(runs), *idle_or_missing(asked)),
        problems=tuple(problems(placeable, peak, cpus, memory)),
        elsewhere=tuple(filter(None, (not_here(run.run, resources) for run, resources in placeable))),
    )


def _said(ladder: Ladder) -> dict[str, str]:
    if ladder.hypothesis is None:
        return {}
    parts = ladder.hypothesis.model_dump(include={"question", "prediction", "decides"})
    return {part: text for part, text in parts.items() if text}


def _planned(
    name: str, spec: RunSpec, rung: Rung, is_target: bool, target: int | None, gemm_rate: float | None
) -> PlannedRun:
    active, flops, resources = active_parameters(spec), scaling_flops(spec), rung.resources
    held, kind, took = device_bytes(spec), resources.accelerator, None
    if kind:
        took = accelerated_seconds(spec, resources, kind)
    elif gemm_rate and is_local(resources) and resources.hosts == 1:
        took = seconds(spec, resources, gemm_rate)
    price = kind.usd_per_hour if kind else None
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
        flops_without_head=float(train_flops(spec)),
        flops_with_head=float(train_flops(spec, lm_head=True)),
        flops_of_target=flops / target if target else None,
        weight_bytes=held.weights,
        optimizer_bytes=held.optimizer,
        gradient_bytes=held.gradients,
        activation_bytes=held.activations,
        memory_bytes=memory_bytes(spec, resources),
        seconds=took,
        usd=None if took is None or price is None else took / 3600 * resources.devices * price,
        devices=_devices(resources),
        accelerator=kind,
    )


def memory_bytes(spec: RunSpec, resources: Resources) -> int:
    """Estimate of the memory of one accelerator, or of one host where processors train: what each of its
    devices holds (`accounting.device_bytes`), and `PROCESS_BYTES` of runtime and compiled code."""
    device = device_bytes(spec).total
    if resources.gpus:
        return device
    return PROCESS_BYTES + device * math.ceil(spec.parallel.devices / resources.hosts)


def accelerated_seconds(spec: RunSpec, resources: Resources, kind: Accelerator) -> float:
    """Wall time of the training FLOPs, output head counted, at the stated MFU of all accelerators."""
    return train_flops(spec, lm_head=True) / (resources.devices * kind.flops_per_s * kind.mfu)


def seconds(spec: RunSpec, resources: Resources, gemm_rate: float) -> float:
    """Wall time of a run on `resources.cpus` processors, each with `gemm_rate` FLOP/s of float32 GEMM."""
    forward = forward_flops(spec.model, lm_head=True)  # the head is computed, whether or not it is counted
    evaluated = len(spec.eval_steps) * len(spec.data.sources) * spec.evaluation.rows * spec.model.context
    flops = forward * (3 * spec.tokens + evaluated) + STEP_FLOPS * spec.steps
    return START_S + flops / (EFFICIENCY * gemm_rate * resources.cpus**CORE_EXPONENT)


def placed(waves: list[list[tuple[PlannedRun, Resources]]], cpus: int) -> tuple[int, float | None]:
    """(peak memory in bytes, wall seconds) of the driver's queue on this machine: wave after wave (the rungs
    that may run side by side, last the target), in each as many at a time as processors allow, in order. None
    seconds when a run's time is not known or it trains elsewhere."""
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
    known = all(run.seconds is not None and is_local(resources) for wave in waves for run, resources in wave)
    return memory, total if known else None


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


def _devices(resources: Resources) -> str:
    kind = resources.accelerator.name if resources.accelerator else "GPU"
    each = f"{resources.gpus} {kind}" if resources.gpus else f"{resources.cpus} CPU"
    return each if resources.hosts == 1 else f"{resources.hosts} x {each}"
