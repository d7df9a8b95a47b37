"""The trajectory law: one joint law of run and progress, with a clock of the run's own tokens and steps.

    L = E + A (N/N_r)^-a + B (D(x)/D_r)^-b + G S(x)^-q + H eta(x) lr^p
                + Lbar delta(u) + run intercept + residual(x) + evaluation noise

N active parameters, D(x) tokens and S(x) thousands of steps so far, eta(x) the schedule's shape in [0, 1], lr
the peak rate over the rungs' mean; N_r, D_r those of the second-smallest rung; delta as in posterior.py,
anchored at the top rung. The residual is a Gaussian process in log x, one part shared by all runs and one of
each run's own. Matched progress (trajectory.py) is biased early for a target of many more steps than its
rungs; the clock is what removes that.

Two members of fixed weight 1/2, a decay that the learning rate does not scale (p = 0) and one that it does
(p = 1/2, 1), times equal taus: rungs of nearly one learning rate cannot choose between them. At
each E of a grid and each p the other parameters get a Laplace approximation; within a member the nodes are
weighed by their evidence.

Axes: T taus, K nodes a tau, Q = 7 parameters, n evaluations, M points of the target.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.posterior import wiener
from analysis.trajectory import DRAWS, SEED

NAMES = ("log_A", "a", "log_B", "b", "log_G", "q", "H")
E_NODES, E_REACH = 13, 3.0  # nodes of E, prior sds to each side
ITERATIONS = 40
MOST = 30  # evaluations of a run that enter: more tell nothing new
NEED = ("step", "tokens", "params_active", "progress", "flops")


@dataclass(frozen=True)
class Points:
    """Evaluations, (n,) each: run (index), x, and logs of N/N_r, D/D_r, S in thousands, lr ratio; eta; loss
    (NaN where it is to be predicted). u: decades of the whole run's FLOPs."""

    run: np.ndarray
    x: np.ndarray
    size: np.ndarray
    tokens: np.ndarray
    steps: np.ndarray
    lr: np.ndarray
    eta: np.ndarray
    u: np.ndarray
    loss: np.ndarray


@dataclass(frozen=True)
class Reference:
    """What the terms are relative to, from the rungs: N_r, D_r, C_min, mean peak learning rate (NaN where not
    known), mean loss, and the largest run's u."""

    size: float
    tokens: float
    flops: float
    lr: float
    loss: float
    top: float


@dataclass(frozen=True)
class ClockFit:
    """Laplace nodes, (T, K, ...): weight adds up to 1. own: the target's index where its rows were used."""

    data: Points
    reference: Reference
    noise: float
    prior: Mapping[str, Any]
    tau: np.ndarray
    E: np.ndarray
    p: np.ndarray
    weight: np.ndarray
    phi: np.ndarray
    root: np.ndarray  # (T, K, Q, Q): root @ root.T is the covariance of phi


def usable(rows: pd.DataFrame) -> bool:
    """True where every evaluation says its step, tokens, parameters and progress, of two runs at least."""
    known = set(NEED) <= set(rows.columns) and rows[list(NEED)].notna().all(axis=None)
    return bool(known) and rows["run"].nunique() > 1


def thinned(rows: pd.DataFrame) -> pd.DataFrame:
    """At most MOST rows a run, about evenly in log progress, first and last kept."""

    def few(part: pd.DataFrame) -> pd.DataFrame:
        if len(part) <= MOST:
            return part
        logs = np.log(part["progress"].to_numpy())
        marks = np.linspace(logs[0], logs[-1], MOST)
        return part.iloc[np.unique(np.abs(logs[:, None] - marks[None, :]).argmin(axis=0))]

    return pd.concat([few(part) for _, part in rows.groupby("run", sort=False)], ignore_index=True)


def reference(rows: pd.DataFrame) -> Reference:
    last = rows.groupby("run", sort=False).tail(1)
    whole = last["flops"] / last["progress"]
    order = np.argsort(whole.to_numpy(), kind="stable")
    second = last.iloc[order[min(1, len(order) - 1)]]
    lr = float(last["peak_lr"].mean()) if "peak_lr" in last and last["peak_lr"].notna().all() else np.nan
    top = float(np.log10(whole.max() / whole.min()))
    size, tokens = float(second["params_active"]), float(second["tokens"] / second["progress"])
    return Reference(size, tokens, float(whole.min()), lr, float(rows["loss"].mean()), top)


