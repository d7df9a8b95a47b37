"""The Huber fit against SciPy's L-BFGS: python -m bench.hubers [--sets 50] [--starts 4500] [--refits 4000]

245 public points (LADDER_PUBLIC_DATA) and synthetic sets of their sizes with known laws. SciPy runs with the
analytic gradient from the grid of starts of Hoffmann et al. 2022; on the synthetic sets from 24 of them.
Times are seconds of this process's CPU. The last line is JSON.
"""

import argparse
import itertools
import json
import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from analysis.hubers import DELTA, huber_fit, refits

POWERS = np.arange(0, 2.5, 0.5)
GRID = list(
    itertools.product(np.arange(-1, 1.5, 0.5), np.arange(0, 30, 5), np.arange(0, 30, 5), POWERS, POWERS)
)


def objective(p: np.ndarray, x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> tuple[float, np.ndarray]:
    e, a, b, alpha, beta = p
    parts = np.stack([np.full(len(y), e), a - alpha * x[0], b - beta * x[1]])
    top = parts.max(axis=0)
    share = np.exp(parts - top)
    r = top + np.log(share.sum(axis=0)) - y
    share /= share.sum(axis=0)
    slope, size = weight * np.clip(r, -DELTA, DELTA), np.abs(r)
    value = weight @ np.where(size <= DELTA, r * r / 2, DELTA * (size - DELTA / 2))
    return value, np.array([*(share @ slope), -(share[1] * x[0]) @ slope, -(share[2] * x[1]) @ slope])


def scipy_best(x: np.ndarray, y: np.ndarray, starts, weight=None) -> float:
    options = {"maxiter": 2000, "ftol": 1e-14, "gtol": 1e-11}
    weight = np.ones(len(y)) if weight is None else weight
    runs = (
        minimize(objective, s, (x, y, weight), jac=True, method="L-BFGS-B", options=options) for s in starts
    )
    return min(run.fun for run in runs)


def synthetic(seed: int, x: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(seed)
    alpha, beta = rng.normal(0.34, 0.05, 2)
    law = rng.normal(1.7, 0.1) + 0.9 * np.exp(-alpha * (x[0] - x[0].mean()))
    law += 0.7 * np.exp(-beta * (x[1] - x[1].mean()))
    return np.log(law) + 0.004 * rng.standard_t(4, len(law))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("sets", 50), ("starts", 4500), ("refits", 4000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    table = pd.read_csv(Path(os.environ["LADDER_PUBLIC_DATA"]) / "chinchilla_epoch" / "runs.csv")
    x, y = np.log(table[["params_active", "tokens"]].to_numpy().T), np.log(table["final_loss"].to_numpy())
    rng = np.random.default_rng(0)

    began = time.process_time()
    best = huber_fit(x, y)
    ours = time.process_time() - began
    starts = [GRID[k] for k in rng.permutation(len(GRID))[: options.starts]]
    began = time.process_time()
    theirs_best = scipy_best(x, y, starts)
    theirs = time.process_time() - began

    apart = []
    for seed in range(options.sets):
        points = synthetic(seed, x)
        few = [GRID[k] for k in rng.permutation(len(GRID))[:24]]
        apart.append(huber_fit(x, points).objective / scipy_best(x, points, few) - 1)

    weight = rng.multinomial(len(y), np.full(len(y), 1 / len(y)), size=options.refits).astype(float)
    began = time.process_time()
    refits(best, x, y, weight)
    ours_refit = (time.process_time() - began) / options.refits
    P = np.concatenate([np.log(best.coefficients), best.exponents])
    P[1:3] += best.exponents * best.centre
    few = min(options.refits, 100)
    began = time.process_time()
    for w in weight[:few]:
        scipy_best(x, y, [P], w)
    theirs_refit = (time.process_time() - began) / few
    print(
        json.dumps(
            {
                "points": len(y),
                "ours_s": ours,
                "scipy_s": theirs,
                "scipy_starts": len(starts),
                "times_faster": theirs / ours,
                "objective_ratio_less_1": best.objective / theirs_best - 1,
                "sets": options.sets,
                "worst_set_ratio_less_1": max(apart),
                "refit_ours_s": ours_refit,
                "refit_scipy_s": theirs_refit,
                "refit_times_faster": theirs_refit / ours_refit,
            }
        )
    )


if __name__ == "__main__":
    main()
