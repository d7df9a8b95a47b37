"""Incidents of public training runs, rebuilt as rows that carry the values of their logs.

A trace runs at its level, with AR(1) noise (rho .3) of the loss and independent noise of the norms, then
takes the listed values, then returns to its level unless its row says otherwise. Numbers that no log gives
(how a climb is spread over steps, rows before the incident) are this file's. Steps are those of the log.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

LOSS_SD, MARIN_SD, NORM_SD, RHO = 0.008, 0.004, 0.12, 0.3
BEFORE = 1500  # rows before an incident: three memories of the spike detector

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Flat:
    """A frozen forecast that promises `level` from 1 % of the run on: +-1, 2, 4 % at 50, 90, 99 %."""

    steps: int
    level: float
    sha256: str = "0" * 64
    metric: str = "eval_loss"

    def frame(self, levels: tuple[float, ...] = (0.5, 0.9, 0.99)) -> pd.DataFrame:
        progress = np.geomspace(0.01, 1, 40)
        out = pd.DataFrame({"run": "target", "step": progress * self.steps, "tokens": progress * self.steps})
        out["progress"], out["median"] = progress, self.level
        for level in levels:
            half, name = {0.5: 0.01, 0.9: 0.02, 0.99: 0.04}[level], f"{100 * level:g}"
            for prefix, factor in (("", 1.0), ("sim_", 1.5)):
                out[f"{prefix}lo{name}"] = self.level * (1 - factor * half)
                out[f"{prefix}hi{name}"] = self.level * (1 + factor * half)
        return out


@dataclass(frozen=True)
class Incident:
    """name; steps of the whole run; level of the loss; rows(rng); judge(states by step, codes by step)."""

    name: str
    steps: int
    level: float
    rows: Callable[[np.random.Generator], Rows]
    judge: Callable[["Seen"], bool]
    wanted: str


@dataclass(frozen=True)
class Seen:
    """What a monitor said: state and new evidence codes a row, in order."""

    steps: list[int]
    states: list[str]
    codes: list[set[str]]

    def first(self, *states: str) -> float:
        """The first step in one of the states (inf: never)."""
        return next(
            (s for s, state in zip(self.steps, self.states, strict=True) if state in states), math.inf
        )

    def said(self, *codes: str) -> float:
        """The first step with one of the codes (inf: never)."""
        return next((s for s, c in zip(self.steps, self.codes, strict=True) if c & set(codes)), math.inf)

    @property
    def worst(self) -> str:
        order = ("normal", "watch", "precursor", "runaway")
        return max(self.states, key=order.index)


def ar1(rng: np.random.Generator, n: int, rho: float, sd: float) -> np.ndarray:
    """Stationary Gaussian AR(1) noise (n,)."""
    noise = rng.standard_normal(n) * math.sqrt(1 - rho**2)
    noise[0] /= math.sqrt(1 - rho**2)
    for i in range(1, n):
        noise[i] += rho * noise[i - 1]
    return sd * noise


def trace(
    rng: np.random.Generator,
    start: int,
    stop: int,
    loss: float,
    grad: float,
    sd: float = LOSS_SD,
    every: int = 1,
) -> Rows:
    """Clean rows of steps start, start + every, ... below stop, at a level of loss and gradient norm."""
    steps = np.arange(start, stop, every)
    noise = ar1(rng, len(steps), RHO, sd)
    norms = np.exp(NORM_SD * rng.standard_normal((len(steps), 2)))
    return [
        {
            "step": int(s),
            "tokens": int(s),
            "train_ce": loss * math.exp(e),
            "grad_norm": grad * float(g),
            "update_norm": 0.1 * float(u),
        }
        for s, e, (g, u) in zip(steps, noise, norms, strict=True)
    ]


def put(rows: Rows, at: int, **series: list[float]) -> None:
    """Write the listed values over the rows from step `at` on."""
    first = next(k for k, row in enumerate(rows) if row["step"] >= at)
    for name, values in series.items():
        for k, value in enumerate(values):
            rows[first + k][name] = value


def scale(rows: Rows, name: str, factors: Iterator[float] | np.ndarray, at: int) -> None:
    """Multiply `name` from step `at` on, one factor a row."""
    first = next(k for k, row in enumerate(rows) if row["step"] >= at)
    for row, factor in zip(rows[first:], factors, strict=False):
        row[name] *= float(factor)


def bloom_176b(rng: np.random.Generator) -> Rows:
    rows = trace(rng, 31214 - BEFORE, 31600, 2.2, 0.242)
    grad = [0.242, 0.947, 2.39, 15.9, 145, 960, 353, 379, 650]
    loss = [2.199, 2.220, 2.595, 2.242, 2.345, 5.098, 3.49, 3.21, 2.80]
    fall = np.linspace(0, 1, 30)[1:-1]  # between the listed ends, by steps 31223-31250: geometric
    put(rows, 31214, grad_norm=[*grad, *(650 * (0.267 / 650) ** fall), 0.267])
    put(rows, 31214, train_ce=[*loss, *(2.80 * (2.216 / 2.80) ** fall), 2.216])
    return rows


def exp_11(rng: np.random.Generator) -> Rows:
    rows = trace(rng, 11447 - BEFORE, 11600, 3.06, 1.3e4)
    put(rows, 11446, grad_norm=[1.3e4, 2.6e5, 2.6e5], train_ce=[3.06, 3.11, 7.71])
    return rows


def exp_12(rng: np.random.Generator) -> Rows:
    rows = trace(rng, 8738 - BEFORE, 9028, 3.32, 9e4)
    put(rows, 8738, grad_norm=[2.3e5, 9e4, 1.5e6, 3.3e6], train_ce=[3.32, 3.42, 3.68, 7.27, 4.13, 7.60])
    rows[-1]["train_ce"] = math.nan
    return rows


def exp_1(rng: np.random.Generator) -> Rows:
    """The loss scale halves each 500 steps from 4.7k on; evaluations each 250 steps follow training."""
    rows = trace(rng, 4000, 7221, 6.44, 1.0)
    for row in rows:
        row["loss_scale"] = 65536.0 / 2 ** max(
            0, (row["step"] - 4700) // 500 + 1 if row["step"] >= 4700 else 0
        )
        if row["step"] % 250 == 0:
            row["eval_loss"] = 7.17 if row["step"] >= 7000 else 6.44 * math.exp(0.002 * rng.standard_normal())
    climb = np.linspace(6.44, 11.4, 20)
    put(rows, 7000, train_ce=[*climb, *(11.4 * (7.16 / 11.4) ** np.linspace(0, 1, 20)), *([7.16] * 181)])
    return rows


def bloom_13b(rng: np.random.Generator) -> Rows:
    rows = trace(rng, 29040 - BEFORE, 30100, 2.77, 0.2)
    for row in rows:
        row["loss_scale"] = 65536.0 if row["step"] < 29045 else 4096.0 if row["step"] < 29540 else 65536.0
    fall = 8.72 * (2.77 / 8.72) ** np.linspace(0, 1, 450)
    put(rows, 29040, train_ce=[*np.linspace(2.77, 7.34, 10), *np.linspace(7.34, 8.72, 40), *fall])
    put(rows, 29040, grad_norm=[0.0] * 50)
    return rows


def exp_b(rng: np.random.Generator) -> Rows:
    rows = trace(rng, 17060 - BEFORE, 17069, 2.67, 4e5)
    put(rows, 17060, grad_norm=[464441.887] * 9, train_ce=list(np.linspace(2.67, 4.37, 9)))
    for row in rows:
        row["skipped"] = row["step"] >= 17060
    return rows


def opt_43(rng: np.random.Generator) -> Rows:
    """Gradient and activation norm double over 2 % of the run's 140k steps."""
    rows = trace(rng, 60000, 66000, 2.0, 0.2)
    for row in rows:
        row["activation_norm"] = 50 * math.exp(0.02 * rng.standard_normal())
        factor = 2 ** min(max((row["step"] - 62000) / 2800, 0), 1)
        row["grad_norm"] *= factor
        row["activation_norm"] *= factor
    return rows


