"""backtest: how often the band held where the answer is known, beside what else could have been done.

Rolling origin: the k smallest rungs are fitted by the path of `fit` and every larger run is predicted, k = 3,
4, ... Or one split: everything but the runs held out. A ladder is one fact about coverage, however many
targets it has: pool several, and read the number of ladders beside the number of targets.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import beta

from analysis import isoflop
from analysis.baselines import BASELINES, sizes
from analysis.fitting import NOISY, ScalingFit, fit
from analysis.frame import AnalysisError, named, read_evals

LEAST = 3  # rungs of the first origin
OURS = "posterior"
COLUMNS = [
    "ladder", "rungs", "method", "run", "flops", "times", "loss", "median", "lo", "hi", "error", "inside",
    "half_width", "score", "flagged",
]  # fmt: skip


@dataclass(frozen=True)
class Backtest:
    """rows: one a (origin, method, target); see `frame`. level: of the bands. skipped: origins that were
    refused, and why."""

    rows: pd.DataFrame
    level: float
    skipped: tuple[str, ...] = ()

    def frame(self) -> pd.DataFrame:
        """ladder, rungs (fitted), method, run, flops, times (over the largest fitted), loss, median, lo, hi,
        error and half_width (relative to the loss and the median), inside, score (interval score, relative
        to the loss), flagged (the fit looked untuned). A method without an answer has no row."""
        return self.rows.copy()

    def coverage(self, by: Sequence[str] = ()) -> pd.DataFrame:
        """A row a method: targets, ladders, inside, coverage with its 95 % Clopper-Pearson interval (targets
        taken as independent, which they are not: see ladders), mean |error| and half_width, score, and
        score_ratio: this package's over the method's, on the targets that both answer. by: columns to split
        on as well."""
        out = []
        for key, part in self.rows.groupby([*by, "method"], sort=False):
            hits, count = int(part["inside"].sum()), len(part)
            low, high = clopper_pearson(hits, count)
            out.append(
                {
                    **dict(zip([*by, "method"], key if isinstance(key, tuple) else (key,), strict=True)),
                    "ladders": part["ladder"].nunique(),
                    "targets": count,
                    "inside": hits,
                    "coverage": hits / count,
                    "cp_lo95": low,
                    "cp_hi95": high,
                    "mean_error": part["error"].abs().mean(),
                    "half_width": part["half_width"].mean(),
                    "score": part["score"].mean(),
                    "score_ratio": self._ratio(part),
                }
            )
        return pd.DataFrame(out)

    def _ratio(self, part: pd.DataFrame) -> float:
        key = ["ladder", "rungs", "run"]
        ours = self.rows[self.rows["method"] == OURS].set_index(key)["score"]
        theirs = part.set_index(key)["score"]
        return float(ours.reindex(theirs.index).mean() / theirs.mean())

    def summary(self) -> str:
        lines = [
            f"{100 * self.level:g} % bands; score: interval score over the loss; ratio: ours over theirs",
            "method      inside    coverage [95 % interval]   mean error  half-width   score   ratio",
        ]
        for r in self.coverage().itertuples():
            lines.append(
                f"{r.method:<10} {r.inside:>3}/{r.targets:<4}   {r.coverage:6.1%} [{r.cp_lo95:5.1%}, "
                f"{r.cp_hi95:6.1%}]   {r.mean_error:>8.2%}   {r.half_width:>8.2%}  {r.score:>7.4f}  "
                f"{r.score_ratio:>5.2f}"
            )
        ladders = self.rows["ladder"].nunique()
        lines.append(
            f"{ladders} independent ladder{'s' * (ladders != 1)}: targets of one ladder share their luck, so "
            "the intervals are too short"
        )
        return "\n".join([*lines, *(f"skipped: {text}" for text in self.skipped)])


def clopper_pearson(hits: int, count: int, level: float = 0.95) -> tuple[float, float]:
    """The exact interval of a share of `count` (Clopper & Pearson 1934)."""
    tail = (1 - level) / 2
    low = 0.0 if hits == 0 else float(beta.ppf(tail, hits, count - hits + 1))
    high = 1.0 if hits == count else float(beta.ppf(1 - tail, hits + 1, count - hits))
    return low, high


def interval_score(loss: Any, lo: Any, hi: Any, level: float) -> Any:
    """Width plus 2 / (1 - level) times what the loss lies outside (Gneiting & Raftery 2007, eq. 43)."""
    outside = np.maximum(lo - loss, 0) + np.maximum(loss - hi, 0)
    return hi - lo + 2 / (1 - level) * outside


def backtest(
    evals: Any,
    hold_out: Iterable[str] | float | None = None,
    level: float = 0.9,
    unit: str | None = None,
    law: str = "auto",
    name: str = "ladder",
    baselines: Iterable[str] = tuple(BASELINES),
) -> Backtest:
    """Predict runs whose losses are known.

    hold_out: names of the runs to predict from all others; or FLOPs, above which runs are predicted from
    those below; or None: rolling origin over the rungs. An isoFLOP grid is reduced to its minima first.
    Raises EvalsError, AnalysisError: nothing_to_predict, unknown_run, and those of fit when no origin can be
    fitted.
    """
    checked = read_evals(evals, unit)
    final = checked.final
    if law == "auto" and isoflop.is_grid(final):
        final, law = isoflop.reduce(final)[0], "compute"
    final = final.assign(unit=checked.unit)
    rows, skipped = [], []
    refused: AnalysisError | None = None
    for fitted, targets in _splits(final, hold_out):
        try:
            found = fit(fitted, unit=checked.unit, law=law)
        except AnalysisError as error:
            refused = error
            skipped.append(f"{fitted['rung'].nunique()} rungs: {error}")
            continue
        rows += _answers(found, targets, level, tuple(baselines))
    if refused and not rows:
        raise refused
    frame = pd.DataFrame(rows).assign(ladder=name)[COLUMNS]
    return Backtest(frame, level, tuple(skipped))


def pooled(tests: Iterable[Backtest]) -> Backtest:
    """Several ladders' back-tests as one; their names must differ. Raises AnalysisError(mixed_levels)."""
    tests = list(tests)
    if len({test.level for test in tests}) != 1:
        raise AnalysisError("mixed_levels", "back-tests of different levels cannot be pooled: use one level")
    rows = pd.concat([test.rows for test in tests], ignore_index=True)
    return Backtest(rows, tests[0].level, tuple(text for test in tests for text in test.skipped))


