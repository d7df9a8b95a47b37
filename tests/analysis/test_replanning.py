"""Four ways on for a run that is under way, recomputed by hand from the frozen law."""

import math

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis.frame import AnalysisError
from analysis.replanning import replan

TARGET = 1e20
STEPS, TOKENS = 10_000, 10**10


def law(flops):
    return 1.8 + 1.2 * (np.asarray(flops) / 1e17) ** -0.16


@pytest.fixture(scope="module")
def promise():
    runs = [
        {"run": f"r{k}", "flops": c * x, "progress": x, "loss": float(law(c)) * x**-0.05}
        for k, c in enumerate((1e17, 3e17, 1e18, 3e18, 1e19))
        for x in (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
    ]
    points = [
        {"run": "target", "flops": TARGET * x, "progress": x, "step": STEPS * x, "tokens": TOKENS * x}
        for x in (0.05, 0.1, 0.15, 0.2, 0.4, 0.7, 1.0)
    ]
    return analysis.forecast(analysis.fit(pd.DataFrame(runs)), pd.DataFrame(points))


def evaluations(promise, percent, progress=(0.05, 0.1, 0.15)):
    return pd.DataFrame(
        [
            {"tokens": TOKENS * x, "eval_loss": promise.at(progress=x).median * (1 + percent / 100)}
            for x in progress
        ]
    )


def test_four_options_by_hand(promise):
    found = replan(promise, evaluations(promise, 1.0), price_per_flop=1e-18).set_index("option")
    assert list(found.index) == ["continue", "shorten", "retime", "restart"]
    end, curve = promise.at(progress=1.0), promise.scaling()
    short = np.interp(math.log(0.75 * TARGET), np.log(curve["flops"]), curve["median"])
    wanted = [1.01 * end.median, 1.01 * short, 1.01 * end.median, end.median]
    assert found["loss"].to_list() == pytest.approx(wanted, rel=1e-9)
    assert short == pytest.approx(float(law(0.75 * TARGET)), rel=0.01)
    assert found["hi90"]["continue"] == pytest.approx(1.01 * end.hi)
    assert found["tokens"].to_list() == [round(f * TOKENS) for f in (0.85, 0.6, 0.85, 1.0)]
    assert found["tokens_saved"].to_list() == [round(f * TOKENS) for f in (0, 0.25, 0, -0.15)]
    assert found["cost"].to_list() == pytest.approx([85, 60, 85, 100])
    assert found["mixture_from"]["shorten"] == pytest.approx(0.6)  # the last fifth of the shorter run
    assert found["inside"]["restart"] == pytest.approx(0.9, abs=0.02)
    assert found["inside"]["continue"] < found["inside"]["restart"]


def test_a_restart_is_no_choice_late(promise):
    late = replan(promise, evaluations(promise, 1.0, (0.2, 0.4)))
    assert "restart" not in set(late["option"])


@pytest.mark.parametrize(
    ("options", "code"),
    [({"shorten": {"horizon": 0.1}}, "bad_option"), ({"shorten": {"horizn": 0.5}}, "bad_option"),
     ({"retime": {"decay_from": 1.5}}, "bad_option")],
)  # fmt: skip
def test_what_cannot_be_is_refused(promise, options, code):
    with pytest.raises(AnalysisError) as refused:
        replan(promise, evaluations(promise, 1.0), options)
    assert refused.value.code == code


def test_a_run_without_an_evaluation_has_to_wait(promise):
    with pytest.raises(AnalysisError, match="wait for one"):
        replan(promise, pd.DataFrame({"progress": [0.01], "eval_loss": [5.0]}))
