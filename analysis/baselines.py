"""What else is done with a ladder's final losses: the usual fits, to stand beside the posterior's band.

Each takes the law's sizes as logs, x (q, n) for the runs and (q, m) for the targets, and the losses (n,), and
answers median, lo, hi (m,), or None where it has no answer: a free fit without degrees of freedom is no fit.
They are what a back-test measures against, not what this package recommends.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy.stats import t as student

from analysis.hubers import huber_fit, refits
from analysis.laws import Law

RESAMPLES = 200
SEED = 0
EXPONENTS = {1: np.linspace(0.01, 0.8, 159), 2: np.linspace(0.05, 1.2, 47)}  # by q
PINNED = {"nats/token": 1.5, "bits/byte": 0.47}  # floors set by eye; else a share of the lowest loss
PINNED_SHARE = 0.6
RIDGE = 1e-12

Answer = tuple[np.ndarray, np.ndarray, np.ndarray]


def sizes(law: Law, rows: pd.DataFrame) -> np.ndarray:
    """Logs of what the law's terms fall with: FLOPs, or parameters and tokens. (q, n)"""
    names = ["flops"] if law.name == "compute" else ["params_active", "tokens"]
    return np.log(rows[names].to_numpy(float).T)


def least_squares(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """E + sum_k c_k exp(-e_k x_k) by least squares under each row of weight (R, n): exponents on a grid,
    coefficients in closed form, never negative. -> coefficients (R, P), exponents (R, q)."""
    q, n = x.shape
    grid = EXPONENTS[q]
    nodes = np.stack([m.ravel() for m in np.meshgrid(*[grid] * q, indexing="ij")], axis=-1)
    terms = np.concatenate([np.ones((len(nodes), 1, n)), np.exp(-nodes[:, :, None] * x)], axis=1)  # (G, P, n)
    P = q + 1
    outer = np.einsum("gpn,gqn->gpqn", terms, terms).reshape(len(nodes), P * P, n)
    coefficients, exponents = np.empty((len(weight), P)), np.empty((len(weight), q))
    for k, w in enumerate(weight):
        A = (outer @ w).reshape(len(nodes), P, P)
        A += RIDGE * np.trace(A, axis1=1, axis2=2)[:, None, None] * np.eye(P)
        b = terms @ (w * y)
        solved = np.linalg.solve(A, b[..., None])[..., 0]
        solved[:, 0] = np.maximum(solved[:, 0], 0.0)
        solved[:, 1:] = np.maximum(solved[:, 1:], 0.0)
        left = y - np.einsum("gp,gpn->gn", solved, terms)
        best = int((left**2 @ w).argmin())
        coefficients[k], exponents[k] = solved[best], nodes[best]
    return coefficients, exponents


def _curve(coefficients: np.ndarray, exponents: np.ndarray, x: np.ndarray) -> np.ndarray:
    """(R, m)"""
    terms = np.exp(-exponents[:, :, None] * x)
    return coefficients[:, :1] + np.einsum("rk,rkm->rm", coefficients[:, 1:], terms)


def nls(x: np.ndarray, y: np.ndarray, at: np.ndarray, level: float, unit: str) -> Answer | None:
    """Least squares with a t interval from its Gauss-Newton covariance."""
    q, n = x.shape
    free = n - (2 * q + 1)
    if free < 1:
        return None
    centre = x.mean(axis=1, keepdims=True)
    c, e = least_squares(x - centre, y, np.ones((1, n)))

    def jacobian(where: np.ndarray) -> np.ndarray:
        terms = np.exp(-e[0][:, None] * (where - centre))
        return np.vstack([np.ones(where.shape[1]), terms, -c[0, 1:, None] * (where - centre) * terms]).T

    J = jacobian(x)
    left = y - _curve(c, e, x - centre)[0]
    variance = left @ left / free
    spread = np.einsum("mi,ij,mj->m", jacobian(at), np.linalg.pinv(J.T @ J), jacobian(at))
    half = student.ppf((1 + level) / 2, free) * np.sqrt(variance * (1 + spread))
    middle = _curve(c, e, at - centre)[0]
    return middle, middle - half, middle + half


def bootstrap(x: np.ndarray, y: np.ndarray, at: np.ndarray, level: float, unit: str) -> Answer | None:
    """Least squares on runs drawn with replacement: quantiles of the predictions."""
    q, n = x.shape
    if n < 2 * q + 1:
        return None
    weight = _resamples(n, 2 * q + 1)
    centre = x.mean(axis=1, keepdims=True)
    found = _curve(*least_squares(x - centre, y, weight), at - centre)
    return _quantiles(found[0], found[1:], level)


def huber(x: np.ndarray, y: np.ndarray, at: np.ndarray, level: float, unit: str) -> Answer | None:
    """The Huber fit on log losses (hubers.py), with a bootstrap over runs for its band."""
    q, n = x.shape
    if n < 2 * q + 1:
        return None
    best = huber_fit(x, np.log(y))
    others = refits(best, x, np.log(y), _resamples(n, 2 * q + 1)[1:])
    return _quantiles(best.predict(at), np.array([each.predict(at) for each in others]), level)


def pinned(x: np.ndarray, y: np.ndarray, at: np.ndarray, level: float, unit: str) -> Answer | None:
    """log(L - E) linear in the sizes' logs at a floor set by eye, with a t interval of a new run."""
    q, n = x.shape
    floor = min(PINNED.get(unit, np.inf), PINNED_SHARE * float(y.min()) if unit not in PINNED else np.inf)
    if n - q - 1 < 1 or floor >= y.min():
        return None
    X, at_X = (np.vstack([np.ones(s.shape[1]), s]).T for s in (x, at))
    z = np.log(y - floor)
    beta = np.linalg.lstsq(X, z, rcond=None)[0]
    variance = np.sum((z - X @ beta) ** 2) / (n - q - 1)
    spread = np.einsum("mi,ij,mj->m", at_X, np.linalg.pinv(X.T @ X), at_X)
    half = student.ppf((1 + level) / 2, n - q - 1) * np.sqrt(variance * (1 + spread))
    middle = at_X @ beta
    return floor + np.exp(middle), floor + np.exp(middle - half), floor + np.exp(middle + half)


def _resamples(n: int, least: int) -> np.ndarray:
    """How often each run is drawn: all once in row 0, then RESAMPLES draws with at least `least` distinct
    runs, where there are so many. (1 + RESAMPLES, n)"""
    rng = np.random.default_rng(SEED)
    weight = rng.multinomial(n, np.full(n, 1 / n), size=20 * RESAMPLES).astype(float)
    enough = (weight > 0).sum(axis=1) >= min(least, n - 1)
    return np.concatenate([np.ones((1, n)), weight[enough][:RESAMPLES]])


def _quantiles(middle: np.ndarray, found: np.ndarray, level: float) -> Answer:
    lo, hi = np.quantile(found, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return middle, lo, hi


BASELINES: dict[str, Callable[..., Answer | None]] = {
    "nls+t": nls,
    "bootstrap": bootstrap,
    "pinned E": pinned,
    "huber": huber,
}
