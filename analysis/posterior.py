"""The posterior of a law on a grid, in closed form: no optimiser, no sampling, the same answer every time.

    y_i = X_i(theta) beta + Lbar (delta(u_i) + eps_i)
    beta ~ N(m, S), beta > 0      theta, tau, s on grids      eps_i ~ N(0, s^2)
    delta: integrated Wiener process from the top rung outward, sd(d decades) = tau sqrt(d^3 / 3)

Axes: G exponent nodes, T tau nodes, S noise nodes, J = G T S, n runs, P coefficients, M targets.
Given a node everything is Gaussian (Rasmussen & Williams 2006, section 2.7: explicit basis functions). Given
delta, each run's noise density is raised to t = min(1, 12 / rungs), since many points of one family are not
many facts: s^2 / t in place of s^2, and the matching constant. delta is part of the law, and not
tempered.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from analysis.frame import AnalysisError
from analysis.laws import Law, decades
from analysis.priors import coefficient_prior, exponent_grid, noise_grid

FULL_WEIGHT_RUNGS = 12
QUADRATURE = {2: (32,), 3: (12, 12)}  # points for all coefficients but the last, by P
NEGLIGIBLE = 1e-6  # nodes below this weight are left out of a mixture
CERTAIN = 0.9999  # probability of positive coefficients above which it is taken as 1
INSIDE = 0.99  # and above which a node's Gaussian is used uncut


gauss_legendre = cache(np.polynomial.legendre.leggauss)


@dataclass(frozen=True)
class Mixture:
    """A finite mixture of normals: weight, mean, sd, each (K,), weights adding up to 1."""

    weight: np.ndarray
    mean: np.ndarray
    sd: np.ndarray

    def cdf(self, value: float) -> float:
        return float(self.weight @ ndtr((value - self.mean) / self.sd))

    def quantile(self, q: float) -> float:
        """The value below which the mixture has probability q in (0, 1), by root finding."""
        z = ndtri(q)
        ends = self.mean + z * self.sd
        low, high = float(ends.min()), float(ends.max())
        if high - low <= 1e-12 * abs(high):
            return high
        pad = 1e-9 * (high - low)
        close = 1e-13 * max(abs(low), abs(high))
        found: Any = brentq(lambda x: self.cdf(x) - q, low - pad, high + pad, xtol=close)
        return float(found)

    @property
    def average(self) -> float:
        return float(self.weight @ self.mean)

    @property
    def variance(self) -> float:
        return float(self.weight @ (self.sd**2 + (self.mean - self.average) ** 2))

    def spread(self, count: int) -> np.ndarray:
        """Quantiles (k + 1/2) / count, increasing, (count,), from a finely tabulated cdf."""
        ends = self.quantile(1e-6), self.quantile(1 - 1e-6)
        x = np.linspace(*ends, 1024)
        table = ndtr((x[:, None] - self.mean) / self.sd) @ self.weight
        return np.interp((np.arange(count) + 0.5) / count, table, x)


@dataclass(frozen=True)
class Posterior:
    """Node axes flattened to J = G T S. `mean` (J, P) and `cov` (J, P, P) of the coefficients before the
    positivity constraint, `weight` (J,) after it. Build one with `solve`."""

    law: Law
    reference: Mapping[str, float]
    loss_scale: float  # Lbar, mean fitted loss
    theta: np.ndarray  # (G, exponents)
    tau: np.ndarray  # (T,)
    s: np.ndarray  # (S,)
    weight: np.ndarray
    mean: np.ndarray
    cov: np.ndarray
    u: np.ndarray  # (n,)
    y: np.ndarray  # (n,)
    X: np.ndarray  # (G, n, P)
    basis: tuple[np.ndarray, np.ndarray]  # eigenvalues (n,) and vectors (n, n) of the unit discrepancy

    @cached_property
    def _parts(self) -> "_Parts":
        """The posterior as Gaussian parts that respect beta > 0: heavy nodes near the boundary are split."""
        keep = self.weight > NEGLIGIBLE
        inside = positive_bound(self.mean, self.cov)
        split = np.flatnonzero(keep & (inside < INSIDE))
        whole = np.flatnonzero(keep & (inside >= INSIDE))
        node, weight = [whole], [self.weight[whole]]
        mean, cov = [self.mean[whole]], [self.cov[whole]]
        if len(split):
            w, points, last_var = truncated(self.mean[split], self.cov[split])  # (J', Q), (J', Q, P), (J', Q)
            share = w / np.maximum(w.sum(axis=1, keepdims=True), 1e-300)
            count = w.shape[1]
            node.append(np.repeat(split, count))
            weight.append((self.weight[split, None] * share).ravel())
            mean.append(points.reshape(-1, points.shape[-1]))
            inner = np.zeros((len(mean[-1]), *self.cov.shape[1:]))
            inner[:, -1, -1] = last_var.ravel()
            cov.append(inner)
        total = np.concatenate(weight)
        return _Parts(np.concatenate(node), total / total.sum(), np.concatenate(mean), np.concatenate(cov))

    def _axes(self, node: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return np.unravel_index(node, (len(self.theta), len(self.tau), len(self.s)))  # type: ignore[return-value]

    def predictive(self, rows) -> list[Mixture]:
        """Prediction of a new finished run at each of M rows: coefficients, discrepancy and noise."""
        parts, (g, t, s) = self._parts, self._axes(self._parts.node)
        h = self.law.terms(self.theta, rows, self.reference)  # (G, M, P)
        u = decades(rows, self.reference)
        out = []
        for k in range(len(u)):
            gain, form = self._discrepancy(u[k])  # (T, S, n), (T, S)
            if gain.any():  # inside the rungs the discrepancy is partly known
                adjusted = h[g, k] - np.einsum("jn,jnp->jp", gain[t, s], self.X[g])
                shift = gain[t, s] @ self.y
            else:
                adjusted, shift = h[g, k], 0.0
            mean = np.einsum("jp,jp->j", adjusted, parts.mean) + shift
            var = np.einsum("jp,jpq,jq->j", adjusted, parts.cov, adjusted)
            var = var + self.loss_scale**2 * (form[t, s] + self.s[s] ** 2)
            out.append(Mixture(parts.weight, mean, np.sqrt(var)))
        return out

    def _discrepancy(self, at: float) -> tuple[np.ndarray, np.ndarray]:
        """delta(at) given the residuals: gain (T, S, n) on them and the variance left (T, S), relative."""
        known = wiener(np.append(self.u, at), self.u.max())
        cross, own = known[-1, :-1], known[-1, -1]
        values, vectors = self.basis
        tau2 = (self.tau**2)[:, None]
        if not cross.any():
            return np.zeros((len(self.tau), len(self.s), len(self.u))), np.broadcast_to(
                tau2 * own, (len(self.tau), len(self.s))
            )
        rotated = vectors.T @ cross
        scaled = tau2[:, :, None] * rotated / (tau2[:, :, None] * values + (self.s**2)[None, :, None])
        return scaled @ vectors.T, tau2 * own - tau2 * (scaled @ rotated)

    def variance_shares(self, row) -> dict[str, float]:
        """Shares of the predictive variance: `noise` of the new run, `form` (discrepancy), `prior` (what the
        prior leaves open about the coefficients and exponents, after the data)."""
        parts, (_, t, s) = self._parts, self._axes(self._parts.node)
        total = self.predictive(row)[0].variance
        _, form = self._discrepancy(float(decades(row, self.reference)[0]))
        noise = float(parts.weight @ (self.loss_scale * self.s[s]) ** 2) / total
        shape = float(parts.weight @ form[t, s]) * self.loss_scale**2 / total
        return {"prior": max(0.0, 1 - noise - shape), "form": shape, "noise": noise}

    def coefficient(self, name: str) -> Mixture:
        """Posterior of one coefficient (loss units)."""
        k = self.law.coefficients.index(name)
        parts = self._parts
        sd = np.sqrt(np.maximum(parts.cov[:, k, k], (1e-6 * self.loss_scale) ** 2))
        return Mixture(parts.weight, parts.mean[:, k], sd)

    def exponent(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Grid values and posterior probabilities of one exponent."""
        values = self.theta[:, self.law.exponents.index(name)]
        by_node = self.weight.reshape(len(self.theta), -1).sum(axis=1)
        grid, where = np.unique(values, return_inverse=True)
        return grid, np.bincount(where, by_node)

    @property
    def noise(self) -> float:
        """Posterior mean of s, the relative run-to-run noise."""
        return float(self.weight.reshape(-1, len(self.s)).sum(axis=0) @ self.s)

    def trend(self, rows) -> np.ndarray:
        """Posterior mean of the law itself at each row, without discrepancy and noise. (M,)"""
        parts, (g, _, _) = self._parts, self._axes(self._parts.node)
        h = self.law.terms(self.theta, rows, self.reference)
        return np.einsum("j,jmp,jp->m", parts.weight, h[g], parts.mean)