def opt_45(rng: np.random.Generator) -> Rows:
    rows = trace(rng, 60000, 63000, 2.0, 0.2)
    for at in (61500, 61600, 61700):
        put(rows, at, grad_norm=[4.0])
    scale(rows, "train_ce", np.exp(np.linspace(0, 0.2, 1000)), 61701)
    return rows


def marin_1390(rng: np.random.Generator) -> Rows:
    """1.96 -> 2.02 held for 8 rows, then 1.975 for good."""
    rows = trace(rng, 70000 - BEFORE, 71000, 1.96, 0.3, MARIN_SD)
    scale(rows, "train_ce", np.array([2.02 / 1.96] * 8 + [1.975 / 1.96] * 992), 70000)
    return rows


def marin_1368(rng: np.random.Generator) -> Rows:
    """26 spikes of 5 steps in 2,500; the update norm doubles 3 steps ahead of each."""
    rows = trace(rng, 60000 - BEFORE, 62500, 2.0, 0.3, MARIN_SD)
    for at in range(60010, 62500, 96):
        scale(rows, "update_norm", np.full(3, 2.0), at)
        scale(rows, "train_ce", np.full(5, 1.035), at + 3)
    return rows


def marin_190k(rng: np.random.Generator) -> Rows:
    """The training loss steps up by .5 %; evaluations each 500 steps stay."""
    rows = trace(rng, 186000, 193000, 1.95, 0.3, MARIN_SD)
    scale(rows, "train_ce", np.full(3000, 1.005), 190000)
    for row in rows:
        if row["step"] % 500 == 0:
            row["eval_loss"] = 1.95 * math.exp(0.0005 * rng.standard_normal())
    return rows


def marin_535b_norm(rng: np.random.Generator) -> Rows:
    rows = trace(rng, 50000, 104000, 2.0, 0.28, MARIN_SD, every=10)
    for row in rows:
        row["grad_norm"] *= (0.59 / 0.28) ** min(max((row["step"] - 58000) / 42000, 0), 1)
        row["grad_norm/head"] = row["grad_norm"] * math.sqrt(0.95)
        row["norm/head"] = 20 * math.exp(0.01 * rng.standard_normal())
    return rows


