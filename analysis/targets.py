"""The run that is to be forecast: its size, and the points of progress at which it will be evaluated."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.frame import FINISHED, EvalsError, table
from ladder.accounting import eval_points
from ladder.spec import RunSpec


@dataclass(frozen=True)
class Target:
    """flops, steps, tokens: of the whole run, params_active, peak_lr (NaN where
    unknown). points: progress (increasing, ending at 1),
    step, tokens of its evaluations; None when the target is only a size."""

    run: str
    flops: float
    steps: float
    tokens: float
    params_active: float
    peak_lr: float
    points: pd.DataFrame | None

    def size(self) -> pd.DataFrame:
        """The whole run as one row for a law: flops and, where known, params_active and tokens."""
        row = {"flops": self.flops, "params_active": self.params_active, "tokens": self.tokens}
        return pd.DataFrame({name: [value] for name, value in row.items() if np.isfinite(value)})

    def rows(self, points: pd.DataFrame) -> pd.DataFrame:
        """Points with run, flops and, where known, params_active and peak_lr beside them."""
        sizes = {"params_active": self.params_active, "peak_lr": self.peak_lr}
        known = {name: value for name, value in sizes.items() if np.isfinite(value)}
        return points.assign(run=self.run, flops=points["progress"] * self.flops, **known)

    def at(self, progress: np.ndarray) -> pd.DataFrame:
        """Points at other progress: step and tokens in proportion."""
        return pd.DataFrame(
            {"progress": progress, "step": progress * self.steps, "tokens": progress * self.tokens}
        )


def read_target(target: Any, unit: str) -> Target:
    """A ladder.RunSpec, or a table of one run (run, flops and, where known, step, tokens, progress).

    flops, tokens and step are spent so far; one row of progress 1 (or none given) is only a size.
    Raises EvalsError: mixed_units, one_target, progress_missing, progress_percent, and those of a table.
    """
    if isinstance(target, RunSpec):
        rows = table(eval_points(target), ("run", "flops"))
        said = {target.evaluation.unit}
    else:
        rows = table(target, ("run", "flops"))
        said = set(rows["unit"].dropna()) if "unit" in rows else set()
    if said - {unit}:
        raise EvalsError(
            "mixed_units", f"the target is measured in {', '.join(sorted(said))}, the rungs in {unit}"
        )
    names = sorted(set(rows["run"]))
    if len(names) > 1:
        raise EvalsError("one_target", f"the target table has runs {names}: forecast one run at a time")
    if "progress" not in rows:
        if len(rows) > 1:
            raise EvalsError("progress_missing", f"the target has {len(rows)} rows and no progress: add it")
        rows["progress"] = 1.0
    for name in ("step", "tokens"):
        if name not in rows:
            rows[name] = np.nan
    rows = rows.sort_values("progress").drop_duplicates("progress").reset_index(drop=True)
    last = rows.iloc[-1]
    end = float(last["progress"])
    if end > 1.001:
        raise EvalsError("progress_percent", f"the target's progress reaches {end:g}: at most 1 (percent?)")
    end = 1.0 if end >= FINISHED else end
    flops, steps, tokens = (float(last[name]) / end for name in ("flops", "step", "tokens"))
    more = [float(last[name]) if name in rows else np.nan for name in ("params_active", "peak_lr")]
    whole = Target(names[0], flops, np.round(steps), np.round(tokens), *more, points=None)
    if len(rows) == 1 and end == 1:
        return whole
    if end == 1:
        rows = rows.iloc[:-1]
    points = pd.concat([rows[["progress", "step", "tokens"]], whole.at(np.ones(1))], ignore_index=True)
    return replace(whole, points=points)
