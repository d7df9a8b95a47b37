"""The table of evaluations, one row an evaluation, and the checks that it must pass.

Required columns: run, flops (spent so far). With a loss: `loss`. Optional: params_active, tokens and step
(spent so far), progress (share of the run's planned tokens; missing = 1), rung (replicates of one rung share
it; without it, runs of equal flops and params_active do), lr, peak_lr, seed, unit, metric, domain.
Other columns are ignored. A table that cannot mean what it says is refused with an `EvalsError`; what can be
used, but should be known, is a `Notice`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd

FINISHED = 0.999  # progress at which a run's last row is its final loss
UNITS = ("nats/token", "bits/byte", "other")
NUMBERS = ("flops", "loss", "params_active", "tokens", "step", "progress", "lr", "peak_lr", "seed")
COUNTS = ("params_active", "tokens", "step")
ASK_UNIT_BELOW = 1.3  # nats/token: no public text ladder ends below it, bits/byte and tiny tasks do
SHALLOW = 5.0  # tokens per active parameter; public fits drop runs below it (still in their first fall)
RATIO_RISE = 1.25  # of flops / (params_active x tokens) from one rung to a larger one: not by size alone
MOST_NAMES = 6  # of runs, in a notice
UNDECAYED = 0.25  # last lr / peak lr above which a run has not finished its own decay


class AnalysisError(ValueError):
    """The data cannot answer what was asked. `code` is stable; the text has the numbers and what to do."""

    def __init__(self, code: str, text: str):
        super().__init__(text)
        self.code = code


class EvalsError(AnalysisError):
    """A table of evaluations (or of a target) that cannot be used as it is."""


@dataclass(frozen=True)
class Notice:
    """A named warning, listed on a fit or forecast. severity: "note" or "warning"."""

    code: str
    severity: str
    text: str

    def __str__(self) -> str:
        return f"{self.severity} [{self.code}] {self.text}"


@dataclass(frozen=True)
class Evals:
    """A checked table. `rows` is sorted by (flops of the run's last row, run, progress, step), so that the
    order of the input cannot matter; every number is float64, NaN where an optional one is missing. `final`
    holds the last row of each finished run with its `rung`; `unfinished` names the other runs."""

    rows: pd.DataFrame
    final: pd.DataFrame
    unfinished: tuple[str, ...]
    unit: str
    metric: str
    notices: tuple[Notice, ...]


def table(data: Any, need: Iterable[str]) -> pd.DataFrame:
    """`data` (frame, mapping of columns, or rows) as a frame of known columns, numbers as finite float64."""
    try:
        frame = pd.DataFrame(data).reset_index(drop=True)
    except (ValueError, TypeError) as error:
        text = f"{type(data).__name__} is no table ({error}): give a frame, columns or a list of rows"
        raise EvalsError("not_a_table", text) from None
    missing = [name for name in need if name not in frame.columns]
    if missing:
        has = list(map(str, frame.columns))
        hint = "rename or add it"
        if len(has) == 1 and any(mark in has[0] for mark in ";\t|"):
            hint = (
                "it looks as if its columns were separated by something else than commas: save it with commas"
            )
        elif near := [name for name in has if name.strip().lower() == missing[0]]:
            hint = f"rename {near[0]!r}"
        raise EvalsError(
            "missing_column", f"no column {missing[0]!r}: the table has {has} and needs {list(need)}; {hint}"
        )
    if not len(frame):
        raise EvalsError("empty", "the table has no rows: give one row an evaluation")
    known = [c for c in ("run", "rung", "unit", "metric", "domain", *NUMBERS) if c in frame.columns]
    frame = frame[known].copy()
    for name in (c for c in known if c in NUMBERS):
        frame[name] = _numbers(frame, name, required=name in need)
    if "run" in frame:
        if frame["run"].isna().any():
            raise EvalsError(
                "run_missing", f"row {_first(frame['run'].isna())} has no run name: give every row one"
            )
        frame["run"] = frame["run"].astype(str)
    return frame


def _reads_as_number(value: Any) -> bool:
    return isinstance(value, str) and pd.notna(pd.to_numeric(value, errors="coerce"))


def _numbers(frame: pd.DataFrame, name: str, required: bool) -> pd.Series:
    column = frame[name]
    if column.dtype.kind not in "iuf":  # text, or exact ints too long for int64
        wrong = {
            row: value
            for row, value in column.items()
            if not (value is None or value is pd.NA)
            and (isinstance(value, bool) or not isinstance(value, Real))
        }
        if wrong:  # one cell that is no number makes text of its whole column: that cell is the one to name
            row = next(
                (row for row, value in wrong.items() if not _reads_as_number(value)), next(iter(wrong))
            )
            raise EvalsError(
                "not_a_number",
                f"{name} is {wrong[row]!r} ({type(wrong[row]).__name__}) in row {row}{_where(frame, row)}: "
                "convert the column to numbers (pandas.to_numeric; mind decimal commas and separators)",
            )
    column = column.astype(float)
    if name == "progress":
        column = column.fillna(1.0)
    bad = column.abs() == np.inf
    if required:
        bad |= column.isna()
    if bad.any():
        row = _first(bad)
        raise EvalsError(
            "not_finite",
            f"{name} is {column[row]} in row {row}{_where(frame, row)} ({bad.sum()} such rows): a failed "
            "evaluation is left out of the table, a diverged run is left out whole",
        )
    low = column <= 0 if name in ("flops", "loss", "progress", *COUNTS) else column < 0
    if low.any():
        row = _first(low)
        raise EvalsError(
            "not_positive",
            f"{name} is {column[row]:g} in row {row}{_where(frame, row)}: it must be above zero",
        )
    return column


def _first(mask: pd.Series) -> Any:
    return mask.index[mask.to_numpy()][0]


def _where(frame: pd.DataFrame, row: Any) -> str:
    return f" (run {frame['run'][row]!r})" if "run" in frame else ""


def read_evals(data: Any, unit: str | None = None) -> Evals:
    """Check a table of evaluations.

    data: a frame, a mapping of columns or a list of rows; unit: overrides a missing `unit` column.
    Raises EvalsError; `.code` is one of not_a_table, missing_column, empty, run_missing, not_a_number,
    not_finite, not_positive, unknown_unit, mixed_units, unit_needed, mixed_definitions, duplicate_rows,
    progress_percent, progress_missing, not_increasing, mixed_rung.
    """
    rows = table(data, ("run", "flops", "loss"))
    unit = _unit(rows, unit)
    metric = _single(rows, "metric", "loss")
    _single(rows, "domain", "")
    notices: list[Notice] = []
    rows = _without_duplicates(rows, notices)
    _check_progress(rows)
    rows = _sorted(rows)
    _check_runs(rows)
    last = rows.groupby("run", sort=False).tail(1)
    done = last["progress"] >= FINISHED if "progress" in last else pd.Series(True, last.index)
    final = last[done].reset_index(drop=True)
    unfinished = tuple(last["run"][~done])
    if unfinished:
        parts = [f"{r.run} ({r.progress:.1%})" for r in last[~done].itertuples()]
        notices.append(
            Notice(
                "unfinished_runs", "note", f"not finished, so outside the final-loss law: {', '.join(parts)}"
            )
        )
    final["rung"] = _rungs(final)
    _check_definitions(final)
    notices += _undecayed(rows, final) + shallow(final)
    return Evals(rows, final, unfinished, unit, metric, tuple(notices))


def _unit(rows: pd.DataFrame, unit: str | None) -> str:
    said = _single(rows, "unit", None, code="mixed_units")
    if unit is not None and said is not None and unit != said:
        raise EvalsError(
            "mixed_units",
            f"unit={unit!r} was asked for, the table's unit column says {said!r}: make them agree",
        )
    unit = unit or said
    if unit is not None and unit not in UNITS:
        hint = " (nats = bits x 0.6931)" if "bit" in unit and unit != "bits/byte" else ""
        raise EvalsError(
            "unknown_unit",
            f"unit {unit!r} is not one of {', '.join(UNITS)}: convert the losses{hint} or say 'other'",
        )
    lowest = rows["loss"].min()
    if unit is None and lowest < ASK_UNIT_BELOW:
        raise EvalsError(
            "unit_needed",
            f"the lowest loss is {lowest:.4g}, under {ASK_UNIT_BELOW}, and no unit is given: the prior on "
            f"the loss's floor depends on it; pass unit= one of {', '.join(UNITS)}",
        )
    return unit or "nats/token"


def _single(rows: pd.DataFrame, name: str, default: Any, code: str = "mixed_definitions") -> Any:
    """The one value of a column that must not vary; `default` where the column is absent or empty."""
    values = sorted(rows[name].dropna().astype(str).unique()) if name in rows else []
    if len(values) > 1:
        raise EvalsError(
            code,
            f"column {name!r} mixes {', '.join(values[:5])}: one fit is about one {name}; select its rows "
            "first",
        )
    return values[0] if values else default


def _without_duplicates(rows: pd.DataFrame, notices: list[Notice]) -> pd.DataFrame:
    unique = rows.drop_duplicates()
    key = ["run", "step"] if "step" in unique and unique["step"].notna().all() else ["run", "flops"]
    clash = unique.duplicated(key, keep=False)
    if clash.any():
        pair = unique[clash].iloc[:2]
        raise EvalsError(
            "duplicate_rows",
            f"run {pair['run'].iloc[0]!r} has {int(clash.sum())} rows with the same {key[1]} but different "
            f"values (losses {', '.join(f'{x:.6g}' for x in pair['loss'])}): keep one (after a restart, the "
            "newest); seeds are separate runs",
        )
    if dropped := len(rows) - len(unique):
        notices.append(Notice("repeated_rows", "note", f"{dropped} rows were exact repeats and were dropped"))
    return unique


def _check_progress(rows: pd.DataFrame) -> None:
    if "progress" in rows:
        top = rows["progress"].max()
        if top > 1.001:
            hint = (
                "it looks like percent: divide by 100" if top > 1.5 else "use spent tokens / planned tokens"
            )
            raise EvalsError(
                "progress_percent",
                f"progress reaches {top:g}; it is the share of planned tokens, at most 1: {hint}",
            )
    else:
        counts = rows["run"].value_counts()
        if counts.iloc[0] > 1:
            raise EvalsError(
                "progress_missing",
                f"run {counts.index[0]!r} has {counts.iloc[0]} rows and there is no progress column: add "
                "progress = spent / planned tokens, or keep each run's last row",
            )


def _sorted(rows: pd.DataFrame) -> pd.DataFrame:
    size = rows.groupby("run")["flops"].transform("max")
    order = [rows["flops"], rows["run"], size]  # lexsort: the last key is the first to count
    return rows.iloc[np.lexsort(order)].reset_index(drop=True)


def _check_runs(rows: pd.DataFrame) -> None:
    for run, part in rows.groupby("run", sort=False):
        for name in ("progress", "tokens", "step"):
            if name in part and len(part) > 1 and (np.diff(part[name].dropna()) <= 0).any():
                raise EvalsError(
                    "not_increasing",
                    f"run {run!r}: {name} does not grow with flops; flops, tokens, step and progress are "
                    "all 'spent so far', and two runs need two names",
                )
        if "params_active" in part and part["params_active"].nunique() > 1:
            low, high = part["params_active"].min(), part["params_active"].max()
            raise EvalsError(
                "mixed_definitions",
                f"run {run!r} has params_active from {low:.6g} to {high:.6g}: one run, one size",
            )


def _rungs(final: pd.DataFrame) -> list[str]:
    """Each finished run's rung: its `rung`, else the first run with the same flops and params_active."""
    if "rung" in final and final["rung"].notna().all():
        for rung, part in final.groupby("rung"):
            if part["flops"].max() > 1.01 * part["flops"].min():
                raise EvalsError(
                    "mixed_rung",
                    f"rung {rung!r} has runs of {part['flops'].min():.4g} to {part['flops'].max():.4g} "
                    "FLOPs: replicates differ by seed only; give other runs another rung name",
                )
        return [str(name) for name in final["rung"]]
    seen: dict[tuple[str, ...], str] = {}
    keys = ["flops", *(["params_active"] if "params_active" in final else [])]
    return [seen.setdefault(tuple(f"{r[k]:.9e}" for k in keys), str(r["run"])) for _, r in final.iterrows()]


def _check_definitions(final: pd.DataFrame) -> None:
    """In a ladder whose tokens grow with its FLOPs, FLOPs per parameter and token fall with size (attention
    and head weigh less) or stay; a rise means rows counted in two ways (embeddings or head in or out)."""
    if not {"params_active", "tokens"} <= set(final.columns):
        return
    use = final.dropna(subset=["params_active", "tokens"]).sort_values("flops", kind="stable")
    if len(use) < 2 or (np.diff(use["tokens"]) < 0).any():
        return
    ratio = (use["flops"] / (use["params_active"] * use["tokens"])).to_numpy()
    rise = ratio[1:] / np.minimum.accumulate(ratio)[:-1]
    if rise.max() > RATIO_RISE:
        k = int(rise.argmax()) + 1
        raise EvalsError(
            "mixed_definitions",
            f"flops / (params_active x tokens) is {ratio[:k].min():.3g} among smaller runs and "
            f"{ratio[k]:.3g} for {use['run'].iloc[k]!r}: parameters, tokens or FLOPs are counted in two "
            "ways (embeddings, output head); use one",
        )


def _undecayed(rows: pd.DataFrame, final: pd.DataFrame) -> list[Notice]:
    if "lr" not in rows:
        return []
    known = rows[[c for c in ("lr", "peak_lr") if c in rows]].max(axis=1)
    peak = known.groupby(rows["run"]).max()
    share = final["lr"].to_numpy() / peak.reindex(final["run"]).to_numpy()
    high = share > UNDECAYED
    if not high.any():
        return []
    names, several = named(final["run"][high]), int(high.sum()) > 1
    text = (
        f"{names} {'end at up to' if several else 'ends at'} {share[high].max():.0%} of "
        f"{'their' if several else 'its'} peak learning rate: its decay is incomplete, its loss is high; "
        "finish it, or leave the run out"
    )
    return [Notice("decay_incomplete", "warning", text)]


def shallow(final: pd.DataFrame) -> list[Notice]:
    """The warning about runs that saw too few tokens, where there are any."""
    if not {"params_active", "tokens"} <= set(final.columns):
        return []
    depth = (final["tokens"] / final["params_active"]).to_numpy()
    low = depth < SHALLOW
    if not low.any():
        return []
    text = (
        f"{named(final['run'][low])} saw {depth[low].min():.2g} tokens per active parameter (under "
        f"{SHALLOW:g}): too shallow for a scaling law; train them longer, or leave them out"
    )
    return [Notice("shallow_rung", "warning", text)]


def named(names: Iterable[Any]) -> str:
    """The first few names, and how many more."""
    names = [str(name) for name in names]
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def as_rows(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Plain rows for JSON: NaN becomes absent, numbers are floats."""
    return [{str(k): v for k, v in row.items() if not pd.isna(v)} for row in frame.to_dict("records")]
