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
LAWS = {law.name: law for law in (COMPUTE,)}


def choose(name: str, final: pd.DataFrame) -> tuple[Law, str]:
    """The law asked for, or for "auto" the one that these finished runs support, and why.

    final: a row a run, with rung, flops and, where known, params_active and tokens; no loss is read.

    Raises AnalysisError: unknown_law, one_run_a_budget (an isoFLOP grid), joint_law_missing.
    """
    if name not in ("auto", *LAWS):
        raise AnalysisError("unknown_law", f"law {name!r} is not one of auto, {', '.join(LAWS)}")
    grid = final.groupby("flops")["rung"].nunique()
    if len(grid) and grid.max() > 1:
        raise AnalysisError(
            "one_run_a_budget",
            f"{grid.max()} different rungs spent {grid.idxmax():.4g} FLOPs: a grid of sizes per budget has "
            "to be reduced to its best size per budget first; keep one run a budget (replicates of one "
            "rung share its `rung` name)",
        )
    if name != "auto":
        return LAWS[name], "asked for"
    sized = {"params_active", "tokens"} <= set(final.columns) and final[
        ["params_active", "tokens"]
    ].notna().all(axis=None)
    if not sized:
        return COMPUTE, "no params_active and tokens for every run, so tokens per parameter were not checked"
    ratio = final["tokens"] / final["params_active"]
    spread = float(ratio.max() / ratio.min())
    if spread > CONSTANT_RATIO:
        raise AnalysisError(
            "joint_law_missing",
            f"tokens per active parameter run from {ratio.min():.3g} to {ratio.max():.3g} ({spread - 1:.0%} "
            f"apart; the compute law allows {CONSTANT_RATIO - 1:.0%}), which needs the joint law in "
            "parameters and tokens, and this version has only the compute law; give every run the same ratio "
            "(steps * batch_tokens in proportion to its active parameters), or call analysis.fit with "
            "law='compute' if each run is the best of its budget",
        )
    return COMPUTE, f"tokens per active parameter are constant within {spread - 1:.1%}"
