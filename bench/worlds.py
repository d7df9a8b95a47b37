"""Synthetic ladders, where the truth is known: python -m bench.worlds FILE [--ladders 200]

Five worlds of four-rung ladders over 1.5 decades, predicted 5, 20, 100 and 300 times beyond the top rung:

prior   drawn from the prior and the discrepancy that the fit assumes
broken  a power law whose exponent changes by 40 % either way, over a decade, around the top rung
bent    the same by 20 %
floor   E two prior sds below or above the prior's mean
drift   a recipe that gets better or worse with size, by up to 1 % a decade squared beyond the first rung

FILE gets a JSON line a ladder and is resumed when called again. `summary` reads it.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.backtests import clopper_pearson, interval_score
from analysis.laws import COMPUTE
from analysis.posterior import solve, wiener
from analysis.priors import load_prior

WORLDS = ("prior", "broken", "floor", "drift", "bent")
RUNGS = np.array([0.0, 0.5, 1.0, 1.5])  # decades
TIMES = (5, 20, 100, 300)
LEVEL = 0.9


def losses(world: str, rng: np.random.Generator, prior: dict) -> np.ndarray:
    """Of the rungs and of each target, (4 + 4,)."""
    u = np.concatenate([RUNGS, RUNGS[-1] + np.log10(TIMES)])
    g, E, k = -1.0, -1.0, 3.0
    while not 0.02 < g < 0.34:
        g = rng.normal(prior["g"]["mean"], prior["g"]["sd"])
    floor = prior["E"]["nats/token"]
    while E <= 0:
        E = rng.normal(floor["mean"], floor["sd"])
    if world == "floor":
        E = floor["mean"] + rng.choice([-2, 2]) * floor["sd"]
    while not 0.1 < k < 2.4:
        k = rng.normal(prior["K"]["mean"], prior["K"]["sd"])
    K = E * (k / 3) / (1 - k / 3)  # so that K is k times a third of the largest loss
    fall = g * u
    if world in ("broken", "bent"):
        change = 0.4 if world == "broken" else 0.2
        bend = 0.25 * np.logaddexp(0, (u - RUNGS[-1]) / 0.25)  # 0 below the top rung, u - top above it
        fall = g * (u + rng.choice([-change, change]) * bend)
    trend = E + K * 10.0**-fall
    s = prior["s"]["scale"] * np.sqrt(prior["s"]["nu"] / rng.chisquare(prior["s"]["nu"]))
    relative = s * rng.standard_normal(len(u))
    if world == "prior":
        tau = rng.choice(prior["tau"]["values"])
        root = np.linalg.cholesky(wiener(u, RUNGS[-1]) + 1e-12 * np.eye(len(u)))
        relative += tau * root @ rng.standard_normal(len(u))
    if world == "drift":
        relative += rng.uniform(-0.01, 0.01) * u**2 / 2
    return trend * (1 + relative)


def ladder(world: str, k: int, prior: dict) -> dict:
    y = losses(world, np.random.default_rng((WORLDS.index(world), k)), prior)
    final = pd.DataFrame({"rung": range(4), "flops": 1e18 * 10.0**RUNGS, "loss": y[:4]})
    targets = pd.DataFrame({"flops": 1e18 * 10.0 ** (RUNGS[-1] + np.log10(TIMES))})
    found = solve(COMPUTE, final, prior, "nats/token").predictive(targets)
    tail = (1 - LEVEL) / 2
    bands = [[mixture.quantile(q) for q in (tail, 0.5, 1 - tail)] for mixture in found]
    return {"world": world, "ladder": k, "loss": y[4:].tolist(), "bands": bands}


def summary(path: Path) -> pd.DataFrame:
    """world, times, ladders, coverage with its 95 % interval, half_width and score (means, relative)."""
    done = [json.loads(line) for line in path.read_text().splitlines()]
    rows = []
    for world in WORLDS:
        mine = [each for each in done if each["world"] == world]
        for j, times in enumerate(TIMES if mine else ()):
            loss = np.array([each["loss"][j] for each in mine])
            lo, middle, hi = np.array([each["bands"][j] for each in mine]).T
            hits = int(((lo <= loss) & (loss <= hi)).sum())
            low, high = clopper_pearson(hits, len(mine))
            rows.append(
                {
                    "world": world, "times": times, "ladders": len(mine), "coverage": hits / len(mine),
                    "cp_lo95": low, "cp_hi95": high, "half_width": ((hi - lo) / 2 / middle).mean(),
                    "mean_error": np.abs(middle / loss - 1).mean(),
                    "score": (interval_score(loss, lo, hi, LEVEL) / loss).mean(),
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--ladders", type=int, default=200)
    options = parser.parse_args()
    done = set()
    if options.file.exists():
        done = {(x["world"], x["ladder"]) for x in map(json.loads, options.file.read_text().splitlines())}
    prior = load_prior()
    with options.file.open("a") as out:
        for k in range(options.ladders):
            for world in WORLDS:
                if (world, k) not in done:
                    out.write(json.dumps(ladder(world, k, prior)) + "\n")
                    out.flush()
    print(summary(options.file).round(3).to_string(index=False))


if __name__ == "__main__":
    main()
