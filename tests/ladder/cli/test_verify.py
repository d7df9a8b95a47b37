"""ladder verify and ladder backtest, as they are called."""

import json

import pandas as pd
import pytest

from analysis import Forecast, fit, forecast
from analysis.artefact import canonical


@pytest.fixture
def rungs():
    flops = [1e18, 4e18, 1.6e19, 6.4e19, 2.56e20]
    return pd.DataFrame({"run": list("abcde"), "flops": flops, "loss": [3.47, 3.18, 2.94, 2.74, 2.58]})


@pytest.fixture
def frozen(rungs, tmp_path):
    path = tmp_path / "forecast.json"
    forecast(fit(rungs), {"run": ["big"], "flops": [2.56e21]}).save(path)
    return path


def test_a_frozen_forecast_is_computed_again(frozen, said, answered):
    code, out, _ = said("verify", frozen)
    assert code == 0 and "the same sha256" in out
    code, value = answered("verify", frozen)
    assert code == 0 and value["same"] and value["largest_relative_difference"] == 0


def resealed(path, change):
    """The file with its payload changed and the hash made to match: a forgery that the hash cannot show."""
    payload = json.loads(path.read_text())["payload"]
    change(payload)
    path.write_text(Forecast(payload).to_json())


def test_numbers_that_do_not_follow_from_the_table_are_found(frozen, answered):
    def narrower(payload):
        payload["bands"]["0.9"]["hi"][-1] -= 0.01

    resealed(frozen, narrower)
    code, value = answered("verify", frozen)
    assert code == 1 and not value["verified"]
    assert value["largest_relative_difference"] == pytest.approx(0.004, abs=0.002)


def test_last_digits_are_no_difference(frozen, said):
    def nudged(payload):
        payload["bands"]["0.9"]["hi"][-1] *= 1 + 1e-8

    resealed(frozen, nudged)
    code, out, _ = said("verify", frozen)
    assert code == 0 and "numbers differ by up to 1e-08" in out


def test_a_changed_file_and_an_older_format_are_one_line(frozen, said):
    stored = json.loads(frozen.read_text())
    stored["payload"]["target"]["flops"] = 1e22
    frozen.write_text(json.dumps(stored))
    code, _, err = said("verify", frozen)
    assert code == 2 and "changed after it was frozen" in err
    stored["payload"]["format"] = "scaling-ladder forecast 2"
    stored["sha256"] = Forecast(stored["payload"]).sha256
    frozen.write_text(json.dumps(stored))
    code, _, err = said("verify", frozen)
    assert code == 2 and "holds too little" in err
    assert canonical({"a": 1.0}) == '{"a":1}'


def test_backtest_prints_the_methods_and_draws_them(rungs, tmp_path, said, answered):
    rungs.to_csv(tmp_path / "evals.csv", index=False)
    code, out, _ = said("backtest", tmp_path / "evals.csv", "--figure", tmp_path / "figures" / "held.svg")
    assert code == 0 and "posterior" in out and "pinned E" in out
    assert (tmp_path / "figures" / "held.svg").read_text().startswith("<?xml")
    code, value = answered("backtest", tmp_path / "evals.csv", "--hold-out", "d,e")
    assert code == 0 and [row["run"] for row in value["rows"] if row["method"] == "posterior"] == ["d", "e"]
    code, _, err = said("backtest", tmp_path / "evals.csv", "--hold-out", "z")
    assert code == 2 and "no finished run z" in err
