"""A grid of sizes per budget becomes its best sizes, and a law of them."""

import numpy as np
import pandas as pd
import pytest

from analysis import AnalysisError, fit, isoflop_minima

BUDGETS = [1e18, 4e18, 1.6e19, 6.4e19, 2.56e20]


def grid(widths=(-0.4, -0.2, 0.0, 0.2, 0.4), budgets=BUDGETS):
    """L = 1.7 + 1.4 (C/1e18)^-.12 + .3 (log10 N/N*)^2 with N* = (C / 120)^.5."""
    rows = []
    for flops in budgets:
        for step in widths:
            params = (flops / 120) ** 0.5 * 10 ** (step + 0.05)
            loss = 1.7 + 1.4 * (flops / 1e18) ** -0.12 + 0.3 * (step + 0.05) ** 2
            row = {"run": f"{flops:g}n{step:+.1f}", "flops": flops, "params_active": params, "loss": loss}
            rows.append(row | {"tokens": flops / 6 / params})
    return pd.DataFrame(rows)


def test_minima_are_the_vertices():
    found = isoflop_minima(grid())
    assert np.allclose(found["loss"], 1.7 + 1.4 * (found["flops"] / 1e18) ** -0.12, rtol=1e-9)
    assert np.allclose(found["params_active"], (found["flops"] / 120) ** 0.5, rtol=1e-6)
    assert np.allclose(found["tokens"], found["flops"] / 6 / found["params_active"], rtol=1e-6)
    assert list(found["sizes"]) == [5] * 5


def test_fit_reduces_a_grid_and_says_so():
    fitted = fit(grid())
    assert fitted.law == "compute"
    assert fitted.why == "an isoFLOP grid of 25 runs, reduced to the best size of 5 budgets"
    truth = 1.7 + 1.4 * 2560**-0.12
    row = fitted.predict({"flops": [2.56e21]}).iloc[0]
    assert row["lo"] < truth < row["hi"]
    by_hand = fit(isoflop_minima(grid()), law="compute").predict({"flops": [2.56e21]})
    assert row["median"] == pytest.approx(by_hand["median"].item(), rel=1e-12)


def test_budgets_without_an_inner_minimum_are_left_out_and_named():
    edge = grid(widths=(0.1, 0.2, 0.3, 0.4), budgets=BUDGETS[:1])
    few = grid(budgets=BUDGETS[1:2]).iloc[:3]
    rows = pd.concat([edge, few, grid(budgets=BUDGETS[2:])])
    with pytest.warns(
        UserWarning, match=r"1e\+18 FLOPs \(its best size is at the edge.*4e\+18 FLOPs \(3 sizes"
    ):
        assert len(isoflop_minima(rows)) == 3
    assert "budget_left_out" in [notice.code for notice in fit(rows).warnings]
    with pytest.raises(AnalysisError, match="a law needs 2") as error:
        isoflop_minima(pd.concat([edge, few]))
    assert error.value.code == "no_minima"


def test_a_grid_without_sizes_cannot_be_reduced():
    with pytest.raises(AnalysisError, match="params_active"):
        isoflop_minima(grid().drop(columns=["params_active", "tokens"]))
