"""`ladder plan`: what a ladder costs, and the band that it may expect."""

import json
import re

import pytest

from ladder.planning import PlannedRun

EXPERIMENT = """
from ladder import Ladder, Rung
from ladder.recipe import laptop
LADDER = Ladder(
    name="mine",
    rungs=[Rung(name=f"d{width}", run=laptop(width)) for width in (16, 24, 32, 40)],
    target=Rung(name="d56", run=laptop(56)),
)
"""


@pytest.fixture
def planned(said, tmp_path, monkeypatch):
    """Plan the experiment above, changed by `more`."""
    monkeypatch.setattr("ladder.planning.CALIBRATION_S", 0.05)

    def call(more="", *options):
        path = tmp_path / "mine.py"
        path.write_text(EXPERIMENT + more)
        return said("plan", path, *options)

    return call


def test_the_expected_band_stands_below_the_costs(planned):
    code, out, _ = planned()
    assert code == 0
    assert re.search(r"mine: 5 runs.*d56, [\d.]+x the top rung: the band to expect", out, re.DOTALL)
    assert "as declared" in out and "gates, 99 % band: d32" in out


def test_the_same_as_json(planned):
    value = json.loads(planned("", "--json")[1])
    assert value["no_design"] == "" and set(value["runs"][0]) == set(PlannedRun.__dataclass_fields__)
    first, *more = value["design"]["choices"]
    assert first["what"] == "as declared" and 0.005 < first["half_width"] < 0.05
    assert all(choice["extra_flops"] > 0 for choice in more)
    assert [gate["what"] for gate in value["design"]["gates"]] == ["d32", "d40"]


def test_a_ladder_that_no_band_can_be_expected_of_is_priced_all_the_same(planned):
    code, out, _ = planned("LADDER = LADDER.replace(target=None)\n")
    assert code == 0 and "no band can be expected: ladder mine has no target" in out
    value = json.loads(planned("LADDER = LADDER.replace(target=None)\n", "--json")[1])
    assert value["design"] is None and "has no target" in value["no_design"] and len(value["runs"]) == 4