def points(rows: pd.DataFrame, ref: Reference, start: int = 0) -> Points:
    """Evaluations in the law's coordinates. rows: NEED and, where known, lr with peak_lr, loss; without lr
    the schedule is taken to fall linearly to zero."""
    run = pd.factorize(rows["run"])[0] + start
    x = rows["progress"].to_numpy(float)
    eta = 1 - x
    if {"lr", "peak_lr"} <= set(rows.columns) and rows[["lr", "peak_lr"]].notna().all(axis=None):
        eta = (rows["lr"] / rows["peak_lr"]).to_numpy(float)
    known = "peak_lr" in rows and rows["peak_lr"].notna().all() and np.isfinite(ref.lr)
    lr = np.log(rows["peak_lr"].to_numpy(float) / ref.lr) if known else np.zeros(len(rows))
    return Points(
        run=run,
        x=x,
        size=np.log(rows["params_active"].to_numpy(float) / ref.size),
        tokens=np.log(rows["tokens"].to_numpy(float) / ref.tokens),
        steps=np.log(rows["step"].to_numpy(float) / 1000),
        lr=lr,
        eta=eta,
        u=np.log10((rows["flops"] / rows["progress"]).to_numpy(float) / ref.flops),
        loss=rows["loss"].to_numpy(float) if "loss" in rows else np.full(len(rows), np.nan),
    )


def _covariance(
    one: Points, two: Points, tau: np.ndarray, ref: Reference, prior: Mapping[str, Any]
) -> np.ndarray:
    """Of everything but the parameters and the evaluation noise. (T, n, m)"""
    clock, scale = prior["clock"], ref.loss / 3
    near = np.exp(-0.5 * (np.log(one.x[:, None] / two.x[None, :]) / clock["length"]) ** 2)
    same = one.run[:, None] == two.run[None, :]
    fixed = scale**2 * (
        clock["pooled"] ** 2 * near + same * (clock["own"] ** 2 * near + clock["intercept"] ** 2)
    )
    n = len(one.u)
    bend = wiener(np.concatenate([one.u, two.u]), ref.top)[:n, n:]
    return fixed + (ref.loss * tau[:, None, None]) ** 2 * bend


def _law(phi: np.ndarray, E: np.ndarray, p: np.ndarray, at: Points) -> tuple[np.ndarray, np.ndarray]:
    """Values (..., n) and their derivatives (..., n, Q) by phi (..., Q)."""
    by = phi[..., None, :]
    A = np.exp(by[..., 0] - by[..., 1] * at.size)
    B = np.exp(by[..., 2] - by[..., 3] * at.tokens)
    G = np.exp(by[..., 4] - by[..., 5] * at.steps)
    swing = at.eta * np.exp(p[..., None] * at.lr)
    value = E[..., None] + A + B + G + by[..., 6] * swing
    return value, np.stack([A, -at.size * A, B, -at.tokens * B, G, -at.steps * G, swing], axis=-1)


def solve(data: Points, ref: Reference, noise: float, prior: Mapping[str, Any], unit: str) -> ClockFit:
    """The posterior, given evaluations. noise: relative sd of one evaluation."""
    clock, floor, scale = prior["clock"], prior["E"][unit], ref.loss / 3
    tau = np.asarray(clock["tau"], float)
    factor = float(data.loss.min()) if floor["scale"] == "lowest_loss" else 1.0
    mean, sd = factor * floor["mean"], factor * floor["sd"]
    grid = mean + sd * np.linspace(-E_REACH, E_REACH, E_NODES)
    grid = grid[(grid > 0) & (grid < data.loss.min())]
    powers = np.asarray(clock["p"], float)
    E, p = (mesh.ravel() for mesh in np.meshgrid(grid, powers, indexing="ij"))
    with_lr = p > 0

    shift = np.array([np.log(scale) * (name.startswith("log_")) for name in NAMES])
    m = np.array([clock[name]["mean"] for name in NAMES]) + shift
    s = np.array([clock[name]["sd"] for name in NAMES])
    m[-1], s[-1] = scale * m[-1], scale * s[-1]

    V = _covariance(data, data, tau, ref, prior) + (ref.loss * noise) ** 2 * np.eye(len(data.x))
    white = np.linalg.inv(np.linalg.cholesky(V))
    phi, cov, loss = _laplace(data, white, E, p, m, s)
    log_weight = -loss - 0.5 * ((E - mean) / sd) ** 2 + 0.5 * np.linalg.slogdet(cov)[1] - np.log(s).sum()
    weight = np.zeros_like(log_weight)
    for member in (with_lr, ~with_lr):  # fixed weights: 1/2 a member, 1/T a tau
        part = np.exp(log_weight[:, member] - log_weight[:, member].max(axis=1, keepdims=True))
        weight[:, member] = part / part.sum(axis=1, keepdims=True) / 2 / len(tau)
    return ClockFit(data, ref, noise, prior, tau, E, p, weight, phi, np.linalg.cholesky(cov))


