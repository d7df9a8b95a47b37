"""Provenance."""

import json
import subprocess
import sys

import numpy as np

from ladder.store import provenance
from tests.ladder.examples import RUN


def test_provenance_is_plain_json_and_names_the_code(store):
    found = json.loads(json.dumps(provenance()))
    assert found["packages"]["numpy"] == np.__version__ and found["argv"] == sys.argv
    life = store.run("d8").begin(RUN, found)
    assert json.loads(store.read("runs/d8/run.json"))["provenance"] == found
    assert json.loads(store.read("runs/d8/run.json"))["fingerprint"] == RUN.fingerprint
    assert life.checkpoints == store.run("d8").checkpoints == store.path("runs/d8/checkpoints")


def test_provenance_of_a_checkout_tells_clean_from_changed(tmp_path):
    from ladder.store.origin import _git_state

    def git(*arguments):
        who = ["-c", "user.name=n", "-c", "user.email=e"]
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    package = tmp_path / "package"
    package.mkdir()
    assert _git_state(package) is None
    (package / "__init__.py").write_text("one = 1\n")
    git("init")
    assert _git_state(package) is None  # there, but not tracked: an installed copy inside a checkout
    git("add", ".")
    git("commit", "-m", "one")
    clean = _git_state(package)
    assert clean["dirty"] is False and len(clean["sha"]) == 40 and "diff_sha256" not in clean
    (package / "__init__.py").write_text("one = 2\n")
    assert _git_state(package)["dirty"] and len(_git_state(package)["diff_sha256"]) == 64
    git("commit", "-am", "two")
    (tmp_path / "new.py").write_text("")
    assert _git_state(package)["dirty"] and _git_state(package)["sha"] != clean["sha"]
