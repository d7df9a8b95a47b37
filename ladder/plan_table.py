"""A plan as text: two tables, what their columns mean, and what stands in the way. 88 columns."""

from collections.abc import Iterator
from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from ladder.planning import Plan, PlannedRun

LEGEND = (
    "active: parameters that a token uses; shared: the part of its expert compute that every token takes; "
    "per active: tokens for each active parameter; peak lr: of embeddings and gains, then of matrices; "
    "of target: FLOPs in percent of the target's; on: what each run occupies"
)
DEVICE_LEGEND = (
    "on one device: weights, gradients and optimizer state are exact, activations an estimate; time and cost "
    "are those of training alone"
)


def render(plan: "Plan") -> str:
    console = Console(file=StringIO(), width=88, no_color=True, legacy_windows=False)
    on_devices = [run for run in plan.runs if run.accelerator]
    parts = [Text(_title(plan)), _sizes(plan), Text(), _costs(plan)]
    if on_devices:
        parts += [Text(), _devices(on_devices)]
    parts.append(Text(LEGEND + (f"; {DEVICE_LEGEND}" if on_devices else ""), style="dim"))
    console.print(Group(*parts, *map(Text, _notes(plan))))
    text = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    return "\n".join(line.rstrip() for line in text.splitlines())


def _title(plan: "Plan") -> str:
    title = f"{plan.name}: {len(plan.runs)} runs, {flops_text(sum(run.flops for run in plan.runs))} FLOPs"
    if plan.seconds is not None:
        title += f", about {duration(plan.seconds)} on this machine, as `ladder run` places them"
    if plan.usd is not None:
        title += f", about {money(plan.usd)}"
    return title


def _sizes(plan: "Plan") -> Table:
    columns = ("", "width", "params\ntotal", "\nactive", "shared\nof experts", "tokens", "per\nactive")
    table = _table(*columns, "steps", "batch\ntokens", "peak\nlr", "\nmatrices", gap=1)
    for run in plan.runs:
        if run.role == "target":
            table.add_section()
        table.add_row(
            run.run,
            str(run.width),
            big(run.params_total),
            big(run.params_active),
            f"{run.shared_fraction:.0%}",
            big(run.tokens),
            f"{run.tokens_per_active:.3g}",
            f"{run.steps:,}",
            f"{run.batch_tokens:,}" if run.batch_tokens < 1e6 else big(run.batch_tokens),
            f"{run.peak_lr:.3g}",
            f"{run.peak_matrix_lr:.3g}",
        )
    return table


def _costs(plan: "Plan") -> Table:
    priced = any(run.usd is not None for run in plan.runs)
    table = _table("", "train\nFLOPs", "of\ntarget", "on", "memory,\nestimate", "time,\nestimate")
    if priced:
        table.add_column("cost,\nestimate", justify="right")
    for run in plan.runs:
        if run.role == "target":
            table.add_section()
        table.add_row(
            run.run,
            flops_text(run.flops),
            "-" if run.flops_of_target is None else f"{100 * run.flops_of_target:.3g}%",
            run.devices,
            bytes_text(run.memory_bytes),
            duration(run.seconds),
            *(["-" if run.usd is None else money(run.usd)] if priced else []),
        )
    return table


def _devices(runs: list["PlannedRun"]) -> Table:
    table = _table("on one device", "weights", "optimizer", "gradients", "activations", "of", "head\nFLOPs")
    for run in runs:
        kinds = (run.weight_bytes, run.optimizer_bytes, run.gradient_bytes, run.activation_bytes)
        head = 1 - run.flops_without_head / run.flops_with_head
        holds = bytes_text(run.accelerator.memory_bytes) if run.accelerator else "-"
        table.add_row(run.run, *map(bytes_text, kinds), holds, f"{head:.1%}")
    return table


def _notes(plan: "Plan") -> Iterator[str]:
    if plan.rungs_of_target is not None:
        yield f"the rungs are {100 * plan.rungs_of_target:.2g} % of the target's FLOPs"
    for kind in {run.accelerator: None for run in plan.runs if run.accelerator}:
        price = "no price" if kind.usd_per_hour is None else f"{money(kind.usd_per_hour)} an hour each"
        yield (
            f"stated by the experiment: {kind.name} at {kind.mfu:.4g} of its {flops_text(kind.flops_per_s)} "
            f"FLOP/s (MFU with the output head, without recomputation), {price}"
        )
    for part, text in plan.hypothesis.items():
        yield f"{part}: {text}"
    for warning in plan.warnings:
        yield f"warning: {warning}"
    if plan.elsewhere:
        first, *others = plan.elsewhere
        yield f"not here: {first}" + (f"; {len(others)} other runs likewise" if others else "")
    for problem in plan.problems:
        yield f"PROBLEM: {problem}"


def _table(*columns: str, gap: int = 2) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    return table


def flops_text(number: float) -> str:
    return f"{number:.2e}".replace("e+", "e")  # 2.65e19


def big(number: float) -> str:
    """59.9k, 1.6B"""
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return f"{number:.3g}"


def bytes_text(number: float) -> str:
    return f"{number / 1e9:.{2 if number < 1e10 else 0}f} GB"


def money(usd: float) -> str:
    """$10.50, $132,000, $11.8M"""
    return f"${usd:.2f}" if usd < 100 else f"${float(f'{usd:.3g}'):,.0f}" if usd < 1e6 else f"${big(usd)}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for limit, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * limit:
            return f"{seconds / limit:.1f} {unit}"
    return f"{seconds:.0f} s"