def _laplace(
    data: Points, white: np.ndarray, E: np.ndarray, p: np.ndarray, m: np.ndarray, s: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Modes (T, K, Q), covariances (T, K, Q, Q) and minus log posterior densities (T, K), by damped
    Gauss-Newton steps of all nodes together."""
    T, K = len(white), len(E)
    phi = np.tile(m, (T, K, 1))
    E, p = np.tile(E, (T, 1)), np.tile(p, (T, 1))
    damping = np.full((T, K), 1e-2)
    diagonal = np.eye(len(m))

    def at(phi: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        value, J = _law(phi, E, p, data)
        left = np.einsum("tij,tkj->tki", white, data.loss - value, optimize=True)
        J = np.einsum("tij,tkjq->tkiq", white, J, optimize=True)
        off = (phi - m) / s
        gradient = np.einsum("tkiq,tki->tkq", J, left, optimize=True) - off / s
        curve = J.swapaxes(-1, -2) @ J + diagonal / s[:, None] ** 2
        return 0.5 * ((left**2).sum(axis=-1) + (off**2).sum(axis=-1)), gradient, curve

    loss, gradient, curve = at(phi)
    for _ in range(ITERATIONS):
        size = np.diagonal(curve, axis1=-2, axis2=-1)[..., None] * diagonal
        step = np.linalg.solve(curve + damping[..., None, None] * size, gradient[..., None])[..., 0]
        new, new_gradient, new_curve = at(phi + step)
        better = new < loss
        gain = np.where(better, loss - new, 0)
        phi = np.where(better[..., None], phi + step, phi)
        loss = np.where(better, new, loss)
        gradient = np.where(better[..., None], new_gradient, gradient)
        curve = np.where(better[..., None, None], new_curve, curve)
        damping = np.clip(np.where(better, damping / 10, damping * 10), 1e-9, 1e9)
        if gain.max() < 1e-8:
            break
    return phi, np.linalg.inv(curve), loss


def draws(fit: ClockFit, at: Points, noisy: bool = True) -> np.ndarray:
    """Joint draws (DRAWS, M) of the evaluations of one run at its points, fixed seed; of its law and residual
    alone where not noisy. Where the run's own rows are among the data, they condition it."""
    rng = np.random.default_rng(SEED)
    flat = fit.weight.ravel()
    order = np.searchsorted(np.cumsum(flat) / flat.sum(), (np.arange(DRAWS) + 0.5) / DRAWS)
    t, k = np.unravel_index(order, fit.weight.shape)
    phi = fit.phi[t, k] + np.einsum("dij,dj->di", fit.root[t, k], rng.standard_normal((DRAWS, len(NAMES))))
    phi[:, [1, 3, 5]] = np.maximum(phi[:, [1, 3, 5]], 0.01)  # an exponent below zero is no decay
    E, p = fit.E[k], fit.p[k]
    out = _law(phi, E, p, at)[0]
    left = fit.data.loss - _law(phi, E, p, fit.data)[0]
    V = _covariance(fit.data, fit.data, fit.tau, fit.reference, fit.prior)
    V += (fit.reference.loss * fit.noise) ** 2 * np.eye(len(fit.data.x))
    cross = _covariance(at, fit.data, fit.tau, fit.reference, fit.prior)
    own = _covariance(at, at, fit.tau, fit.reference, fit.prior)
    for j in range(len(fit.tau)):
        gain = np.linalg.solve(V[j], cross[j].T).T
        spread = own[j] - gain @ cross[j].T
        root = np.linalg.cholesky((spread + spread.T) / 2 + 1e-10 * fit.reference.loss**2 * np.eye(len(at.x)))
        mine = t == j
        out[mine] += left[mine] @ gain.T + rng.standard_normal((mine.sum(), len(at.x))) @ root.T
    if noisy:
        out += fit.reference.loss * fit.noise * rng.standard_normal(out.shape)
    return out
