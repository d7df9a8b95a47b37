"""The plan of an expert-parallel layer, row by row and round by round, in numpy.

`expert` is int[S, N, K], the choices of all devices; expert E stands for none.
"""

import numpy as np


def fair_shares(demand: np.ndarray, limit: int, turn: int) -> np.ndarray:
    """Rounds: one row to each cell that still wants one, the first of a round being cell `turn`, until
    the limit is reached. demand: int[M]."""
    share, left = np.zeros_like(demand), limit
    while left and (share < demand).any():
        for cell in np.roll(np.arange(len(demand)), -turn):
            if left and share[cell] < demand[cell]:
                share[cell] += 1
                left -= 1
    return share


def accepted(counts: np.ndarray, pair: int, receiver: int, turn: int) -> np.ndarray:
    """int[S, E] -> int[S, E]: first every pair of devices, then every receiver."""
    S, E = counts.shape
    cells = counts.reshape(S, S, E // S).copy()
    for s in range(S):
        for r in range(S):
            cells[s, r] = fair_shares(cells[s, r], pair, turn % (E // S))
    for r in range(S):
        pool = cells[:, r].ravel()
        cells[:, r] = fair_shares(pool, receiver, turn % len(pool)).reshape(S, E // S)
    return cells.reshape(S, E)


def kept(expert: np.ndarray, accepted: np.ndarray) -> np.ndarray:
    """bool[S, N, K]: the first accepted[s, e] assignments of each cell."""
    taken, keep = np.zeros_like(accepted), np.zeros(expert.shape, bool)
    for s, t, k in np.ndindex(*expert.shape):
        e = expert[s, t, k]
        if e < accepted.shape[1] and taken[s, e] < accepted[s, e]:
            taken[s, e] += 1
            keep[s, t, k] = True
    return keep


def counts(expert: np.ndarray, experts: int) -> np.ndarray:
    return np.stack([np.bincount(each.ravel(), minlength=experts + 1)[:experts] for each in expert])
