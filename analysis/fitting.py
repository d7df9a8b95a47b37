"""fit: finished runs in, a scaling law with a prediction interval out, or a refusal that says why."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis import diagnostics, isoflop
from analysis.frame import AnalysisError, Evals, EvalsError, Notice, read_evals, shallow, table
from analysis.laws import choose
from analysis.posterior import Mixture, Posterior, solve
from analysis.priors import load_prior

TRANSFER = "given that the recipe transfers"
FARTHEST = 500.0  # times the largest FLOPs used: beyond, a point only
EAGER_LEAVE_OUT = 24  # rungs up to which fit itself leaves each one out
NOISY = 0.0065  # posterior s above which a ladder looks untuned (chosen on public untuned isoFLOP sets)
OUTLIER = 3.0  # |leave-one-rung-out z|
LEAST_TO_JUDGE = 4  # rungs: with fewer, those that are left say too little about the one left out
BITS = float(np.log(2))


@dataclass(frozen=True)
class ScalingFit:
    """A fitted law. `final`: the finished runs it used; `evals`: the whole checked table; `warnings`: notices
    (code, severity, text); `grade`: "strong" or "weak"; asked: the law asked for."""

    evals: Evals
    prior: Mapping[str, Any]
    posterior: Posterior
    asked: str
    why: str
    left_out: pd.DataFrame | None
    grade: str
    warnings: tuple[Notice, ...]

    @property
    def law(self) -> str:
        return self.posterior.law.name

    @property
    def unit(self) -> str:
        return self.evals.unit

    @property
    def metric(self) -> str:
        return self.evals.metric

    @property
    def final(self) -> pd.DataFrame:
        return self.evals.final

    @property
    def unfinished(self) -> tuple[str, ...]:
        return self.evals.unfinished

    @property
    def top_flops(self) -> float:
        """FLOPs of the largest finished run: what extrapolation ratios are relative to."""
        return float(self.final["flops"].max())

    def predictive(self, at: Any) -> list[Mixture]:
        """The full predictive distribution of a new finished run at each row of `at` (a finite mixture)."""
        return self.posterior.predictive(_targets(at, self))

    def predict(self, at: Any, level: float = 0.9) -> pd.DataFrame:
        """Prediction interval of the final loss of a new run at each row of `at`, given that the recipe
        transfers.

        at: table with `flops` of whole runs (and the law's other columns); level: probability in (0, 1).
        Returns the rows of `at` in order plus median, lo, hi (loss units, pointwise), times (FLOPs over the
        largest finished run's) and mark: "", "below the rungs", or "point only" beyond 500x, where lo and hi
        are NaN.
        """
        if not 0 < level < 1:
            raise AnalysisError(
                "bad_level", f"level={level!r} is not a probability between 0 and 1, such as 0.9"
            )
        rows = _targets(at, self)
        out = pd.DataFrame(at).copy()
        tail = (1 - level) / 2
        found = self.posterior.predictive(rows)
        times = rows["flops"].to_numpy() / self.top_flops
        far = times > FARTHEST
        out["median"] = [mixture.quantile(0.5) for mixture in found]
        for name, q in (("lo", tail), ("hi", 1 - tail)):
            out[name] = [
                np.nan if skip else mixture.quantile(q) for mixture, skip in zip(found, far, strict=True)
            ]
        out["times"] = times
        low = rows["flops"].to_numpy() < self.final["flops"].min()
        out["mark"] = np.where(far, "point only", np.where(low, "below the rungs", ""))
        return out

    def frame(self) -> pd.DataFrame:
        """A row a fitted run: run, rung, flops, loss, trend (posterior mean law), residual (relative), z (the
        rung left out; NaN where not computed)."""
        out = self.final[["run", "rung", "flops", "loss"]].copy()
        out["trend"] = self.posterior.trend(self.final)
        out["residual"] = (out["loss"] / out["trend"] - 1).round(12)  # differences: the last digits are noise
        scores = (
            {} if self.left_out is None else dict(zip(self.left_out["rung"], self.left_out["z"], strict=True))
        )
        out["z"] = out["rung"].map(scores).astype(float).round(9)
        return out

    def report(self, at: Any = None, level: float = 0.9) -> "diagnostics.Report":
        """What the band at a run is made of and moved by. at: FLOPs of the run, a one-row table of it, or
        None: 10x the largest finished run, with its tokens per parameter."""
        row = (
            self.scaled(10.0) if at is None else {"flops": [float(at)]} if isinstance(at, int | float) else at
        )
        return diagnostics.report(self, _targets(row, self).iloc[:1], level)

    def scaled(self, times: float) -> pd.DataFrame:
        """One row: `times` the FLOPs of the largest finished run, parameters and tokens in proportion."""
        top = self.final.iloc[[-1]]
        root = {"flops": times, "params_active": times**0.5, "tokens": times**0.5}
        return pd.DataFrame(
            {name: top[name].to_numpy(float) * root[name] for name in self.posterior.law.columns}
        )

    def parameters(self) -> dict[str, tuple[float, float, float]]:
        """E (loss units) and each exponent of the law: the 5 %, 50 % and 95 % points of their posteriors."""
        E = self.posterior.coefficient("E")
        found = {"E": (E.quantile(0.05), E.quantile(0.5), E.quantile(0.95))}
        for name in self.posterior.law.exponents:
            grid, weight = self.posterior.exponent(name)
            low, mid, high = np.interp([0.05, 0.5, 0.95], np.cumsum(weight) - weight / 2, grid)
            found[name] = float(low), float(mid), float(high)
        return found

    def summary(self) -> str:
        """The fit in words: law, runs, parameters with 90 % intervals, notices."""
        lines = [
            f"{self.posterior.law.equation}   ({self.law} law: {self.why}; prior {self.prior['version']}; "
            f"{TRANSFER})",
            f"{len(self.final)} finished runs on {self.final['rung'].nunique()} rungs, "
            f"{self.final['flops'].min():.3g} to {self.top_flops:.3g} FLOPs, {self.metric} "
            f"({_told(self.unit)}); grade {self.grade}",
            "   ".join(_interval(name, *points) for name, points in self.parameters().items()),
        ]
        lines[-1] += f"   noise {self.posterior.noise:.2%} a run"
        if self.left_out is None:
            lines.append(
                f"leave-one-rung-out was not run for {self.final['rung'].nunique()} rungs: see .report()"
            )
        return "\n".join(lines + [str(notice) for notice in self.warnings])


def fit(
    evals: Any, prior: Mapping[str, Any] | None = None, law: str = "auto", unit: str | None = None
) -> ScalingFit:
    """Fit a scaling law of the final loss to a table of evaluations.

    evals: columns run, flops, loss, and any of params_active, tokens, step, progress, rung, lr, peak_lr,
    unit, metric (see analysis.frame). Only finished runs (last progress >= .999) enter. prior: changes to P0
    by entry, e.g. {"E": {"mean": 1.5, "sd": .25}}. unit: "nats/token", "bits/byte" or "other". law:
    "compute", "joint" or "auto": an isoFLOP grid is reduced to its minima for the compute law; else the
    compute law where tokens per active parameter are constant within 10 % (or unknown), the joint law where
    not.
    Raises EvalsError (table), AnalysisError: too_few_runs, span_too_small, one_run_a_budget, no_minima,
    bad_prior, no_positive_law. The laws, priors and rules: docs/forecasts.md.
    """
    checked, reduced = read_evals(evals, unit), ""
    if law == "auto" and isoflop.is_grid(checked.final):
        checked, reduced = _minima(checked)
    grade, notices = _grade(checked)
    chosen, why = choose("compute" if reduced else law, checked.final)
    why = reduced or why
    used = load_prior(prior)
    posterior = solve(chosen, checked.final, used, checked.unit)
    left_out = None
    if 3 <= checked.final["rung"].nunique() <= EAGER_LEAVE_OUT:
        left_out = diagnostics.leave_one_rung_out(posterior, checked.final, used, checked.unit)
        notices += _outliers(left_out)
    if posterior.noise > NOISY:
        text = (
            f"runs scatter by {posterior.noise:.2%} around the law (over {NOISY:.2%}): the ladder looks "
            "untuned, or its rungs are too small; the band is wide for that reason; replicate the cheap "
            "rungs or tune each size"
        )
        notices.append(Notice("noisy_ladder", "warning", text))
    return ScalingFit(checked, used, posterior, law, why, left_out, grade, (*checked.notices, *notices))


def _minima(checked: Evals) -> tuple[Evals, str]:
    """The table with its finished runs reduced to the best size of each budget, and why."""
    final, notices = isoflop.reduce(checked.final)
    why = f"an isoFLOP grid of {len(checked.final)} runs, reduced to the best size of {len(final)} budgets"
    kept = [notice for notice in checked.notices if notice.code != "shallow_rung"]
    return replace(checked, final=final, notices=(*kept, *shallow(final), *notices)), why


def refuse_too_little(runs: Iterable[tuple[str, float]], unfinished: Sequence[str] = ()) -> None:
    """Raise AnalysisError unless these (rung, final FLOPs) can carry a law, whatever their losses are."""
    runs = list(runs)
    rungs = len({rung for rung, _ in runs})
    if rungs < 2:
        names = f"; unfinished: {', '.join(unfinished)}" if unfinished else ""
        raise AnalysisError(
            "too_few_runs",
            f"{len(runs)} runs on {rungs} rungs{names}: a law needs at least 2 rungs of different size, a "
            "strong one 4; finish or add rungs",
        )
    low, high = min(flops for _, flops in runs), max(flops for _, flops in runs)
    if high / low < 1.5:
        raise AnalysisError(
            "span_too_small",
            f"the {rungs} rungs span {low:.4g} to {high:.4g} FLOPs ({high / low:.3g}x; at least 1.5x is "
            "needed, 30x is good): add a smaller or a larger rung",
        )


def _grade(evals: Evals) -> tuple[str, list[Notice]]:
    """Refuse what cannot carry a law; grade and note what hardly can."""
    final = evals.final
    refuse_too_little(zip(final["rung"], final["flops"], strict=True), evals.unfinished)
    rungs, span = final["rung"].nunique(), final["flops"].max() / final["flops"].min()
    grade, notices = "strong", []
    if rungs < 4:
        grade = "weak"
        text = (
            f"{rungs} rungs: the floor and exponent come mostly from the prior; a fourth rung decides more "
            "than any setting"
        )
        notices.append(Notice("few_rungs", "warning", text))
    if span < 10:
        grade = "weak"
    if span < 30:
        text = (
            f"the rungs span {span:.3g}x in FLOPs: under 30x the exponent is poorly known, under 10x hardly; "
            "add a smaller rung"
        )
        notices.append(Notice("short_span", "warning", text))
    return grade, notices


def _interval(name: str, low: float, mid: float, high: float) -> str:
    form = ".4g" if name == "E" else ".3f"
    return f"{name} {mid:{form}} [{low:{form}}, {high:{form}}]"


def _told(unit: str) -> str:
    return "unit other: the wide prior" if unit == "other" else unit


def _outliers(left_out: pd.DataFrame) -> list[Notice]:
    notices = []
    if len(left_out) < LEAST_TO_JUDGE:
        return []
    for rung, _, loss, median, z in left_out.itertuples(index=False, name=None):
        if abs(z) <= OUTLIER:
            continue
        text = (
            f"rung {rung} is {z:+.1f} sd from what the other rungs predict (loss {loss:.4g}, predicted "
            f"{median:.4g}): look at its run before trusting the forecast"
        )
        if abs(loss * BITS / median - 1) < 0.05:
            text += f"; times ln 2 it would fit ({loss * BITS:.4g}): is it in bits?"
        notices.append(Notice("outlier_rung", "warning", text))
    return notices


def _targets(at: Any, fitted: ScalingFit) -> pd.DataFrame:
    rows = table(at, fitted.posterior.law.columns)
    if "progress" in rows and (rows["progress"] < 0.999).any():
        raise EvalsError(
            "target_unfinished",
            f"progress {rows['progress'].min():.3g}: predict is about finished runs (flops of the whole "
            "run); for the way there use analysis.forecast",
        )
    if "unit" in rows and set(rows["unit"].dropna()) - {fitted.unit}:
        raise EvalsError(
            "mixed_units", f"the target's unit is {rows['unit'].iloc[0]!r}, the fit's {fitted.unit!r}"
        )
    return rows
