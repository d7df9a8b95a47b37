"""The way to the final loss by the shape that the rungs share, at matched progress.

y_i(x) = log L_i(x) - log L_i(1) at progress x of run i is linear and Gaussian:

    y_i(x) = m(x) + c(x) u_i + r_i(x) + evaluation noise,      u_i = log10(C_i / C of the top rung)

m is vague and free at every progress; c (per decade of compute) and r (per run) are Gaussian processes in
log x, zero at x = 1 like y itself, of a size known up to a factor that the curves decide. The target's curve
is a draw of its final loss, from the same mixture that predicts it, times exp of a draw of y. So at progress
1 the band is the final law's band.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.linalg import cho_factor, cho_solve

from analysis.fitting import ScalingFit
from analysis.frame import FINISHED
from analysis.posterior import Mixture

DRAWS = 4000
SEED = 20261201
VAGUE = 1.0  # sd of m: a factor e in loss
DRIFT = 0.015  # sd of c: relative loss a decade of compute (the public Marin rungs drift by up to .012)
DRIFT_LENGTH = 1.5  # of c, in log x
WIGGLE = 0.006  # sd of r, relative loss
WIGGLE_LENGTH = 0.5  # of r, in log x
SCALES = (1.0, 2.0, 4.0, 8.0)  # factors on c and r of equal prior weight: tiny ladders are rougher
NOISE_FLOOR = 0.001  # relative loss of one evaluation
MOST_POINTS = 60  # of the grid, about evenly in log x: more tell nothing new about the shape
NEAR = 0.1  # |log x - log x'| up to which an evaluation at x' speaks for x


@dataclass(frozen=True)
class Curves:
    """Evaluations on a common grid. x (G,) increasing to 1; y (R, G) = log L(x) - log L(1), NaN where a run
    has no evaluation near x; u (R,); level_sd (R,): 0 for finished runs, for an unfinished one the relative
    sd of its predicted final loss, which stands in for the unknown L(1). noise: relative sd of one
    evaluation."""

    x: np.ndarray
    y: np.ndarray
    u: np.ndarray
    level_sd: np.ndarray
    noise: float


def curves(fit: ScalingFit) -> Curves | None:
    """The fit's evaluations on the progress grid of its most often evaluated finished run, where at least two
    runs were evaluated. None when the table has final losses only.

    Unfinished runs enter: their level is the final loss that the fit predicts for them, with its sd.
    """
    rows = fit.evals.rows
    if "progress" not in rows:
        return None
    counts = rows[rows["run"].isin(fit.final["run"])].groupby("run", sort=False).size()
    grid = rows["progress"][rows["run"] == counts[::-1].idxmax()].to_numpy()  # of equals, the largest run
    grid = np.append(grid[grid < FINISHED], 1.0)
    if len(grid) > MOST_POINTS:
        marks = np.geomspace(grid[0], 1.0, MOST_POINTS)
        grid = np.unique(grid[np.abs(np.log(grid)[None, :] - np.log(marks)[:, None]).argmin(axis=1)])
    y, u, level_sd = [], [], []
    for run, part in rows.groupby("run", sort=False):
        x, loss = part["progress"].to_numpy(), part["loss"].to_numpy()
        flops, sd, level = float(part["flops"].iloc[-1]), 0.0, float(loss[-1])
        if run in fit.unfinished:
            flops /= float(x[-1])
            predicted = fit.posterior.predictive(_whole(part.iloc[-1]))[0]
            level, sd = predicted.quantile(0.5), float(np.sqrt(predicted.variance) / predicted.average)
        y.append(_on_grid(x, np.log(loss / level), grid))
        u.append(np.log10(flops / fit.top_flops))
        level_sd.append(sd)
    values, sds = np.array(y), np.array(level_sd)
    values[sds == 0, -1] = 0.0
    seen = (~np.isnan(values)).sum(axis=0) >= 2
    if seen.sum() < 2:
        return None
    x, values = grid[seen], values[:, seen]
    return Curves(x, values, np.array(u), sds, evaluation_noise(x, values[sds == 0]))


def _whole(last: pd.Series) -> pd.DataFrame:
    """An unfinished run's last row as the whole run."""
    row = {"flops": last["flops"] / last["progress"]}
    if {"params_active", "tokens"} <= set(last.index):
        row |= {"params_active": last["params_active"], "tokens": last["tokens"] / last["progress"]}
    return pd.DataFrame([row])


