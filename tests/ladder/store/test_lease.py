"""One driver a ladder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ladder.store import LeaseHeld
from tests.ladder.examples import ROOT


def test_a_second_driver_is_refused_with_who_holds_it(store):
    with store.lease("first") as lease:
        assert lease.note == ""
        with pytest.raises(LeaseHeld) as error, store.lease("second"):
            pass
        assert "first" in str(error.value) and f"pid {os.getpid()}" in str(error.value)
    with store.lease("second") as lease:
        assert lease.note == ""


def test_the_lease_of_a_dead_driver_is_taken_over_with_a_note(folder):
    code = (
        "import os, sys; from ladder import Store; "
        "lease = Store(sys.argv[1]).lease('dead one'); lease.__enter__(); os._exit(9)"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code, folder.url], check=False, cwd=ROOT)
    with folder.lease("next") as lease:
        assert "took over the lease of dead one" in lease.note
        assert len(list(Path(folder.url).glob("lease-*"))) == 1
        with pytest.raises(LeaseHeld), folder.lease("third"):
            pass
    assert not list(Path(folder.url).glob("lease-*"))


def test_a_lease_from_another_host_or_of_a_reused_pid_is_judged_rightly(store):
    with store.lease("me"):
        mine = json.loads(store.read("lease-0001.json"))
    store.write("lease-0001.json", json.dumps(mine | {"host": "elsewhere", "pid": 2**22 + 1}))
    with pytest.raises(LeaseHeld, match=r"elsewhere.*delete"), store.lease("me"):
        pass
    store.write("lease-0001.json", json.dumps(mine | {"born": mine["born"] - 1}))
    with store.lease("me") as lease:
        assert "took over" in lease.note


def test_one_who_saw_an_old_dead_lease_gives_way_to_the_living(folder, monkeypatch):
    """It looked while lease 1 was a dead one; meanwhile a rival took over, left, and a third holds 1 anew."""
    from ladder.store import lease as module

    with folder.lease("living"):
        look, dead = module._leases, {"owner": "dead", "host": "h", "pid": 1, "born": 0, "since": ""}
        answers = [{1: dead}]
        monkeypatch.setattr(module, "_leases", lambda files: answers.pop() if answers else look(files))
        gone = module.is_gone
        monkeypatch.setattr(module, "is_gone", lambda lease: lease["owner"] == "dead" or gone(lease))
        with pytest.raises(LeaseHeld, match="living"), folder.lease("slow"):
            pass
        assert [path.name for path in Path(folder.url).glob("lease-*")] == ["lease-0001.json"]
