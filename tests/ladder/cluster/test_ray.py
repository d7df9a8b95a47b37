"""The command on a real local Ray cluster, with the smoke ladder on the real corpus, as a user calls it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ladder import Store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[3]
SMOKE = ROOT / "experiments" / "smoke.py"
RESULT = "target_loss median lo90 hi90 inside unit state forecast_sha256 report wall_s gates".split()  # noqa: SIM905


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own cache, where the corpus is already built or will be."""
    monkeypatch.delenv("LADDER_CACHE", raising=False)
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # workers set their own
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # the user's own cluster, gone: ours is another
    monkeypatch.setenv("RAY_AUTH_TOKEN", "x")


def command(store: Path) -> list[str]:
    return [sys.executable, "-m", "ladder", "run", str(SMOKE), "--store", str(store), "--json"]


def test_a_ladder_ends_in_a_verdict_and_a_second_call_repeats_it(tmp_path: Path) -> None:
    first = subprocess.run(command(tmp_path / "s"), capture_output=True, text=True, cwd=tmp_path)
    assert first.returncode in (0, 3), first.stderr
    result = json.loads(first.stdout.splitlines()[-1])
    assert list(result) == RESULT
    assert result["lo90"] < result["median"] < result["hi90"]
    assert Path(result["report"]).stat().st_size < 1_000_000

    second = subprocess.run(command(tmp_path / "s"), capture_output=True, text=True, cwd=tmp_path)
    assert second.returncode == first.returncode
    again = json.loads(second.stdout.splitlines()[-1])
    assert {k: again[k] for k in RESULT if k != "wall_s"} == {k: result[k] for k in RESULT if k != "wall_s"}
    assert "skipped" in second.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s"]  # nothing beside the store


def test_ctrl_c_in_a_terminal_loses_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "s")
    driver = subprocess.Popen(
        command(tmp_path / "s"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while driver.poll() is None and not rows(store, "d24"):
        time.sleep(0.2)
    os.killpg(driver.pid, signal.SIGINT)  # a terminal sends it to the whole group
    _, said = driver.communicate(timeout=120)
    assert driver.returncode == 1
    assert "goes on from here" in said.splitlines()[-1]
    kept = rows(store, "d24")
    assert store.run("d24").status()["state"] in ("stopped", "finished")

    again = subprocess.run(command(tmp_path / "s"), capture_output=True, text=True)
    assert again.returncode in (0, 3), again.stderr
    assert [row["step"] for row in rows(store, "d24")] == list(range(1, store.run("d24").spec.steps + 1))
    assert rows(store, "d24")[: len(kept)] == kept


def rows(store: Store, run: str) -> list[dict]:
    return store.run(run).rows() if store.exists("ladder.json") else []
