"""The Huber fit on log losses that the field uses (Hoffmann et al. 2022, appendix D.3), projected.

    minimise sum_i w_i Huber_delta(log f_i - log L_i),   f_i = sum_k exp(c_k - e_k x_ki),  x_0 = 0

With x = (log C) it is L = E + K C^-g, with x = (log N, log D) the five-parameter law. For fixed exponents the
coefficients are found by a few reweighted least-squares steps, so that the search for a start is over the
exponents alone; the best starts are polished by Newton steps in all parameters at once, whole batches of
starts or bootstrap resamples together.

Axes: M fits, n runs, q exponents, P = q + 1 coefficients.
"""

from dataclasses import dataclass

import numpy as np

DELTA = 1e-3
STARTS = np.geomspace(0.03, 1.6, 11)  # of each exponent
POLISHED = 8  # best starts
STEPS = 200  # Newton steps at most
BATCH = 512  # fits at a time


@dataclass(frozen=True)
class HuberFit:
    """coefficients (P,): E, then one a term, in loss units at `centre` (q,), the mean of each x;
    exponents (q,); objective."""

    coefficients: np.ndarray
    exponents: np.ndarray
    centre: np.ndarray
    objective: float

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Loss at x (q, m). (m,)"""
        at = x - self.centre[:, None]
        terms = self.coefficients[1:, None] * np.exp(-self.exponents[:, None] * at)
        return self.coefficients[0] + terms.sum(axis=0)


def huber_fit(x: np.ndarray, log_loss: np.ndarray, delta: float = DELTA) -> HuberFit:
    """The best fit found. x (q, n): logs of the sizes; log_loss (n,)."""
    centre = x.mean(axis=1)
    at = x - centre[:, None]
    starts = _starts(at, log_loss, delta)
    theta, objective = _newton(starts, at, log_loss, np.ones((1, log_loss.size)), delta)
    best = int(objective.argmin())
    P = len(x) + 1
    return HuberFit(np.exp(theta[best, :P]), theta[best, P:], centre, float(objective[best]))


def refits(fit: HuberFit, x: np.ndarray, log_loss: np.ndarray, weight: np.ndarray, delta: float = DELTA):
    """The fit again under weights (M, n), such as bootstrap counts, started from `fit`: a fit a row."""
    at = x - fit.centre[:, None]
    start = np.concatenate([np.log(fit.coefficients), fit.exponents])
    P, found = len(x) + 1, []
    for k in range(0, len(weight), BATCH):
        part = weight[k : k + BATCH]
        theta, objective = _newton(np.tile(start, (len(part), 1)), at, log_loss, part, delta)
        found += [
            HuberFit(np.exp(t[:P]), t[P:], fit.centre, float(o))
            for t, o in zip(theta, objective, strict=True)
        ]
    return found


def _starts(at: np.ndarray, log_loss: np.ndarray, delta: float) -> np.ndarray:
    """Variable projection on a grid of exponents: the best starts, (POLISHED, P + q)."""
    q = len(at)
    nodes = np.stack([m.ravel() for m in np.meshgrid(*[STARTS] * q, indexing="ij")], axis=-1)  # (M, q)
    loss = np.exp(log_loss)
    terms = np.concatenate([np.ones((len(nodes), 1, at.shape[1])), np.exp(-nodes[:, :, None] * at)], axis=1)
    coefficients = np.full((len(nodes), q + 1), loss.min() / (q + 1))
    weight = np.broadcast_to(loss**-2, (len(nodes), loss.size))  # d log L = dL / L
    for _ in range(8):
        A = np.einsum("mn,mkn,mln->mkl", weight, terms, terms, optimize=True)
        A += 1e-9 * np.trace(A, axis1=1, axis2=2)[:, None, None] * np.eye(q + 1)
        b = np.einsum("mn,mkn,n->mk", weight, terms, loss, optimize=True)
        coefficients = np.maximum(np.linalg.solve(A, b[..., None])[..., 0], 1e-3 * loss.min())
        r = np.log(np.einsum("mk,mkn->mn", coefficients, terms)) - log_loss
        weight = loss**-2 * np.minimum(1, delta / np.maximum(np.abs(r), 1e-12))
    objective = _huber(r, delta).sum(axis=1)
    best = np.argsort(objective, kind="stable")[:POLISHED]
    return np.concatenate([np.log(coefficients[best]), nodes[best]], axis=1)


def _huber(r: np.ndarray, delta: float) -> np.ndarray:
    size = np.abs(r)
    return np.where(size <= delta, 0.5 * r**2, delta * (size - 0.5 * delta))


def _newton(
    theta: np.ndarray, at: np.ndarray, log_loss: np.ndarray, weight: np.ndarray, delta: float
) -> tuple[np.ndarray, np.ndarray]:
    """Damped Newton steps with |Hessian| for every row of theta (M, P + q); weight (M, n) or (1, n).

    Returns theta and the objective (M,). A step is taken only where it lowers the objective.
    """
    theta = theta.copy()
    damping = np.full(len(theta), 1e-3)
    value, gradient, hessian = _derivatives(theta, at, log_loss, weight, delta)
    going = np.arange(len(theta))
    for _ in range(STEPS):
        values, vectors = np.linalg.eigh(hessian[going])
        size = np.abs(values) + damping[going, None] * np.abs(values).max(axis=1, keepdims=True)
        step = -np.einsum("mij,mj->mi", vectors, np.einsum("mij,mi->mj", vectors, gradient[going]) / size)
        step /= np.maximum(1, np.abs(step).max(axis=1, keepdims=True))
        tried = theta[going] + step
        own = weight if len(weight) == 1 else weight[going]
        new, new_gradient, new_hessian = _derivatives(tried, at, log_loss, own, delta)
        better = new < value[going]
        gain = value[going] - new
        taken = going[better]
        theta[taken], value[taken] = tried[better], new[better]
        gradient[taken], hessian[taken] = new_gradient[better], new_hessian[better]
        damping[going] = np.where(better, damping[going] / 8, damping[going] * 6)
        done = np.where(better, gain < 1e-15 * value[going], damping[going] > 1e12)
        going = going[~done]
        if not len(going):
            break
    return theta, value


def _derivatives(
    theta: np.ndarray, at: np.ndarray, log_loss: np.ndarray, weight: np.ndarray, delta: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Objective (M,), gradient (M, P + q) and Hessian (M, P + q, P + q), exact within each Huber branch."""
    q, n = at.shape
    P, M = q + 1, len(theta)
    parts = np.broadcast_to(theta[:, :P, None], (M, P, n)).copy()
    parts[:, 1:] -= theta[:, P:, None] * at
    top = parts.max(axis=1)
    parts = np.exp(parts - top[:, None])
    total = parts.sum(axis=1)
    share = parts / total[:, None]  # (M, P, n)
    r = top + np.log(total) - log_loss
    slope = weight * np.clip(r, -delta, delta)
    J = np.concatenate([share, -at * share[:, 1:]], axis=1)  # (M, P + q, n)
    gradient = np.einsum("mn,mjn->mj", slope, J)
    hessian = (J * (weight * (np.abs(r) <= delta) - slope)[:, None]) @ J.transpose(0, 2, 1)
    pulled = slope[:, None] * share  # (M, P, n)
    k, e = np.arange(P), np.arange(P, P + q)
    hessian[:, k, k] += pulled.sum(axis=2)
    cross = (pulled[:, 1:] * -at).sum(axis=2)
    hessian[:, k[1:], e] += cross
    hessian[:, e, k[1:]] += cross
    hessian[:, e, e] += (pulled[:, 1:] * at**2).sum(axis=2)
    return (weight * _huber(r, delta)).sum(axis=1), gradient, hessian
