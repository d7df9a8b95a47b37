"""Checkpoints are written beside the training, one at a time, and are there whole or not at all."""

import os
import subprocess
import sys
import threading
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ladder.train.checkpoint import Checkpoints

SOON_S = 0.3  # what would return at once has returned by then
RENAME = os.rename


def state(value: float) -> dict:
    return {"weight": jnp.full((256, 256), value), "step": jnp.int32(value)}


def assert_same(found: dict, value: float) -> None:
    np.testing.assert_array_equal(found["weight"], np.full((256, 256), value, np.float32))
    assert int(found["step"]) == value


@pytest.fixture
def gate(monkeypatch):
    """No write completes before it is opened: the last act of one is a rename."""
    gate = threading.Event()

    def rename(*paths):
        gate.wait(60)
        RENAME(*paths)

    monkeypatch.setattr(os, "rename", rename)
    yield gate
    gate.set()


def test_saving_does_not_wait_and_the_state_may_be_donated_meanwhile(gate, tmp_path):
    following = jax.jit(lambda s: jax.tree.map(lambda a: a + 1, s), donate_argnums=0)
    with Checkpoints(str(tmp_path)) as checkpoints:
        current = state(1)
        checkpoints.save(current, 1)
        assert not (tmp_path / "1").exists()
        for _ in range(5):
            current = following(current)
        gate.set()
        assert checkpoints.steps() == [1]
        assert_same(checkpoints.restore(current, 1), 1)


def test_a_second_write_begins_when_the_first_has_ended(gate, tmp_path):
    with Checkpoints(str(tmp_path)) as checkpoints:
        checkpoints.save(state(1), 1)
        second = threading.Thread(target=partial(checkpoints.save, state(2), 2))
        second.start()
        second.join(SOON_S)
        assert second.is_alive() and not list(tmp_path.glob("2*"))
        gate.set()
        second.join()
        assert checkpoints.steps() == [1, 2] and checkpoints.newest() == 2


def test_closing_waits_for_the_write(gate, tmp_path):
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.save(state(1), 1)
    closing = threading.Thread(target=checkpoints.__exit__, args=(None,))
    closing.start()
    closing.join(SOON_S)
    assert closing.is_alive()
    gate.set()
    closing.join()
    assert (tmp_path / "1").is_dir()


def test_what_a_write_met_is_raised_by_the_next_call(tmp_path, monkeypatch):
    def full(*paths):
        raise OSError(28, "No space left on device")

    checkpoints = Checkpoints(str(tmp_path))
    monkeypatch.setattr(os, "rename", full)
    checkpoints.save(state(1), 1)
    with pytest.raises(OSError, match="No space left on device"):
        checkpoints.save(state(2), 2)
    monkeypatch.undo()
    with Checkpoints(str(tmp_path)) as again:
        assert again.newest() is None
        again.save(state(2), 2)
        assert again.newest() == 2


KILLED_WHILE_IT_WRITES = """
import os, sys, threading
import jax.numpy as jnp
from ladder.train.checkpoint import Checkpoints
checkpoints = Checkpoints(sys.argv[1])
state = {"weight": jnp.full((256, 256), 1.0), "step": jnp.int32(1)}
checkpoints.save(state, 1)
assert checkpoints.newest() == 1
written = threading.Event()
os.rename = lambda *paths: (written.set(), threading.Event().wait())
checkpoints.save({"weight": state["weight"] + 1, "step": state["step"] + 1}, 2)
written.wait()
os._exit(9)
"""


def test_a_writer_that_is_killed_in_between_leaves_the_one_before(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED_WHILE_IT_WRITES, str(tmp_path)], capture_output=True)
    assert done.returncode == 9, done.stderr.decode()
    assert [path for path in tmp_path.iterdir() if path.name.startswith("2")]  # half of it is there
    with Checkpoints(str(tmp_path)) as checkpoints:
        assert checkpoints.steps() == [1]
        assert_same(checkpoints.restore(state(0), 1), 1)
        checkpoints.save(state(2), 2)
        assert_same(checkpoints.restore(state(0), 2), 2)
