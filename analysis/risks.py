"""The ladder's second job: what besides the loss may go wrong at the target, read from the rungs' dynamics.

Each quantity's end value is followed over the rungs in log C and carried to the target's size, with a
band; where the band reaches the limit the verdict says so. And each quantity's ordinary range over
progress, so that a hump that every rung has is not an alarm.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from analysis.frame import AnalysisError, EvalsError, table


@dataclass(frozen=True)
class Limit:
    """value: what must not be passed, from above ("high") or below ("low"); log: followed in logs."""

    value: float
    side: str
    log: bool
    source: str


LIMITS: Mapping[str, Limit] = {
    "grad_norm": Limit(4.0, "high", True, "the alarm of the public 535B run"),
    "drop_fraction": Limit(0.07, "high", False, "the alarm of the public 535B run"),
    "router_entropy_share": Limit(0.9948, "low", False, "of ln(experts): 5.92 nats at 384 experts"),
}
TAIL = 0.8  # progress from which a run's rows are its end value
CELLS = 10  # of progress, for the ranges


def risks(
    rows: Any, flops: float, limits: Mapping[str, Limit] | None = None, level: float = 0.9
) -> pd.DataFrame:
    """A row a quantity: rungs, slope (a decade of FLOPs), value at `flops` with lo and hi (prediction
    interval of a straight line in log C, Student's t), limit, side, source, verdict: "clear", "may pass",
    "passes" or "too few rungs" (under three). rows: run, flops (of the whole run), progress
    and the quantities.

    Raises EvalsError, AnalysisError(nothing_to_judge).
    """
    limits = limits or LIMITS
    frame, names = _frame(rows, limits)
    out = []
    for name in names:
        limit = limits[name]
        last = frame[(frame["progress"] >= TAIL) & frame[name].notna()]
        if limit.log:
            last = last[last[name] > 0]
        ends = last.groupby("run").agg(flops=("flops", "max"), value=(name, "median"))
        out.append({"quantity": name, **_judge(ends, flops, limit, level), "source": limit.source})
    return pd.DataFrame(out)


def _judge(ends: pd.DataFrame, flops: float, limit: Limit, level: float) -> dict[str, Any]:
    base = {"rungs": len(ends), "limit": limit.value, "side": limit.side}
    missing = dict.fromkeys(("slope", "value", "lo", "hi"), np.nan)
    if len(ends) < 3:
        return base | missing | {"verdict": "too few rungs"}
    u = np.log10(ends["flops"].to_numpy() / flops)
    y = ends["value"].to_numpy(float)
    y = np.log(y) if limit.log else y
    X = np.stack([np.ones_like(u), u], axis=1)
    beta = np.linalg.lstsq(X, y, rcond=None)[0]
    free = len(u) - 2
    variance = np.sum((y - X @ beta) ** 2) / free
    spread = np.linalg.pinv(X.T @ X)[0, 0]  # the target is at u = 0
    half = student.ppf((1 + level) / 2, free) * np.sqrt(variance * (1 + spread))
    value, lo, hi = (np.exp(v) if limit.log else v for v in (beta[0], beta[0] - half, beta[0] + half))
    over = [v > limit.value if limit.side == "high" else v < limit.value for v in (value, lo, hi)]
    verdict = "passes" if over[0] else "may pass" if any(over) else "clear"
    numbers = {"slope": float(beta[1]), "value": float(value), "lo": float(lo), "hi": float(hi)}
    return base | numbers | {"verdict": verdict}


def ranges(
    rows: Any, flops: float, limits: Mapping[str, Limit] | None = None, width: float = 4.0
) -> pd.DataFrame:
    """The ordinary range of each quantity over progress at a run of `flops`: quantity, progress (upper end of
    a tenth), middle, lo, hi: the rungs' medians carried on in log C, and `width` scaled MADs of all rows
    about their rung's median. Raises EvalsError, AnalysisError(nothing_to_judge)."""
    frame, names = _frame(rows, limits or LIMITS)
    cell = np.ceil(frame["progress"].clip(1e-9, 1) * CELLS) / CELLS
    out = []
    for name in names:
        for progress, part in frame.assign(cell=cell).dropna(subset=[name]).groupby("cell"):
            middle = part.groupby("run").agg(flops=("flops", "max"), value=(name, "median"))
            left = part[name] - part["run"].map(middle["value"])
            scale = 1.4826 * float(left.abs().median())
            at = float(middle["value"].median())
            if len(middle) >= 3:
                line = np.polyfit(np.log10(middle["flops"] / flops), middle["value"], 1)
                at = float(line[1])
            out.append((name, progress, at, at - width * scale, at + width * scale))
    return pd.DataFrame(out, columns=["quantity", "progress", "middle", "lo", "hi"])


def _frame(rows: Any, limits: Mapping[str, Limit]) -> tuple[pd.DataFrame, list[str]]:
    """run, flops, progress and the known quantities, as numbers."""
    whole = pd.DataFrame(rows).reset_index(drop=True)
    frame = table(whole, ("run", "flops", "progress"))[["run", "flops", "progress"]]
    names = [name for name in limits if name in whole]
    if not names:
        raise AnalysisError(
            "nothing_to_judge",
            f"none of {', '.join(limits)} is a column of the rungs' rows: add what was logged",
        )
    for name in names:
        try:
            frame[name] = pd.to_numeric(whole[name]).astype(float)
        except (ValueError, TypeError) as error:
            raise EvalsError("not_a_number", f"{name}: {error}: convert the column to numbers") from None
    return frame, names
