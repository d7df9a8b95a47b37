"""What a band is made of and what moves it: leave-one-rung-out, influence, rolling origin, wider priors.

Each refits by the same path as `fit`, on fewer rungs or with another prior.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis.posterior import Posterior, solve
from analysis.priors import widened

if TYPE_CHECKING:
    from analysis.fitting import ScalingFit


@dataclass(frozen=True)
class Report:
    """About the prediction at `flops`. `half_width` and `wide_prior_half_width` are relative to the median.

    shares: of the predictive variance, noise of the new run / form (discrepancy) / prior (the rest:
    coefficients and exponents, which few rungs leave to the prior). influence: rung -> relative move of the
    median when it is left out. rolling: rungs, E (posterior mean) and median from the k smallest rungs, k = 2
    ... all.
    """

    flops: float
    times: float
    median: float
    half_width: float
    shares: Mapping[str, float]
    left_out: pd.DataFrame
    influence: Mapping[str, float]
    rolling: pd.DataFrame
    wide_prior_median: float
    wide_prior_half_width: float

    def summary(self) -> str:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in self.shares.items())
        influence = ", ".join(f"{rung} {move:+.2%}" for rung, move in self.influence.items())
        drift = ", ".join(f"{row.rungs}: {row.E:.4g}" for row in self.rolling.itertuples())
        return (
            f"{self.times:.3g}x beyond the top rung: {self.median:.4g} +- {self.half_width:.2%}; variance: "
            f"{shares}\n"
            f"median without a rung: {influence}\n"
            f"E from the k smallest rungs: {drift}\n"
            f"prior twice as wide: {self.wide_prior_median:.4g} +- {self.wide_prior_half_width:.2%}"
        )


def leave_one_rung_out(
    posterior: Posterior, final: pd.DataFrame, prior: Mapping[str, Any], unit: str
) -> pd.DataFrame:
    """Predict each rung from the others: rung, flops, loss (mean over its replicates), median, z.

    z is (loss - predictive mean) / predictive sd of one run. Needs at least 3 rungs to mean anything.
    """
    rows = []
    for rung, part in final.groupby("rung", sort=False):
        rest = final[final["rung"] != rung].reset_index(drop=True)
        mixture = solve(posterior.law, rest, prior, unit).predictive(part.iloc[:1])[0]
        loss = float(part["loss"].mean())
        z = (loss - mixture.average) / np.sqrt(mixture.variance)
        rows.append((rung, float(part["flops"].iloc[0]), loss, mixture.quantile(0.5), float(z)))
    return pd.DataFrame(rows, columns=["rung", "flops", "loss", "median", "z"])


def report(fit: "ScalingFit", target: pd.DataFrame, level: float) -> Report:
    """See Report. target: one row with the law's columns. Costs about two refits a rung."""
    final, law = fit.final, fit.posterior.law
    flops = float(target["flops"].iloc[0])
    tail = (1 - level) / 2

    def median_of(posterior: Posterior) -> float:
        return posterior.predictive(target)[0].quantile(0.5)

    def band(posterior: Posterior) -> tuple[float, float]:
        mixture = posterior.predictive(target)[0]
        middle = mixture.quantile(0.5)
        return middle, (mixture.quantile(1 - tail) - mixture.quantile(tail)) / 2 / middle

    median, half = band(fit.posterior)
    names = list(dict.fromkeys(final["rung"]))
    influence, rolling = {}, []
    for k, rung in enumerate(names, start=1):
        rest = final[final["rung"] != rung].reset_index(drop=True)
        influence[rung] = median_of(solve(law, rest, fit.prior, fit.unit)) / median - 1
        if k >= 2:
            first = solve(
                law, final[final["rung"].isin(names[:k])].reset_index(drop=True), fit.prior, fit.unit
            )
            rolling.append((k, first.coefficient("E").average, median_of(first)))
    left_out = fit.left_out
    if left_out is None:
        left_out = leave_one_rung_out(fit.posterior, final, fit.prior, fit.unit)
    wide_median, wide_half = band(solve(law, final, widened(fit.prior), fit.unit))
    return Report(
        flops=flops,
        times=flops / fit.top_flops,
        median=median,
        half_width=half,
        shares=fit.posterior.variance_shares(target),
        left_out=left_out,
        influence=influence,
        rolling=pd.DataFrame(rolling, columns=["rungs", "E", "median"]),
        wide_prior_median=wide_median,
        wide_prior_half_width=wide_half,
    )
