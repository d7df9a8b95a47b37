"""A plan as the table that a person reads."""

from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from ladder.numerals import duration, gigabytes, power, short

if TYPE_CHECKING:
    from ladder.planning import Plan

LEGEND = (
    "active: parameters that a token uses; shared: the part of its expert compute that every token takes; "
    "per active: tokens for each active parameter; peak lr: of embeddings and gains, then of matrices; "
    "of target: FLOPs in percent of the target's; on: what each run occupies"
)


def render(plan: "Plan") -> str:
    """Sizes, then costs, then what to know before it is run; 88 columns of plain text."""
    console = Console(file=StringIO(), width=88, no_color=True, legacy_windows=False)
    size = _table("", "width", "params\ntotal", "\nactive", "shared\nof experts", "tokens", "per\nactive")
    for column in ("steps", "batch\ntokens", "peak lr", "\nmatrices"):
        size.add_column(column, justify="right")
    cost = _table("", "train\nFLOPs", "of\ntarget", "on", "memory,\nestimate", "time,\nestimate")
    for run in plan.runs:
        if run.role == "target":
            size.add_section()
            cost.add_section()
        size.add_row(
            run.run,
            str(run.width),
            short(run.params_total),
            short(run.params_active),
            f"{run.shared_fraction:.0%}",
            short(run.tokens),
            f"{run.tokens_per_active:.3g}",
            f"{run.steps:,}",
            f"{run.batch_tokens:,}",
            f"{run.peak_lr:.3g}",
            f"{run.peak_matrix_lr:.3g}",
        )
        cost.add_row(
            run.run,
            power(run.flops),
            "-" if run.flops_of_target is None else f"{100 * run.flops_of_target:.3g}%",
            run.devices,
            gigabytes(run.memory_bytes),
            duration(run.seconds),
        )
    flops = power(sum(run.flops for run in plan.runs))
    time = (
        ""
        if plan.seconds is None
        else f", about {duration(plan.seconds)} on this machine, as `ladder run` places them"
    )
    title = f"{plan.name}: {len(plan.runs)} runs, {flops} FLOPs{time}"
    notes = [
        f"{kind}: {text}"
        for kind, texts in (
            ("warning", plan.warnings),
            ("not here", plan.elsewhere),
            ("PROBLEM", plan.problems),
        )
        for text in texts
    ]
    console.print(Group(Text(title), size, Text(), cost, Text(LEGEND, style="dim"), *map(Text, notes)))
    text = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    return "\n".join(line.rstrip() for line in text.splitlines())


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column else "left")
    return table
