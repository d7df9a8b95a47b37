"""MuonH, AdamH, Adam and their schedule, written as the formulas stand: float64, one matrix at a time."""

import numpy as np

QUINTICS = [
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
]


def orthogonalized(matrix):
    """Newton-Schulz on the wide orientation, with the factor that the sphere makes irrelevant."""
    rows, columns = matrix.shape
    x = matrix.T if rows > columns else matrix
    x = x / (np.linalg.norm(x) + 1e-8)
    for a, b, c in QUINTICS:
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    x = x.T if rows > columns else x
    return x * np.sqrt(max(1, columns / rows))


def spheres(p):
    """Index of each part of a tensor that has a norm of its own: layers of a stack, else the whole."""
    return range(len(p)) if p.ndim >= 3 else [...]


def on_spheres(p, u, lr):
    new = np.empty_like(p)
    for part in spheres(p):
        radius = np.linalg.norm(p[part])
        q = p[part] - lr * u[part] * radius / max(np.linalg.norm(u[part]), 1e-10)
        new[part] = q * radius / max(np.linalg.norm(q), 1e-10)
    return new


class MuonH:
    def __init__(self, p, momentum=0.95):
        self.m, self.momentum = np.zeros_like(p), momentum

    def step(self, p, g, lr):
        self.m = self.momentum * self.m + g
        u = self.momentum * self.m + g
        for index in np.ndindex(u.shape[:-2]):
            u[index] = orthogonalized(u[index])
        return on_spheres(p, u, lr)


class Adam:
    def __init__(self, p, beta1, beta2, eps):
        self.m, self.v, self.t = np.zeros_like(p), np.zeros_like(p), 0
        self.beta1, self.beta2, self.eps = beta1, beta2, eps

    def direction(self, g):
        self.t += 1
        self.m = self.beta1 * self.m + (1 - self.beta1) * g
        self.v = self.beta2 * self.v + (1 - self.beta2) * g * g
        mean, square = self.m / (1 - self.beta1**self.t), self.v / (1 - self.beta2**self.t)
        return mean / (np.sqrt(square) + self.eps)

    def step(self, p, g, lr, decay=0.0):
        return p - lr * (self.direction(g) + decay * p)


class AdamH(Adam):
    def step(self, p, g, lr):
        return on_spheres(p, self.direction(g), lr)


def rate(t, steps, peak, warmup, final):
    """Learning rate of update number t (0 first)."""
    w = int(warmup * steps)
    if t < w:
        return peak * t / w
    return peak + (final * peak - peak) * (t - w) / (steps - w)