def marin_535b_drops(rng: np.random.Generator) -> Rows:
    rows = trace(rng, 0, 100000, 2.0, 0.3, MARIN_SD, every=10)
    for row in rows:
        row["drop_fraction"] = 0.027 + 0.007 * row["step"] / 1e5 + 0.0005 * rng.standard_normal()
    return rows


def bloom_throughput(rng: np.random.Generator) -> Rows:
    rows = trace(rng, 30000, 33000, 2.3, 0.3)
    for row in rows:
        flops = 149 if row["step"] < 31500 else 140
        row["tokens_per_s"] = 1e3 * flops * math.exp(0.005 * rng.standard_normal())
    return rows


def restart(rng: np.random.Generator) -> Rows:
    """200 steps are trained again, each row twice, by a new attempt; then once more without saying so, from
    within the window after a single spike."""
    rows = trace(rng, 10000, 13000, 2.3, 0.3)
    put(rows, 12000, train_ce=[2.3 * 1.07])
    first = [row | {"attempt": 1} for row in rows[:1500]]
    again = [row | {"attempt": 2} for row in rows[1300:2100]]
    return first + [row for row in again for _ in range(2)] + [row | {"attempt": 2} for row in rows[1990:]]


def insane(rng: np.random.Generator) -> Rows:
    rows = [{"step": s, "tokens": s, "train_ce": 3.0} for s in range(1, 302)]
    put(rows, 1, train_ce=[1e9])
    put(rows, 301, train_ce=[300.0])
    return rows


def never_above_watch(seen: Seen) -> bool:
    return seen.worst in ("normal", "watch")


INCIDENTS = (
    Incident("BLOOM-176B 31214", 95000, 2.2, bloom_176b, lambda s: s.first("precursor", "runaway") <= 31217
             and s.first("runaway") <= 31223 and s.said("recovered") <= 31450,
             "precursor <= 31217, runaway <= 31223, recovery <= 31450"),
    Incident("BLOOM-104B exp 11", 100000, 3.06, exp_11, lambda s: s.first("precursor") == 11447,
             "precursor one step before the jump"),
    Incident("BLOOM-104B exp 12", 100000, 3.32, exp_12, lambda s: 8738 <= s.first("runaway") <= 9027,
             "runaway <= 9027"),
    Incident("BLOOM-104B exp 1", 100000, 6.44, exp_1, lambda s: s.first("watch") < 7000
             and s.said("loss_scale") < 7000 <= s.first("runaway"), "watch (sensor) < 7000, runaway after"),
    Incident("BLOOM-13B 29040", 300000, 2.77, bloom_13b, lambda s: s.said("dead", "stuck") <= 29043
             and s.worst == "runaway" and s.said("recovered") < 30100, "sensor <= 3 steps, recovery"),
    Incident("BLOOM-104B b 17060", 100000, 2.67, exp_b, lambda s: s.said("stuck", "skipping") <= 17063
             and s.worst == "runaway", "sensor <= 3 steps, runaway"),
    Incident("OPT-175B 12.43", 140000, 2.0, opt_43, lambda s: s.worst == "precursor"
             and s.said("growth") < math.inf, "precursor: two families"),
    Incident("OPT-175B 12.45.2", 140000, 2.0, opt_45, lambda s: s.worst == "runaway", "runaway"),
    Incident("Marin 32B 1390", 160000, 1.96, marin_1390, lambda s: s.said("not_recovered") < math.inf
             and s.worst == "runaway", "runaway: not recovered"),
    Incident("Marin 32B 1368", 160000, 2.0, marin_1368, lambda s: s.worst == "precursor", "precursor"),
    Incident("Marin 32B 190k", 250000, 1.95, marin_190k, never_above_watch, "never above watch: data order"),
    Incident("Marin 535B grad norm", 390251, 2.0, marin_535b_norm, never_above_watch, "never above watch"),
    Incident("Marin 535B drops", 390251, 2.0, marin_535b_drops, lambda s: s.worst == "normal", "normal"),
    Incident("BLOOM throughput", 95000, 2.3, bloom_throughput, lambda s: never_above_watch(s)
             and s.said("throughput") < math.inf, "never above watch: throughput"),
    Incident("restart, duplicates", 95000, 2.3, restart, never_above_watch, "never above watch"),
    Incident("first value 1e9", 10000, 3.0, insane, lambda s: s.first("watch") == 301, "second spike found"),
)  # fmt: skip


def watch(incident: Incident, seed: int) -> Seen:
    """Replay one incident with one seed."""
    from analysis.monitor import Monitor

    monitor = Monitor(Flat(incident.steps, incident.level))  # type: ignore[arg-type]
    steps, states, codes = [], [], []
    for row in incident.rows(np.random.default_rng(seed)):
        verdict = monitor.update(row)
        steps.append(row["step"])
        states.append(verdict.state)
        codes.append(
            {e["code"] for e in verdict.evidence if e["level"] != "normal" or e["code"] == "recovered"}
        )
    return Seen(steps, states, codes)
