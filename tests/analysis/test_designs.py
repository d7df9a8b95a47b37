"""What a ladder may expect of its band before it is trained, and what more of it would buy."""

import json
import re
import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis.designs import COARSE, half_widths, simulate
from analysis.frame import AnalysisError
from analysis.priors import load_prior
from ladder import Ladder, Rung, RunSpec
from ladder.accounting import scaling_flops
from ladder.recipe import laptop

REFERENCE = Path(__file__).parents[1] / "reference"
PATHS = runpy.run_path(str(REFERENCE / "expected_width.py"))
LAW = runpy.run_path(str(REFERENCE / "compute_law.py"))


def ladder_of(*widths: int, target: int = 72, **changes) -> Ladder:
    rungs = tuple(Rung(name=f"d{width}", run=laptop(width)) for width in widths)
    return Ladder(name="laptop", rungs=rungs, target=Rung(name="target", run=laptop(target)), **changes)


@pytest.fixture(scope="module")
def designed() -> analysis.Design:
    return analysis.design(ladder_of(32, 40, 48, 56))


def test_the_expected_band_is_the_one_that_the_trained_ladder_got(designed):
    """experiments/README.md: the laptop ladder's losses and its frozen half-width of 1.04 %."""
    assert designed.half_width == pytest.approx(0.0104, rel=0.15)
    first = designed.choices[0]
    assert first.low < 0.0104 < first.high
    assert first.extra_flops == 0 and first.times == pytest.approx(2.19, abs=0.01)
    again = analysis.design(ladder_of(32, 40, 48, 56))
    assert again == designed


def test_what_more_would_buy_and_what_it_costs(designed):
    frame = designed.frame().set_index("what")
    target = float(scaling_flops(laptop(72)))
    spent = sum(float(scaling_flops(laptop(width))) for width in (32, 40, 48, 56))
    above = next(what for what in frame.index if what.startswith("a rung above d56"))
    assert frame["half_width"][above] < 0.85 * designed.half_width
    assert frame["extra_flops"][above] == pytest.approx((scaling_flops(laptop(56)) * target) ** 0.5)
    assert frame["half_width"]["twice the FLOPs in every rung"] < 0.8 * designed.half_width
    assert frame["extra_flops"]["twice the FLOPs in every rung"] == pytest.approx(spent)
    seeds = float(scaling_flops(laptop(32)) + scaling_flops(laptop(40)))
    assert frame["extra_flops"]["a seed more of d32, d40"] == pytest.approx(seeds)
    assert frame["half_width"]["a seed more of d32, d40"] <= designed.half_width
    assert (frame["extra_of_target"] == frame["extra_flops"] / target).all()
    assert not any("above" in what for what in analysis.design(ladder_of(32, 48, 64)).frame()["what"])


def test_twice_the_tokens_of_all_runs_is_the_same_ladder_to_the_law(designed):
    def longer(run: RunSpec) -> RunSpec:
        return run.replace(steps=2 * run.steps)

    ladder = ladder_of(32, 40, 48, 56)
    twice = ladder.replace(
        rungs=tuple(rung.replace(run=longer(rung.run)) for rung in ladder.rungs),
        target=ladder.target.replace(run=longer(ladder.target.run)),
    )
    row = designed.choices[-1]
    assert row.what.startswith("twice the tokens")
    assert analysis.design(twice).half_width == pytest.approx(row.half_width, rel=1e-9)


def test_a_farther_target_has_a_wider_band(designed):
    assert analysis.design(ladder_of(32, 40, 48, 56, target=120)).half_width > 2 * designed.half_width


def test_gates_are_expected_to_narrow_as_rungs_are_added(designed):
    frame = designed.frame()
    gates = frame[frame["kind"] == "gate"]
    assert list(gates["what"]) == ["d48", "d56"] and (gates["level"] == 0.99).all()
    assert list(gates["times"]) == pytest.approx(
        [scaling_flops(laptop(big)) / scaling_flops(laptop(small)) for big, small in ((48, 40), (56, 48))]
    )
    assert gates["half_width"].is_monotonic_decreasing
    assert analysis.design(ladder_of(32, 40, 48, 56, gate=None)).gates == ()


def test_it_reads_as_text_and_as_json(designed):
    text, value = str(designed), json.loads(designed.to_json())
    assert "the band to expect, given that the recipe transfers" in text.splitlines()[0]
    assert re.search(r"as declared +±1.\d\d % ", text) and "gates, 99 % band: d48 ±2." in text
    assert value["choices"][0]["half_width"] == designed.half_width
    assert value["target_flops"] == float(scaling_flops(laptop(72)))


