"""The mirror on Weights & Biases: off by default, offline without a network, and never in the way."""

import math
import sys
import types

import pytest

from ladder.tracking import Mirror

ROWS = [{"step": step, "tokens": 10 * step, "train_ce": 1 / step} for step in (1, 2, 3)]


def mirror(mode, folder, said):
    return Mirror(mode, ladder="tiny", run="d8", config={"a": 1}, folder=str(folder), say=said.append)


@pytest.fixture
def fake(monkeypatch):
    """A wandb whose parts can be made to fail; records what it is asked."""
    asked = []

    class Run:
        def define_metric(self, name, **more):
            asked.append(("define", name, more))

        def log(self, row):
            asked.append(("log", row))
            if module.fail == "log":
                raise OSError("disk\nfull")

        def finish(self):
            asked.append(("finish",))
            if module.fail == "finish":
                raise TimeoutError("still uploading")

    def init(**settings):
        asked.append(("init", settings))
        if module.fail in ("init", settings["mode"]):
            raise RuntimeError("no service")
        return Run()

    module = types.ModuleType("wandb")
    module.init, module.Settings, module.fail, module.asked = init, lambda **more: more, None, asked
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_off_asks_nothing_of_wandb(fake, tmp_path):
    said = []
    tracker = mirror("off", tmp_path, said)
    tracker.rows(ROWS)
    tracker.finish()
    assert fake.asked == [] and said == [] and not list(tmp_path.iterdir())


def test_rows_are_logged_in_order_on_the_axis_of_tokens(fake, tmp_path):
    tracker = mirror("online", tmp_path, [])
    tracker.rows(ROWS[:2])
    tracker.rows(ROWS[2:])
    tracker.finish()
    (_, settings), *rest = fake.asked
    assert settings["group"] == "tiny" and settings["name"] == "d8" and settings["config"] == {"a": 1}
    assert settings["settings"]["init_timeout"] == 15 and settings["settings"]["finish_timeout"] == 30
    assert ("define", "*", {"step_metric": "tokens"}) in rest
    assert [entry[1] for entry in rest if entry[0] == "log"] == ROWS
    assert rest[-1] == ("finish",)


def test_without_the_service_it_goes_on_offline_and_says_so(fake, tmp_path):
    fake.fail, said = "online", []
    tracker = mirror("online", tmp_path, said)
    tracker.rows(ROWS)
    assert said == ["wandb online did not start: RuntimeError: no service; offline instead"]
    assert [entry[1]["mode"] for entry in fake.asked if entry[0] == "init"] == ["online", "offline"]
    assert len([entry for entry in fake.asked if entry[0] == "log"]) == 3


@pytest.mark.parametrize("part", ["init", "log", "finish"])
def test_a_failure_is_said_once_and_training_goes_on(fake, tmp_path, part):
    fake.fail, said = part, []
    tracker = mirror("offline", tmp_path, said)
    for _ in range(3):
        tracker.rows(ROWS)
    tracker.finish()
    tracker.finish()
    assert len(said) == 1 and "\n" not in said[0]
    assert (
        len([entry for entry in fake.asked if entry[0] == "log"]) == {"init": 0, "log": 1, "finish": 9}[part]
    )


def test_a_real_offline_run_leaves_a_file_to_sync(tmp_path, monkeypatch):
    import wandb

    monkeypatch.delenv("WANDB_MODE", raising=False)
    said = []
    tracker = mirror("offline", tmp_path, said)
    tracker.rows([*ROWS, {"step": 4, "tokens": 40, "train_ce": math.nan}])
    tracker.finish()
    wandb.teardown()  # waits for wandb's own process, which writes the last block
    assert said == []
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    assert file.read_bytes().startswith(b":W&B") and file.stat().st_size > 500
