"""A store with runs in several states, as attempts would have left it, and the verbs called on it."""

import json

import pytest

from ladder import Store
from ladder.cli import main
from tests.ladder.examples import LADDER, trained


@pytest.fixture
def store(tmp_path):
    """d8 is running, d8-r1 has finished, d8-long has not begun, nor has the target."""
    store = Store(tmp_path / "store")
    store.create(LADDER)
    trained(store.run("d8"), 0, 40, tokens_per_s=320.0).event(40, "spike", "train_ce 9.1")
    done = trained(store.run("d8-r1"), 0, 99)
    done.row({"step": 100, "tokens": 3200, "train_ce": 0.5, "eval_loss": 0.25})
    done.finish("finished")
    return store


@pytest.fixture
def said(capsys):
    """Call a verb: (exit code, what it printed, what it complained)."""

    def call(*words):
        code = main([str(word) for word in words])
        read = capsys.readouterr()
        return code, read.out, read.err

    return call


@pytest.fixture
def answered(said):
    """Call a verb with --json: (exit code, the value)."""

    def call(*words):
        code, out, _ = said(*words, "--json")
        return code, json.loads(out)

    return call