@pytest.mark.parametrize(
    ("ladder", "code"),
    [
        (ladder_of(32, 48).replace(target=None), "no_target"),
        (ladder_of(32), "too_few_runs"),
        (ladder_of(8, 16, target=512), "target_too_far"),
        (
            Ladder(
                name="uneven",
                rungs=(Rung(name="a", run=laptop(16)), Rung(name="b", run=laptop(32, tokens_per_active=80))),
                target=Rung(name="t", run=laptop(48)),
            ),
            "one_ratio_needed",
        ),
    ],
)
def test_a_ladder_that_no_band_can_be_expected_of_is_refused(ladder, code):
    with pytest.raises(AnalysisError) as refused:
        analysis.design(ladder)
    assert refused.value.code == code


SIZES = [("a", 1.0), ("a", 1.0), ("b", 5.0), ("c", 30.0)]
NUMBERED = pd.DataFrame({"rung": [0, 0, 1, 2], "flops": [size for _, size in SIZES]})


@pytest.mark.parametrize("unit", ["other", "nats/token"])
def test_simulated_ladders_against_plain_monte_carlo(unit):
    """Relative falls, replicates and curvature, at five quantiles; 3 % of each spread is twice the twin's
    own error. A K that is well known matters in both units."""
    prior = load_prior({"K": {"mean": 1.0, "sd": 0.3}})
    losses, weight = simulate(NUMBERED, prior, unit, 4096)
    rng = np.random.default_rng(5)
    u = np.log10(NUMBERED["flops"].to_numpy())
    twin = np.array([PATHS["ladder"](rng, u, NUMBERED["rung"], prior, unit) for _ in range(3000)])

    def looks(y: np.ndarray) -> dict[str, np.ndarray]:
        return {
            "fall": np.log(y[:, 3] / y[:, 0]),
            "curvature": np.log(y[:, 2] ** 2 / y[:, 0] / y[:, 3]),
            "replicates": np.log(y[:, 1] / y[:, 0]),
        }

    levels = [0.05, 0.25, 0.5, 0.75, 0.95]
    for name, values in looks(losses).items():
        order = np.argsort(values)
        share = np.cumsum(weight[order]) / weight.sum()
        fast = np.interp(levels, share, values[order])
        slow = np.quantile(looks(twin)[name], levels)
        assert np.allclose(fast, slow, atol=0.03 * np.ptp(slow)), (name, fast, slow)


def test_half_widths_against_brute_force():
    """Each simulated ladder is solved by sums over dense grids of E and K."""
    grids = {
        "g": {"grid": [0.08, 0.26, 3]},
        "tau": {"values": [0.006, 0.03]},
        "s": {"grid": [0.008, 0.03, 2], "scale": 0.01},
    }
    prior = load_prior(grids)
    target, count = 300.0, 3
    widths, _ = half_widths(SIZES, target, prior, "other", 0.9, count)
    losses, _ = simulate(NUMBERED, prior, "other", count)
    nodes = {name: np.array(values) for name, values in {"g": [0.08, 0.17, 0.26], "s": [0.008, 0.03]}.items()}
    log_g = -0.5 * ((nodes["g"] - 0.14) / 0.045) ** 2
    log_s = -6 * np.log(nodes["s"]) - 3 * (0.01 / nodes["s"]) ** 2
    u = np.log10(NUMBERED["flops"].to_numpy())
    for y, width in zip(losses, widths, strict=True):
        thresholds = y[-1] * np.linspace(0.55, 1.1, 45)
        below = LAW["cdf"](
            u,
            y,
            np.log10(target),
            thresholds,
            (0.6 * y.min(), 0.15 * y.min()),
            (0.5 * y.max(), 0.5 * y.max()),
            list(zip(nodes["g"], log_g, strict=True)),
            [0.006, 0.03],
            list(zip(nodes["s"], log_s, strict=True)),
            1.0,
            ((0.0, y.max()), (0.0, 1.5 * y.max())),
        )
        low, middle, high = np.interp([0.05, 0.5, 0.95], below, thresholds)
        assert width == pytest.approx((high - low) / 2 / middle, rel=0.02)


def test_the_coarse_grids_are_fine_enough():
    for target in (60.0, 300.0):
        coarse, _ = half_widths(SIZES, target, load_prior(COARSE), "other", 0.9, 8)
        fine, _ = half_widths(SIZES, target, load_prior(), "other", 0.9, 8)
        # the draws of g and s come from the grids, too, and move a little with them
        assert np.median(coarse) == pytest.approx(np.median(fine), rel=0.03)
