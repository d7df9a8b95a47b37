"""design: what band to expect at the target before anything is trained, and what more would buy.

The prior predictive: laws are drawn from the prior, the ladder's final losses simulated under each (with seed
noise and discrepancy), every simulated ladder is solved by the posterior of `fit`, and the half-widths of the
bands are gathered. It is what the law expects of itself: a ladder that bends is not in it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri

from analysis.fitting import FARTHEST, TRANSFER, refuse_too_little
from analysis.frame import AnalysisError
from analysis.laws import COMPUTE, choose, decades
from analysis.posterior import solve, wiener
from analysis.priors import exponent_grid, load_prior, noise_grid
from ladder.accounting import eval_points, scaling_flops
from ladder.gating import gate_of, waves
from ladder.numerals import power
from ladder.spec import Ladder

LEVEL = 0.9  # of the band at the target
DRAWS = 64
SEED = 0
COARSE = {"g": {"grid": [0.02, 0.34, 17]}, "s": {"grid": [0.0008, 0.08, 8]}}  # moves half-widths by under 2 %
ROOM = 2.0  # target over top rung, in FLOPs, from which a rung between them is proposed

Run = tuple[str, float]  # rung, FLOPs of the whole run


@dataclass(frozen=True)
class Choice:
    """A way to run the ladder, or a gated rung, and the band of `level` to expect.

    half_width: relative to the band's median; its median over simulated ladders, 8 of 10 of which lie between
    low and high. extra_flops: beyond the ladder as declared; extra_of_target: the same over the target's
    declared FLOPs. times: FLOPs of what is predicted over the largest run that it is predicted from.
    """

    what: str
    level: float
    half_width: float
    low: float
    high: float
    extra_flops: float
    extra_of_target: float
    times: float


@dataclass(frozen=True)
class Design:
    """Expected bands. choices: at the target, the ladder as declared first, then with something more; gates:
    those that gated rungs are held against. target_flops: of the target as declared."""

    ladder: str
    target: str
    target_flops: float
    unit: str
    choices: tuple[Choice, ...]
    gates: tuple[Choice, ...]

    @property
    def half_width(self) -> float:
        """Of the 90 % band at the target, relative, for the ladder as declared."""
        return self.choices[0].half_width

    def frame(self) -> pd.DataFrame:
        """A row a choice, then a row a gate: the columns of Choice, and kind (choice or gate)."""
        kinds = {"choice": self.choices, "gate": self.gates}
        return pd.DataFrame([{"kind": kind, **asdict(row)} for kind, rows in kinds.items() for row in rows])

    def to_json(self) -> str:
        return json.dumps(asdict(self), allow_nan=False)

    def __str__(self) -> str:
        return self.summary()

    def summary(self) -> str:
        """A table of the expected bands and of what more would cost, and the gates."""
        first = self.choices[0]
        wide = max(len(choice.what) for choice in self.choices)
        lines = [
            f"{self.target}, {first.times:.3g}x the top rung: the band to expect, {TRANSFER}",
            f"{'':<{wide}}  90 % band  8 of 10 ladders  more FLOPs  of target",
        ]
        for choice in self.choices:
            cost = power(choice.extra_flops) if choice.extra_flops else "-"
            share = f"{100 * choice.extra_of_target:.3g} %" if choice.extra_flops else "-"
            lines.append(
                f"{choice.what:<{wide}}  {_percent(choice.half_width):>9}  "
                f"{_range(choice):>15}  {cost:>10}  {share:>9}"
            )
        if self.gates:
            words = (f"{gate.what} {_percent(gate.half_width)}" for gate in self.gates)
            lines.append(f"gates, {100 * self.gates[0].level:g} % band: {', '.join(words)}")
        lines.append("simulated under the law and its prior: a ladder that bends is not in it")
        return "\n".join(lines)


def design(ladder: Ladder) -> Design:
    """The band to expect at the target under prior P0, and what one more rung, one more seed of the cheap
    rungs, twice the FLOPs or twice the tokens would make of it. Always the same answer; about two seconds.

    Raises AnalysisError: no_target, target_too_far, too_few_runs, span_too_small, one_run_a_budget,
    joint_law_missing.
    """
    if ladder.target is None:
        raise AnalysisError("no_target", f"ladder {ladder.name} has no target to expect a band at")
    rows = pd.DataFrame(
        eval_points(spec, run)[-1] | {"rung": rung.name} for rung in ladder.rungs for run, spec in rung.runs
    )
    refuse_too_little(zip(rows["rung"], rows["flops"], strict=True))
    choose("auto", rows)
    runs: list[Run] = list(zip(rows["rung"], rows["flops"], strict=True))
    target, top = float(scaling_flops(ladder.target.run)), float(rows["flops"].max())
    if target > FARTHEST * top:
        text = (
            f"the target is {target / top:.0f}x the top rung in FLOPs: beyond {FARTHEST:.0f}x there is a "
            "point and no band; add larger rungs"
        )
        raise AnalysisError("target_too_far", text)
    unit, prior = ladder.target.run.evaluation.unit, load_prior(COARSE)

    def choice(what: str, chosen: Sequence[Run], aim: float, level: float, extra: float) -> Choice:
        widths, weight = half_widths(chosen, aim, prior, unit, level)
        low, middle, high = _weighted_quantiles(widths, weight, (0.1, 0.5, 0.9))
        return Choice(
            what, level, middle, low, high, extra, extra / target, aim / max(flops for _, flops in chosen)
        )

    spent = sum(flops for _, flops in runs)
    choices = [choice("as declared", runs, target, LEVEL, 0.0)]
    for what, chosen in _more(runs, target):
        choices.append(choice(what, chosen, target, LEVEL, sum(flops for _, flops in chosen) - spent))
    longer = {"what": "twice the tokens, the target's too", "extra_flops": spent + target}
    longer["extra_of_target"] = longer["extra_flops"] / target
    choices.append(replace(choices[0], **longer))  # to the law, which knows ratios of FLOPs, the same ladder
    return Design(ladder.name, ladder.target.name, target, unit, tuple(choices), _gates(ladder, runs, choice))


def _more(runs: list[Run], target: float) -> list[tuple[str, list[Run]]]:
    """Ladders with a little more than declared."""
    rungs = sorted({flops: rung for rung, flops in runs}.items())
    flops = np.array([size for size, _ in rungs])
    found = []

    def rung(where: str, size: float) -> None:
        found.append((f"a rung {where}, {power(size)} FLOPs", [*runs, ("one more", size)]))

    rung(f"below {rungs[0][1]}", flops[0] ** 2 / flops[1])
    gap = int(np.argmax(flops[1:] / flops[:-1]))
    rung(f"between {rungs[gap][1]} and {rungs[gap + 1][1]}", float(np.sqrt(flops[gap] * flops[gap + 1])))
    if target >= ROOM * flops[-1]:
        rung(f"above {rungs[-1][1]}", float(np.sqrt(flops[-1] * target)))
    cheap = rungs[: max(1, len(rungs) // 2)]
    seeds = [(rung, size) for size, rung in cheap]
    found.append((f"a seed more of {', '.join(rung for rung, _ in seeds)}", [*runs, *seeds]))
    if target > 2 * flops[-1]:
        found.append(("twice the FLOPs in every rung", [(rung, 2 * size) for rung, size in runs]))
    return found


def _gates(ladder: Ladder, runs: list[Run], choice: Any) -> tuple[Choice, ...]:
    """The bands that gated rungs are to land in, where the rungs below carry a law."""
    gate, found = gate_of(ladder), []
    below: list[str] = []
    for wave in waves(ladder):
        if gate and below:
            known = [(rung, flops) for rung, flops in runs if rung in below]
            try:
                refuse_too_little(known)
            except AnalysisError:
                pass  # `ladder run` says that this rung is not predicted
            else:
                size = next(flops for rung, flops in runs if rung == wave[0].name)
                found.append(choice(wave[0].name, known, size, gate.level, 0.0))
        below += [rung.name for rung in wave]
    return tuple(found)


def half_widths(
    runs: Sequence[Run], target: float, prior: Mapping[str, Any], unit: str, level: float, draws: int = DRAWS
) -> tuple[np.ndarray, np.ndarray]:
    """Relative half-widths of the band at `target` FLOPs, one for each simulated ladder, and the weights of
    these. (draws,), (draws,)"""
    final = _table(runs)
    losses, weight = simulate(final, prior, unit, draws)
    at, tail = pd.DataFrame({"flops": [target]}), (1 - level) / 2
    widths = np.empty(draws)
    for k, loss in enumerate(losses):
        final["loss"] = loss
        band = solve(COMPUTE, final, prior, unit).predictive(at)[0]
        widths[k] = (band.quantile(1 - tail) - band.quantile(tail)) / 2 / band.quantile(0.5)
    return widths, weight


def _table(runs: Sequence[Run]) -> pd.DataFrame:
    """A row a run: rung, numbered in order of appearance, and flops."""
    number = {rung: k for k, rung in enumerate(dict.fromkeys(rung for rung, _ in runs))}
    return pd.DataFrame({"rung": [number[rung] for rung, _ in runs], "flops": [flops for _, flops in runs]})


def simulate(
    final: pd.DataFrame, prior: Mapping[str, Any], unit: str, draws: int
) -> tuple[np.ndarray, np.ndarray]:
    """Final losses (draws, runs) of ladders that obey the law and the prior, and weights (draws,).

    final: a row a run, with rung (0, 1, ... in order of appearance) and flops. A prior that is relative to
    the ladder's own losses (`scale`) is solved for the laws that agree with it. The draws are a Latin
    hypercube; two designs that begin with the same runs meet the same luck.
    """
    u = decades(final, COMPUTE.reference(final))
    column, noise_column, bend_column = (_hypercube(draws, stream) for stream in range(3))
    theta, log_g = exponent_grid(COMPUTE, prior)
    g = _from_grid(theta[:, 0], log_g, column())
    E, K, weight = _coefficients(prior, unit, 10.0 ** (-g * u.max()), column(), column())
    tau = np.asarray(prior["tau"]["values"])
    tau = tau[(column() * len(tau)).astype(int)]
    s, log_s = noise_grid(prior["s"])
    s = np.exp(_from_grid(np.log(s), log_s, column()))
    noise = ndtri(np.stack([noise_column() for _ in u], axis=1))
    trend = E[:, None] + K[:, None] * 10.0 ** (-g[:, None] * u)
    rung, first = np.unique(final["rung"], return_index=True)
    values, vectors = np.linalg.eigh(wiener(u[first], u.max()))
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    bend = (ndtri(np.stack([bend_column() for _ in rung], axis=1)) @ root)[:, final["rung"]]
    scale = trend.mean(axis=1, keepdims=True)
    return trend + scale * (tau[:, None] * bend + s[:, None] * noise), weight


def _coefficients(
    prior: Mapping[str, Any], unit: str, fall: np.ndarray, e: np.ndarray, k: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """E, K and weight of each draw. fall: the largest rung's C^-g; e, k: levels in (0, 1)."""
    floor, excess = prior["E"][unit], prior["K"]  # K is relative to a third of the largest loss, E + K
    if floor["scale"] == "lowest_loss":  # in units of E + K: E = share (E + K fall), and so K is given too
        share = _normal_between(floor, 0.0, 1.0, e)
        E = share * fall / (1 - share + share * fall)
        return E, 1 - E, np.exp(-0.5 * ((3 * (1 - E) - excess["mean"]) / excess["sd"]) ** 2)
    E = _normal_between(floor, 0.0, np.inf, e)
    k = _normal_between(excess, 0.0, 3.0, k)
    return E, k * E / (3 - k), np.ones(len(E))