def _on_grid(x: np.ndarray, y: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """y linear in log x between evaluations; NaN farther than NEAR from any of them."""
    if x[-1] >= FINISHED:
        x = np.append(x[:-1], 1.0)
    logs, wanted = np.log(x), np.log(grid)
    nearest = np.abs(wanted[:, None] - logs[None, :]).min(axis=1)
    out = np.interp(wanted, logs, y)
    if len(x) > 1:  # a rung that starts a step later than the grid: carry its first slope on
        slope = (y[1] - y[0]) / (logs[1] - logs[0])
        out = np.where(wanted < logs[0], y[0] + slope * (wanted - logs[0]), out)
    return np.where((nearest <= NEAR) & (wanted <= logs[-1] + 1e-9), out, np.nan)


def evaluation_noise(x: np.ndarray, y: np.ndarray) -> float:
    """Relative sd of one evaluation from detrended curves: what is left of each curve after the mean over
    runs and linear interpolation from both neighbours; robust (MAD), with a floor."""
    runs = len(y)
    if runs < 2 or len(x) < 4:
        return NOISE_FLOOR
    inner = y[:, :-1] - np.nanmean(y[:, :-1], axis=0)  # without x = 1, where every curve is 0
    logs = np.log(x[:-1])
    right = (logs[1:-1] - logs[:-2]) / (logs[2:] - logs[:-2])
    left_over = inner[:, 1:-1] - (1 - right) * inner[:, :-2] - right * inner[:, 2:]
    scaled = left_over / np.sqrt(1 + right**2 + (1 - right) ** 2) / np.sqrt(1 - 1 / runs)
    scaled = scaled[~np.isnan(scaled)]
    return NOISE_FLOOR if not len(scaled) else max(NOISE_FLOOR, 1.4826 * float(np.median(abs(scaled))))


def pinned(x: np.ndarray, length: float) -> np.ndarray:
    """Correlation (G, G) of a squared-exponential process in log x, conditioned on 0 at x = 1."""
    logs = np.log(x)
    toward = np.exp(-0.5 * (logs / length) ** 2)
    return np.exp(-0.5 * ((logs[:, None] - logs[None, :]) / length) ** 2) - np.outer(toward, toward)


@dataclass(frozen=True)
class Shape:
    """y(x) of a new run for x < 1, without the noise of its own evaluations: mean (G - 1,), cov (G - 1, G -
    1), and the log evidence of the curves under this scale of drift and wiggle."""

    mean: np.ndarray
    cov: np.ndarray
    evidence: float


def shape(data: Curves, u: float, scale: float = 1.0) -> Shape:
    """Condition on the curves for a new run at u, with drift and wiggle `scale` times as large."""
    x, y = data.x[:-1], data.y[:, :-1]
    vague = VAGUE**2 * np.eye(len(x))
    drift = (scale * DRIFT) ** 2 * pinned(x, DRIFT_LENGTH)
    wiggle = (scale * WIGGLE) ** 2 * pinned(x, WIGGLE_LENGTH)
    run, at = np.nonzero(~np.isnan(y))
    pairs, seen = np.ix_(at, at), y[run, at]
    # the last evaluation's noise is in every y of its run; for an unfinished run, the doubt about its level
    level = np.where(data.level_sd > 0, data.level_sd, data.noise)[run] ** 2
    K = vague[pairs] + drift[pairs] * np.outer(data.u[run], data.u[run]) + data.noise**2 * np.eye(len(at))
    K += (run[:, None] == run[None, :]) * (wiggle[pairs] + level[:, None])
    cross = vague[:, at] + drift[:, at] * (u * data.u[run])
    factor = cho_factor(K)
    gain = cho_solve(factor, cross.T).T
    cov = vague + u**2 * drift + wiggle - gain @ cross.T
    evidence = -0.5 * seen @ cho_solve(factor, seen) - np.log(np.diag(factor[0])).sum()
    return Shape(gain @ seen, (cov + cov.T) / 2, float(evidence))


def draws(data: Curves | None, final: Mixture, u: float, at: np.ndarray) -> np.ndarray:
    """Joint draws (DRAWS, len(at)) of the new run's evaluations at progress `at`, which ends at 1.

    Between the curves' grid points y is linear in log x. The finals are evenly spaced quantiles of `final` in
    random order, so the last column is the final law. Without curves `at` must be [1].
    """
    rng = np.random.default_rng(SEED)
    finals = rng.permutation(final.spread(DRAWS))[:, None]
    if data is None:
        return finals
    found = [shape(data, u, scale) for scale in SCALES]
    weight = np.exp([f.evidence - max(f.evidence for f in found) for f in found])
    ends = np.rint(DRAWS * np.cumsum(weight) / weight.sum()).astype(int)
    parts = []
    for each, count in zip(found, np.diff(ends, prepend=0), strict=True):
        root = np.linalg.cholesky(
            each.cov + 1e-10 * np.eye(len(each.mean))
        )  # 1e-5 of the loss: below any band
        parts.append(each.mean + rng.standard_normal((count, len(each.mean))) @ root.T)
    y = np.column_stack([np.concatenate(parts), np.zeros(DRAWS)])
    y = y @ interpolation(data.x, at).T
    y[:, at < 1] += data.noise * rng.standard_normal((DRAWS, int((at < 1).sum())))
    return finals * np.exp(y)


def conditioned(samples: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Joint draws (DRAWS, K + M) given that the first K came out as `seen` (K,) -> (DRAWS, M): each draw is
    moved by the regression of the last M on the first K, in logs (exact where the draws are normal)."""
    logs, K = np.log(samples), len(seen)
    centred = logs - logs.mean(axis=0)
    cov = centred[:, :K].T @ centred[:, :K] + 1e-12 * len(logs) * np.eye(K)
    gain = np.linalg.solve(cov, centred[:, :K].T @ centred[:, K:])
    return np.exp(logs[:, K:] + (np.log(seen) - logs[:, :K]) @ gain)


def interpolation(x: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Weights (len(at), len(x)) of linear interpolation in log progress; below x[0] the slope carries on."""
    right = np.clip(np.searchsorted(x, at), 1, len(x) - 1)
    share = np.log(at / x[right - 1]) / np.log(x[right] / x[right - 1])
    weights = np.zeros((len(at), len(x)))
    weights[np.arange(len(at)), right] = share
    weights[np.arange(len(at)), right - 1] = 1 - share
    return weights


@dataclass(frozen=True)
class Band:
    """Pointwise lo, hi and simultaneous sim_lo, sim_hi at one level, each (G,)."""

    lo: np.ndarray
    hi: np.ndarray
    sim_lo: np.ndarray
    sim_hi: np.ndarray


def band(samples: np.ndarray, level: float) -> Band:
    """Pointwise quantiles, and the sup-t band: centre +- one multiple of the sd that holds whole curves with
    probability `level` (Montiel Olea & Plagborg-Moller 2019). Never narrower than the pointwise band."""
    tail = (1 - level) / 2
    lo, hi = np.quantile(samples, [tail, 1 - tail], axis=0)
    centre, sd = samples.mean(axis=0), samples.std(axis=0)
    reach = np.quantile(np.max(abs(samples - centre) / sd, axis=1), level)
    return Band(lo, hi, np.minimum(lo, centre - reach * sd), np.maximum(hi, centre + reach * sd))