@dataclass(frozen=True)
class _Parts:
    node: np.ndarray
    weight: np.ndarray
    mean: np.ndarray
    cov: np.ndarray


def wiener(u: np.ndarray, anchor: float) -> np.ndarray:
    """Covariance (n, n) of an integrated Wiener process that starts flat at `anchor` and runs outward on both
    sides, unit rate: var(d) = d^3 / 3, cov(d, e) = d^2 (3 e - d) / 6 for d <= e on one side, 0 across."""
    d = u - anchor
    near = np.minimum(abs(d)[:, None], abs(d)[None, :])
    far = np.maximum(abs(d)[:, None], abs(d)[None, :])
    return np.where(d[:, None] * d[None, :] > 0, near**2 * (3 * far - near) / 6, 0.0)


def solve(law: Law, final, prior: Mapping[str, Any], unit: str) -> Posterior:
    """The posterior of `law` given finished runs (columns loss, rung and the law's own). No refusals here."""
    y = final["loss"].to_numpy(float)
    reference = law.reference(final)
    scale = float(y.mean())
    m, sd = coefficient_prior(law, prior, unit, y)
    theta, log_theta = exponent_grid(law, prior)
    tau = np.asarray(prior["tau"]["values"], float)
    s, log_s = noise_grid(prior["s"])
    X = law.terms(theta, final, reference)
    u = decades(final, reference)
    temper = min(1.0, FULL_WEIGHT_RUNGS / final["rung"].nunique())

    values, vectors = np.linalg.eigh(wiener(u, u.max()))  # rotates every node's covariance to a diagonal
    values = np.maximum(values, 0.0)
    noise2 = (scale * s) ** 2  # (S,)
    D = (scale * tau[:, None, None]) ** 2 * values + (noise2 / temper)[None, :, None]  # (T, S, n)
    Xr = np.einsum("nk,gnp->gkp", vectors, X)
    r = (y - X @ m) @ vectors  # (G, n): residual about the prior mean, rotated
    info = 1 / D
    A = np.einsum("tsk,gkp,gkq->gtspq", info, Xr, Xr, optimize=True)
    c = np.einsum("tsk,gkp,gk->gtsp", info, Xr, r, optimize=True)
    fit_term = np.einsum("tsk,gk,gk->gts", info, r, r, optimize=True)
    precision = A + np.diag(sd**-2.0)
    cov = np.linalg.inv(precision)
    step = np.einsum("gtspq,gtsq->gtsp", cov, c)
    log_weight = -0.5 * (
        fit_term
        - np.einsum("gtsp,gtsp->gts", c, step)
        + np.log(D).sum(axis=-1)
        - len(y) * (np.log(noise2 / temper) - temper * np.log(noise2))
        + np.linalg.slogdet(precision)[1]
    )
    log_weight = log_weight + log_theta[:, None, None] + log_s
    mean = (m + step).reshape(-1, len(m))
    cov = cov.reshape(-1, *cov.shape[-2:])
    weight = np.exp(log_weight - log_weight.max()).ravel()
    close = np.flatnonzero((weight > NEGLIGIBLE / len(weight)) & (positive_bound(mean, cov) < CERTAIN))
    weight[close] *= truncated(mean[close], cov[close])[0].sum(axis=1)
    if not weight.sum() > 0:
        raise AnalysisError(
            "no_positive_law",
            f"no {law.equation} with positive {', '.join(law.coefficients)} describes losses {y.min():.4g} "
            f"to {y.max():.4g}: does the loss fall with FLOPs?",
        )
    return Posterior(
        law, reference, scale, theta, tau, s, weight / weight.sum(), mean, cov, u, y, X, (values, vectors)
    )