def _normal_between(entry: Mapping[str, Any], low: float, high: float, level: np.ndarray) -> np.ndarray:
    ends = ndtr((np.array([low, high]) - entry["mean"]) / entry["sd"])
    return entry["mean"] + entry["sd"] * ndtri(ends[0] + level * (ends[1] - ends[0]))


def _from_grid(values: np.ndarray, log_density: np.ndarray, level: np.ndarray) -> np.ndarray:
    weight = np.exp(log_density - log_density.max())
    weight /= weight.sum()
    return np.interp(level, np.cumsum(weight) - weight / 2, values)


def _hypercube(draws: int, stream: int) -> Callable[[], np.ndarray]:
    """Answers the next column of a Latin hypercube: the levels (k + 1/2) / draws, shuffled. (draws,)"""
    rng = np.random.default_rng((SEED, stream))
    return lambda: (rng.permutation(draws) + 0.5) / draws


def _weighted_quantiles(values: np.ndarray, weight: np.ndarray, levels: Sequence[float]) -> list[float]:
    order = np.argsort(values)
    share = weight[order] / weight.sum()
    return np.interp(levels, np.cumsum(share) - share / 2, values[order]).tolist()


def _percent(half_width: float) -> str:
    return f"±{100 * half_width:.2f} %"


def _range(choice: Choice) -> str:
    return f"{100 * choice.low:.2f} to {100 * choice.high:.2f} %"
