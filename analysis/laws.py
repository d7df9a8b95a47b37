"""Laws of the final loss: names, equation and terms. A law is linear in its coefficients once its exponents
are fixed; posterior.py does the rest. A new law is one more `Law`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.frame import AnalysisError

CONSTANT_RATIO = 1.10  # largest over smallest tokens per active parameter that still counts as constant


@dataclass(frozen=True)
class Law:
    """`coefficients` (P of them, all positive) multiply `terms`; `exponents` live on a grid.

    columns: what a row must have. reference(final) -> the sizes the terms are relative to.
    terms(theta, rows, reference): theta (G, len(exponents)), n rows -> (G, n, P), dimensionless.
    """

    name: str
    equation: str
    columns: tuple[str, ...]
    coefficients: tuple[str, ...]
    exponents: tuple[str, ...]
    reference: Callable[[pd.DataFrame], dict[str, float]]
    terms: Callable[[np.ndarray, pd.DataFrame, Mapping[str, float]], np.ndarray]


def decades(rows: pd.DataFrame, reference: Mapping[str, float]) -> np.ndarray:
    """u = log10(C / C_min): the coordinate along which every law's discrepancy grows. (n,)"""
    return np.log10(rows["flops"].to_numpy(float) / reference["flops"])


def _compute_reference(final: pd.DataFrame) -> dict[str, float]:
    return {"flops": float(final["flops"].min())}


def _compute_terms(theta: np.ndarray, rows: pd.DataFrame, reference: Mapping[str, float]) -> np.ndarray:
    fall = 10.0 ** (-theta * decades(rows, reference))  # (G, n)
    return np.stack([np.ones_like(fall), fall], axis=-1)


COMPUTE = Law(
    name="compute",
    equation="L = E + K (C / C_min)^-g",
    columns=("flops",),
    coefficients=("E", "K"),
    exponents=("g",),
    reference=_compute_reference,
    terms=_compute_terms,
)


def _joint_reference(final: pd.DataFrame) -> dict[str, float]:
    return {name: float(final[name].min()) for name in ("flops", "params_active", "tokens")}


def _joint_terms(theta: np.ndarray, rows: pd.DataFrame, reference: Mapping[str, float]) -> np.ndarray:
    n, d = (
        np.log(rows[name].to_numpy(float) / reference[name]) for name in ("params_active", "tokens")
    )  # (n,)
    by_size, by_data = np.exp(-theta[:, :1] * n), np.exp(-theta[:, 1:] * d)  # (G, n)
    return np.stack([np.ones_like(by_size), by_size, by_data], axis=-1)


JOINT = Law(
    name="joint",
    equation="L = E + A (N / N_min)^-a + B (D / D_min)^-b",
    columns=("flops", "params_active", "tokens"),
    coefficients=("E", "A", "B"),
    exponents=("a", "b"),
    reference=_joint_reference,
    terms=_joint_terms,
)
LAWS = {law.name: law for law in (COMPUTE, JOINT)}


def choose(name: str, final: pd.DataFrame) -> tuple[Law, str]:
    """The law asked for, or for "auto" the one that these finished runs support, and why.

    final: a row a run, one run or replicates of one rung a budget, with flops and, where known, params_active
    and tokens; no loss is read. Raises AnalysisError: unknown_law, one_run_a_budget.
    """
    if name not in ("auto", *LAWS):
        raise AnalysisError("unknown_law", f"law {name!r} is not one of auto, {', '.join(LAWS)}")
    sized = {"params_active", "tokens"} <= set(final.columns) and final[
        ["params_active", "tokens"]
    ].notna().all(axis=None)
    if name == "joint" and not sized:
        raise AnalysisError(
            "missing_column", "the joint law needs params_active and tokens of every finished run: add them"
        )
    if name != "joint" and not (name == "auto" and sized):
        _refuse_a_grid(final)
    if name != "auto":
        return LAWS[name], "asked for"
    if not sized:
        return COMPUTE, "no params_active and tokens for every run, so tokens per parameter were not checked"
    ratio = final["tokens"] / final["params_active"]
    spread = float(ratio.max() / ratio.min())
    if spread > CONSTANT_RATIO:
        return JOINT, (
            f"tokens per active parameter run from {ratio.min():.3g} to {ratio.max():.3g} ({spread - 1:.0%} "
            f"apart; the compute law allows {CONSTANT_RATIO - 1:.0%})"
        )
    return COMPUTE, f"tokens per active parameter are constant within {spread - 1:.1%}"


def _refuse_a_grid(final: pd.DataFrame) -> None:
    grid = final.groupby("flops")["rung"].nunique()
    if len(grid) and grid.max() > 1:
        raise AnalysisError(
            "one_run_a_budget",
            f"{grid.max()} different rungs spent {grid.idxmax():.4g} FLOPs: the compute law is about the "
            "best run of each budget; keep one, call analysis.isoflop_minima first, or give params_active "
            "and tokens for the joint law (replicates of one rung share its `rung` name)",
        )
