"""What the rungs' dynamics say about the target: carried on with a band, judged against a limit."""

import numpy as np
import pandas as pd
import pytest

from analysis import AnalysisError
from analysis.risks import LIMITS, Limit, ranges, risks

MORE = {**LIMITS, "max_over_mean_load": Limit(4.0, "high", True, "four devices' work on one")}


@pytest.fixture
def rows(rng):
    out = []
    for k, flops in enumerate((1e18, 1e19, 1e20, 1e21)):
        for x in np.linspace(0.05, 1, 40):
            noise = 1 + 0.01 * rng.standard_normal()
            row = {"run": f"r{k}", "flops": flops, "progress": x, "drop_fraction": (0.01 + 0.015 * k) * noise}
            hump = 1 + 2 * np.exp(-((x - 0.2) ** 2) / 0.005)
            out.append(row | {"grad_norm": 0.5 * hump * noise, "max_over_mean_load": 1.2 * 1.6**k * noise})
    return pd.DataFrame(out)


def test_trends_are_carried_to_the_target_and_judged(rows):
    table = risks(rows, 1e22, MORE).set_index("quantity")
    assert table.loc["grad_norm", "verdict"] == "clear"
    assert table.loc["drop_fraction", "value"] == pytest.approx(0.07, rel=0.03)
    assert table.loc["drop_fraction", "verdict"] in ("may pass", "passes")
    assert table.loc["max_over_mean_load", "value"] == pytest.approx(1.2 * 1.6**4, rel=0.03)
    assert table.loc["max_over_mean_load", "verdict"] == "passes"
    assert (table["lo"] < table["value"]).all() and (table["value"] < table["hi"]).all()
    assert "router_entropy_share" not in table.index


def test_two_rungs_give_no_verdict(rows):
    table = risks(rows[rows["run"].isin(["r0", "r1"])], 1e22)
    assert set(table["verdict"]) == {"too few rungs"} and table["value"].isna().all()


def test_a_hump_that_every_rung_has_is_inside_the_range(rows):
    table = ranges(rows, 1e22)
    hump = table[(table["quantity"] == "grad_norm") & np.isclose(table["progress"], 0.2)].iloc[0]
    late = table[(table["quantity"] == "grad_norm") & np.isclose(table["progress"], 0.9)].iloc[0]
    assert hump["lo"] < 1.4 < hump["hi"] and not late["lo"] < 1.4 < late["hi"]


def test_rows_without_a_known_quantity_are_refused(rows):
    with pytest.raises(AnalysisError, match="none of grad_norm, drop_fraction"):
        risks(rows[["run", "flops", "progress"]], 1e22)
