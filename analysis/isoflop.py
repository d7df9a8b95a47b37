"""An isoFLOP grid, several sizes on each of several budgets, reduced to the best size of each budget.

Hoffmann et al. 2022, approach 2: on one budget the loss is about a parabola in log N around its minimum. The
minima are runs of a compute law, although their tokens per parameter may drift.
"""

import warnings
from typing import Any

import numpy as np
import pandas as pd

from analysis.frame import AnalysisError, EvalsError, Notice, read_evals

SAME = 1.01  # largest over smallest FLOPs of one budget
NEAR = 0.6  # decades of N around the best size that the parabola is fitted on
LEAST = 4  # sizes of a budget
GRID_SHARE = 0.75  # of the runs, on budgets of LEAST sizes, from which a table is a grid


def budgets(final: pd.DataFrame) -> pd.Series:
    """The number of each run's budget, smallest first: runs within 1 % in FLOPs share one. (n,)"""
    flops = np.sort(final["flops"].to_numpy(float))
    starts = [flops[0]]
    for value in flops:
        if value > SAME * starts[-1]:
            starts.append(value)
    return pd.Series(np.searchsorted(starts, final["flops"], side="right") - 1, final.index)


def is_grid(final: pd.DataFrame) -> bool:
    """True where most runs stand on budgets of at least four sizes, and there are two such budgets."""
    if "params_active" not in final or final["params_active"].isna().any() or not len(final):
        return False
    sizes = final.groupby(budgets(final))["params_active"].transform("nunique")
    full = sizes >= LEAST
    return bool(full.mean() >= GRID_SHARE and budgets(final)[full].nunique() >= 2)


def isoflop_minima(evals: Any, unit: str | None = None) -> pd.DataFrame:
    """The best size of each budget, as an evals table: run, flops, loss, params_active, tokens (where given),
    unit, and sizes (how many the parabola was fitted on).

    evals: finished runs with run, flops, loss, params_active. A budget without a minimum inside its sizes is
    left out with a Python warning. Raises EvalsError, AnalysisError(no_minima).
    """
    checked = read_evals(evals, unit)
    found, notices = reduce(checked.final)
    for notice in notices:
        warnings.warn(notice.text, stacklevel=2)
    return found.assign(unit=checked.unit)


def reduce(final: pd.DataFrame) -> tuple[pd.DataFrame, list[Notice]]:
    """`final` (a row a finished run) -> a row a budget, and what was left out.

    Raises EvalsError(missing_column), AnalysisError(no_minima).
    """
    if "params_active" not in final:
        text = "no column 'params_active': the sizes of an isoFLOP grid are what its minima are taken over"
        raise EvalsError("missing_column", text)
    kept, lost = [], []
    for _, part in final.groupby(budgets(final)):
        row, why = _minimum(part)
        if row is None:
            lost.append(f"{part['flops'].iloc[0]:.3g} FLOPs ({why})")
        else:
            kept.append(row)
    if len(kept) < 2:
        raise AnalysisError(
            "no_minima",
            f"{len(kept)} budgets have a best size inside their sizes, and a law needs 2; left out: "
            f"{'; '.join(lost)}; add sizes on both sides of the best",
        )
    text = f"budgets left out of the isoFLOP minima: {'; '.join(lost)}"
    return pd.DataFrame(kept), [Notice("budget_left_out", "warning", text)] if lost else []


def _minimum(part: pd.DataFrame) -> tuple[dict[str, Any] | None, str]:
    size, loss = np.log10(part["params_active"].to_numpy(float)), part["loss"].to_numpy(float)
    from_best = size - size[loss.argmin()]
    near = np.abs(from_best) <= NEAR
    x, y = from_best[near], loss[near]
    if len(np.unique(x)) < LEAST:
        return None, f"{len(np.unique(x))} sizes near the best, {LEAST} are needed"
    bend, slope, _ = curve = np.polyfit(x, y, 2)
    if bend <= 0 or not x.min() <= -slope / (2 * bend) <= x.max():
        return None, "its best size is at the edge of its sizes"
    best = -slope / (2 * bend)
    flops = float(part["flops"].iloc[0])
    name = f"C={flops:.4g}"
    row = {"run": name, "rung": name, "flops": flops, "loss": float(np.polyval(curve, best))}
    row["params_active"] = float(10 ** (best + size[loss.argmin()]))
    if "tokens" in part and part["tokens"].notna().all():
        line = np.polyfit(x, np.log10(part["tokens"].to_numpy(float)[near]), 1)
        row["tokens"] = float(10 ** np.polyval(line, best))
    return row | {"sizes": len(x)}, ""
