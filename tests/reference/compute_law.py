"""The compute law by brute force: sums over dense grids of E and K, loops over everything else.

A slow twin of analysis.posterior for the compute law. Nothing is shared with it: the discrepancy's covariance
is a numerical integral, positivity is the grid's edge, tempering is a power of each run's noise density.
"""

import math

import numpy as np


def wiener_covariance(d, e, steps=4000):
    """Covariance of an integrated Wiener process, started flat at 0, at distances d and e (same side)."""
    near = min(d, e)
    t = (np.arange(steps) + 0.5) / steps * near
    return float(np.sum((d - t) * (e - t)) * near / steps)


def discrepancy(points, top):
    """Covariance of delta at the points (decades), anchored at top, the two sides independent; unit rate."""
    cov = np.zeros((len(points), len(points)))
    for i, a in enumerate(points):
        for j, b in enumerate(points):
            if (a - top) * (b - top) > 0:
                cov[i, j] = wiener_covariance(abs(a - top), abs(b - top))
    return cov


def cdf(u, y, target, thresholds, E_prior, K_prior, g_nodes, tau_nodes, s_nodes, temper, edges, size=400):
    """P(new loss at target <= threshold) for each threshold.

    u, y: decades and losses of the runs; E_prior, K_prior: (mean, sd) in loss units; g_nodes: (value,
    log weight) pairs; s_nodes likewise; tau_nodes: values of equal weight; edges: of E and of K.
    """
    scale = sum(y) / len(y)
    (E_lo, E_hi), (K_lo, K_hi) = edges
    E = (E_lo + (np.arange(size) + 0.5) / size * (E_hi - E_lo))[:, None]
    K = (K_lo + (np.arange(size) + 0.5) / size * (K_hi - K_lo))[None, :]
    log_prior = -0.5 * ((E - E_prior[0]) / E_prior[1]) ** 2 - 0.5 * ((K - K_prior[0]) / K_prior[1]) ** 2
    top = max(u)
    W = discrepancy([*u, target], top)
    log_weights, tables = [], []
    for g, log_g in g_nodes:
        residual = [y_i - (E + K * 10 ** (-g * u_i)) for u_i, y_i in zip(u, y, strict=True)]
        for tau in tau_nodes:
            for s, log_s in s_nodes:
                noise = scale**2 * (tau**2 * W[:-1, :-1] + s**2 / temper * np.eye(len(u)))
                inverse = np.linalg.inv(noise)
                square = sum(
                    inverse[i, j] * residual[i] * residual[j] for i in range(len(u)) for j in range(len(u))
                )
                log_like = -0.5 * (square + math.log(np.linalg.det(noise)))
                # of N(y; f + delta, s^2)^temper, the part that is no normal density in y
                log_like += 0.5 * len(u) * (math.log(s**2 / temper) - temper * math.log(s**2))
                gain = scale**2 * tau**2 * W[-1, :-1] @ inverse
                mean = E + K * 10 ** (-g * target) + sum(k * r for k, r in zip(gain, residual, strict=True))
                var = scale**2 * (tau**2 * W[-1, -1] + s**2) - gain @ (scale**2 * tau**2 * W[:-1, -1])
                log_weights.append(log_prior + log_like + log_g + log_s)
                tables.append([normal_cdf((t - mean) / math.sqrt(var)) for t in thresholds])
    largest = max(w.max() for w in log_weights)
    total, below = 0.0, np.zeros(len(thresholds))
    for w, table in zip(log_weights, tables, strict=True):
        weight = np.exp(w - largest)
        total += weight.sum()
        below += [(weight * p).sum() for p in table]
    return below / total


def normal_cdf(x):
    """Abramowitz & Stegun 26.2.17 (error below 7.5e-8): shares no code with scipy."""
    t = 1 / (1 + 0.2316419 * np.abs(x))
    series = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    upper = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi) * series
    return np.where(x > 0, 1 - upper, upper)