def _splits(final: pd.DataFrame, hold_out: Any) -> list[tuple[pd.DataFrame, pd.DataFrame]]:
    if hold_out is None:
        order = list(dict.fromkeys(final.sort_values("flops", kind="stable")["rung"]))
        cuts = [final["rung"].isin(order[k:]) for k in range(LEAST, len(order))]
    elif isinstance(hold_out, int | float):
        cuts = [final["flops"] > hold_out]
    else:
        names = list(hold_out)
        if unknown := sorted(set(names) - set(final["run"])):
            raise AnalysisError(
                "unknown_run",
                f"no finished run {', '.join(unknown)}: the table has {named(final['run'])}",
            )
        cuts = [final["run"].isin(names)]
    pairs = [(final[~cut].reset_index(drop=True), final[cut].reset_index(drop=True)) for cut in cuts]
    if not pairs or any(not len(targets) or not len(fitted) for fitted, targets in pairs):
        raise AnalysisError(
            "nothing_to_predict",
            f"{len(final)} finished runs on {final['rung'].nunique()} rungs leave nothing to fit or "
            f"nothing to predict with hold_out={hold_out!r}: rolling "
            f"origin needs {LEAST + 1} rungs, a split both sides",
        )
    return pairs


def _answers(found: ScalingFit, targets: pd.DataFrame, level: float, baselines: Sequence[str]) -> list[dict]:
    ours = found.predict(targets, level)
    answers: dict[str, Any] = {OURS: tuple(ours[c].to_numpy() for c in ("median", "lo", "hi"))}
    law = found.posterior.law
    x, at = sizes(law, found.final), sizes(law, targets)
    for name in baselines:
        answers[name] = BASELINES[name](x, found.final["loss"].to_numpy(), at, level, found.unit)
    rows = []
    for method, answer in answers.items():
        if answer is None:
            continue
        for target, median, lo, hi in zip(targets.to_dict("records"), *answer, strict=True):
            if np.isnan(lo):  # beyond 500x: a point only
                continue
            loss = target["loss"]
            rows.append(
                {
                    "rungs": found.final["rung"].nunique(),
                    "method": method,
                    "run": target["run"],
                    "flops": target["flops"],
                    "times": target["flops"] / found.top_flops,
                    "loss": loss,
                    "median": median,
                    "lo": lo,
                    "hi": hi,
                    "error": median / loss - 1,
                    "inside": bool(lo <= loss <= hi),
                    "half_width": (hi - lo) / 2 / median,
                    "score": interval_score(loss, lo, hi, level) / loss,
                    "flagged": found.posterior.noise > NOISY,
                }
            )
    return rows