def positive_bound(mean: np.ndarray, cov: np.ndarray) -> np.ndarray:
    """A lower bound (J,) of the probability that all of N(mean, cov) are positive (Bonferroni)."""
    return 1 - ndtr(-mean / np.sqrt(np.diagonal(cov, axis1=1, axis2=2))).sum(axis=1)


def truncated(mean: np.ndarray, cov: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """N(mean, cov) cut to the positive orthant, as Q points a node: Gauss-Legendre quadrature in the
    probability of all coefficients but the last (Genz 1992), exact moments of the last one given those.

    mean (J, P), cov (J, P, P) -> weight (J, Q), whose sum is the orthant's probability; point (J, Q, P);
    variance of the last coefficient at each point (J, Q).
    """
    J, P = mean.shape
    L = np.linalg.cholesky(cov)
    axes = [gauss_legendre(q) for q in QUADRATURE[P]]
    levels = np.stack(
        [m.ravel() for m in np.meshgrid(*[(x + 1) / 2 for x, _ in axes], indexing="ij")], axis=-1
    )
    weight = np.prod(
        np.stack([m.ravel() for m in np.meshgrid(*[w / 2 for _, w in axes], indexing="ij")]), axis=0
    )
    weight = np.broadcast_to(weight, (J, len(weight)))
    z = np.zeros((J, weight.shape[1], P))
    for k in range(P - 1):
        centre = mean[:, None, k] + np.einsum("jqi,ji->jq", z[:, :, :k], L[:, k, :k])
        room = ndtr(centre / L[:, None, k, k])
        z[:, :, k] = -ndtri(np.maximum(room * (1 - levels[:, k]), 1e-300))
        weight = weight * room
    point = mean[:, None] + np.einsum("jqi,jpi->jqp", z, L)
    sd = L[:, None, -1, -1]
    cut = -point[:, :, -1] / sd
    room = np.maximum(ndtr(-cut), 1e-300)
    mills = np.exp(-0.5 * np.minimum(cut, 37.0) ** 2) / np.sqrt(2 * np.pi) / room
    mills = np.where(cut > 30, cut + 1 / np.maximum(cut, 1), mills)
    point[:, :, -1] += sd * mills
    return weight * room, point, sd**2 * np.clip(1 + cut * mills - mills**2, 0, 1)
