"""ladder watch and replan over a log file: what they say, and that no alarm is lost or repeated."""

import json

import numpy as np
import pandas as pd
import pytest

import analysis
from ladder.cli import main

STEPS = 2000


@pytest.fixture(scope="module")
def frozen(tmp_path_factory):
    runs = [
        {"run": f"r{k}", "flops": c * x, "progress": x, "loss": (1.8 + 1.2 * (c / 1e17) ** -0.16) * x**-0.05}
        for k, c in enumerate((1e17, 3e17, 1e18, 3e18))
        for x in (0.05, 0.2, 0.4, 0.7, 1.0)
    ]
    points = [
        {"run": "target", "flops": 1e19 * x, "progress": x, "step": STEPS * x, "tokens": 32 * STEPS * x}
        for x in (0.05, 0.2, 0.4, 0.7, 1.0)
    ]
    path = tmp_path_factory.mktemp("frozen") / "forecast.json"
    analysis.forecast(analysis.fit(pd.DataFrame(runs)), pd.DataFrame(points)).save(path)
    return path


def log(path, frozen, spike=None, rows=600):
    promise, rng = analysis.Forecast.load(frozen), np.random.default_rng(0)
    lines = []
    for step in range(1, rows + 1):
        norm = 0.5 * float(np.exp(0.1 * rng.standard_normal())) * (40 if step == spike else 1)
        row = {"step": step, "tokens": 32 * step, "train/loss": 2.5, "grad_norm": norm}
        if step % 100 == 0:
            row["eval_loss"] = promise.at(progress=step / STEPS).median
        lines.append(json.dumps(row) + "\n")
    path.write_text("".join(lines))
    return str(path)


def watch(frozen, source, tmp_path, *more):
    arguments = ["watch", source, "--forecast", str(frozen), "--once", "--state", str(tmp_path / "told.json")]
    return main([*arguments, "--column", "train_loss=train/loss", *more])


def test_a_healthy_run_is_normal_and_its_place_is_told(frozen, tmp_path, capsys):
    assert watch(frozen, log(tmp_path / "rows.jsonl", frozen), tmp_path) == 0
    said = capsys.readouterr().out
    assert "step 600  normal  +0.01 % from the forecast at 30.0 % of the run, 90 % band" in said


def test_an_alarm_is_given_once_to_every_way_and_not_again(frozen, tmp_path, capsys):
    source, told = log(tmp_path / "rows.jsonl", frozen, spike=600), tmp_path / "by_command.jsonl"
    for _ in range(2):
        assert watch(frozen, source, tmp_path, "--command", f"cat >> {told}; echo >> {told}") == 3
    said = capsys.readouterr().out
    assert said.count("ALARM step 600: precursor (grad_norm alone") == 1
    (alarm,) = (json.loads(line) for line in told.read_text().splitlines())
    assert (alarm["step"], alarm["state"]) == (600, "precursor")


def test_an_alarm_that_a_way_did_not_take_is_given_by_the_next_watcher(frozen, tmp_path, capsys):
    source, told = log(tmp_path / "rows.jsonl", frozen, spike=600), tmp_path / "by_command.jsonl"
    watch(frozen, source, tmp_path, "--command", "exit 1")
    assert "did not take the alarm" in capsys.readouterr().err
    watch(frozen, source, tmp_path, "--command", f"cat >> {told}")
    assert json.loads(told.read_text())["step"] == 600


def test_a_source_that_is_not_there_is_one_line(frozen, tmp_path, capsys):
    assert watch(frozen, str(tmp_path / "none.csv"), tmp_path) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_replan_prints_four_options(frozen, tmp_path, capsys):
    source = log(tmp_path / "rows.jsonl", frozen, rows=300)
    assert main(["replan", source, "--forecast", str(frozen), "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["option"] for row in found] == ["continue", "shorten", "retime", "restart"]
