"""replan: what is still open to a run that is under way, each choice with predicted loss, band and cost."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.artefact import Forecast
from analysis.frame import AnalysisError, table

Z90 = 1.6449  # half a central 90 % interval, in sds
RECENT = 5  # evaluations whose mean residual is where the run stands
LATEST_RESTART = 0.25  # of the run: later than this a restart is no choice
END, MIXTURE = 0.05, 0.8  # learning rate at the end / peak; share of the run at which mid-training begins
DEFAULT = {"shorten": {"horizon": 0.75}, "retime": {"decay_from": 0.8}}
OPTIONS = ("continue", "shorten", "retime", "restart")


def replan(
    forecast: Forecast,
    rows: Any,
    options: Mapping[str, Mapping[str, float]] | None = None,
    price_per_flop: float = math.nan,
) -> pd.DataFrame:
    """Continue, shorten, re-time decay and mixture, or restart: a row each.

    rows: the run's evaluations so far (progress and eval_loss). options: changes to "shorten" (horizon: share
    of the planned tokens at which it ends) and "retime" (decay_from: share of the run at which a linear decay
    to 5 % of the peak begins). price_per_flop: in any currency.

    Columns: option; loss, lo90, hi90 (predicted final loss, in the forecast's unit); inside (probability of
    ending inside the frozen 90 % band); end, decay_from, mixture_from (shares of the planned tokens); tokens
    and flops still to be spent; tokens_saved (planned minus spent in all, negative for a restart); cost;
    assumes. With o the mean of log(eval_loss / frozen median) over the last 5 evaluations and L(C) the
    forecast's law: continue and retime end at L(C) exp(o), shorten at L(horizon C) exp(o), a restart at L(C).

    Raises AnalysisError: no_evaluations, bad_option, no_band, unknown_size.
    """
    if forecast.point_only:
        raise AnalysisError("no_band", "the forecast is a point without a band: nothing to weigh options by")
    target = forecast.payload["target"]
    if target["tokens"] is None:
        raise AnalysisError("unknown_size", "the forecast's target has no tokens: freeze one with them")
    asked = _asked(options)
    progress, offset, count = standing(forecast, rows)
    horizon, decay_from = asked["shorten"]["horizon"], asked["retime"]["decay_from"]
    if not progress < horizon <= 1:
        raise AnalysisError("bad_option", f"horizon={horizon:g}: the run is at {progress:.3g} of its tokens")
    stays = f"the run's offset of {100 * math.expm1(offset):+.2f} % ({count} evaluations) stays"
    choices = [
        ("continue", offset, 1.0, (math.nan, MIXTURE), 0.0, stays),
        (
            "shorten", offset, horizon, (progress, MIXTURE * horizon), 0.0,
            f"{stays}; the law holds at {horizon:g} of the FLOPs, with as many parameters",
        ),
        (
            "retime", offset, 1.0, (decay_from, decay_from), 0.0,
            f"{stays}; the rungs ran this decay and mixture: else there is no forecast",
        ),
        ("restart", 0.0, 1.0, (math.nan, MIXTURE), progress, "the cause is found; the frozen forecast holds"),
    ]  # fmt: skip
    if progress > LATEST_RESTART:
        choices = choices[:-1]
    frozen = final(forecast, 1.0)
    out = []
    for name, shift, end, (decay, mixture), lost, assumes in choices:
        median, lo, hi = (x * math.exp(shift) for x in final(forecast, end))
        ahead = end if name == "restart" else end - progress
        flops = ahead * target["flops"]
        out.append(
            {
                "option": name,
                "loss": median,
                "lo90": lo,
                "hi90": hi,
                "inside": inside(median, lo, hi, frozen[1], frozen[2]),
                "end": end,
                "decay_from": decay,
                "mixture_from": mixture,
                "tokens": round(ahead * target["tokens"]),
                "flops": flops,
                "tokens_saved": round((1 - end - lost) * target["tokens"]),
                "cost": flops * price_per_flop,
                "assumes": assumes,
            }
        )
    return pd.DataFrame(out)


def standing(forecast: Forecast, rows: Any) -> tuple[float, float, int]:
    """(progress, mean log residual of the last evaluations, how many) of a run against its forecast."""
    seen = pd.DataFrame(rows)
    if "eval_loss" not in seen:
        raise AnalysisError(
            "no_evaluations", f"the rows have no eval_loss (they have {sorted(seen)}): add it"
        )
    seen = table(seen.rename(columns={"eval_loss": "loss"}), ("loss",)).dropna(subset=["loss"])
    if "progress" not in seen:
        if "tokens" not in seen:
            raise AnalysisError("no_progress", "the rows have neither progress nor tokens: add one")
        seen = seen.assign(progress=seen["tokens"] / forecast.payload["target"]["tokens"])
    first = forecast.payload["grid"]["progress"][0]
    seen = seen[seen["progress"] >= first].sort_values("progress").tail(RECENT)
    if seen.empty:
        raise AnalysisError(
            "no_evaluations",
            f"no eval_loss past progress {first:.3g}, where the forecast begins: wait for one",
        )
    offsets = [
        math.log(loss / forecast.at(progress=min(x, 1.0)).median)
        for x, loss in zip(seen["progress"], seen["loss"], strict=True)
    ]
    return float(seen["progress"].iloc[-1]), float(np.mean(offsets)), len(offsets)


def final(forecast: Forecast, share: float) -> tuple[float, float, float]:
    """(median, lo90, hi90) of a whole run of `share` of the target's FLOPs, by the frozen law's curve."""
    if share == 1:
        end = forecast.at(progress=1.0)
        return end.median, end.lo, end.hi
    law, flops = forecast.scaling(), share * forecast.payload["target"]["flops"]
    if flops < law["flops"].min():
        raise AnalysisError("bad_option", f"{flops:.3g} FLOPs are below the smallest rung: ask for more")
    x, grid = math.log(flops), np.log(law["flops"])
    median, lo, hi = (float(np.interp(x, grid, law[name])) for name in ("median", "lo90", "hi90"))
    return median, lo, hi


def inside(median: float, lo: float, hi: float, frozen_lo: float, frozen_hi: float) -> float:
    """Probability of [frozen_lo, frozen_hi] under a normal log loss with this median and 90 % interval."""
    sd = math.log(hi / lo) / (2 * Z90)
    ends = [math.log(x / median) / sd / math.sqrt(2) for x in (frozen_lo, frozen_hi)]
    return 0.5 * (math.erf(ends[1]) - math.erf(ends[0]))


def _asked(options: Mapping[str, Mapping[str, float]] | None) -> dict[str, dict[str, float]]:
    asked = {name: dict(values) for name, values in DEFAULT.items()}
    for name, values in (options or {}).items():
        for key, value in values.items():
            if key not in asked.get(name, {}):
                raise AnalysisError(
                    "bad_option", f"{name}.{key} is no option: shorten.horizon and retime.decay_from are"
                )
            if not 0 < value <= 1:
                raise AnalysisError("bad_option", f"{name}.{key}={value!r} is no share of the run in (0, 1]")
            asked[name][key] = float(value)
    return asked
