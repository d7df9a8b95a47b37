"""What the gates say of the first trial's ladder, which bent after its fourth rung."""

import pandas as pd
import pytest

import analysis

# byte level, nats per byte: FLOPs and final macro loss of the runs in experiments/laptop_bent.py, as trained
# before this repository, and of d64, which was not a rung
TRIAL = pd.DataFrame(
    {
        "run": ["d24", "d32", "d40", "d48", "d64", "d88"],
        "flops": [1.8e11, 4.7e11, 1.0e12, 1.9e12, 5.3e12, 1.7e13],
        "loss": [2.269, 2.022, 1.851, 1.730, 1.612, 1.506],
    }
)


@pytest.mark.parametrize(
    ("run", "below", "percent", "inside"),
    [("d40", 2, -0.6, True), ("d48", 3, 0.0, True), ("d64", 4, 3.3, False), ("d88", 4, 7.2, False)],
)
def test_a_gate_sees_the_bend_only_at_a_rung_beyond_it(run, below, percent, inside):
    found = analysis.fit(TRIAL.iloc[:below], unit="other")
    aim = TRIAL[TRIAL["run"] == run]
    row = found.predict(aim, 0.99).iloc[0]
    assert 100 * (row["loss"] / row["median"] - 1) == pytest.approx(percent, abs=0.1)
    assert bool(row["lo"] <= row["loss"] <= row["hi"]) is inside
