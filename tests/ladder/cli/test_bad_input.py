"""What a user, a machine or another version gets wrong: one line that says what and where to go, no hang."""

import ctypes
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ladder import Store, load
from tests.ladder.examples import LADDER, ROOT, trained

EXPERIMENT = """
from ladder import Ladder, ParallelSpec, Resources, Rung
from tests.ladder.examples import LADDER, RUN
"""
CAP_DAC_OVERRIDE, PR_CAPBSET_DROP = 1, 24


@pytest.fixture
def experiment(tmp_path):
    """Write an experiment file that declares LADDER, as tests.ladder.examples does or changed by `source`."""

    def write(source=""):
        path = tmp_path / "experiment.py"
        path.write_text(EXPERIMENT + source)
        return path

    return write


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    monkeypatch.setattr("ladder.planning.CALIBRATION_S", 0.05)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")  # else `run` sets them, and they stay
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-this-test")


def child(*words, **options):
    """The command in a process of its own, with its two streams as text."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": ROOT, "timeout": 120} | options
    command = [sys.executable, "-m", "ladder", *map(str, words)]
    return subprocess.run(command, text=True, **options)


def one_line(code, out, complaint, message, verb):
    """Exit code 2; the same line for people and, as the last thing on stdout, for programs."""
    line = complaint.splitlines()[-1]
    assert code == 2 and message in line and line.startswith(f"ladder {verb}: ")
    assert "Traceback" not in complaint
    told = json.loads(out.splitlines()[-1])
    assert told == {"error": line.removeprefix(f"ladder {verb}: "), "exit_code": 2}


def reading(store, experiment):
    """Every verb that reads a store, as words of the command line."""
    return [
        ("status", store),
        ("logs", store, "d8"),
        ("logs", "-f", store, "d8"),
        ("stop", store, "d8"),
        ("stop", store, "--all"),
        ("sync", store),
        ("report", store),
        ("run", experiment, "--store", store),
        ("data", "build", experiment, "--store", store),
    ]


@pytest.mark.parametrize("written", ['{"format": 2, "rungs": "elsewhere"}', '{"format": "2.1"}'])
def test_a_store_of_a_newer_version_is_left_alone(written, tmp_path, experiment, said):
    store = Store(tmp_path / "newer")
    store.write("ladder.json", written)
    for words in reading(store.url, experiment()):
        one_line(*said(*words, "--json"), "made by a newer version (format 2", words[0])
    assert store.files.names("") == ["ladder.json"] and store.read("ladder.json").decode() == written


def test_a_field_that_this_version_does_not_know_is_named(tmp_path, said):
    store = Store(tmp_path / "store")
    content = {"format": 1, "ladder": json.loads(LADDER.to_json()) | {"colour": "red"}}
    store.write("ladder.json", json.dumps(content))
    one_line(*said("status", store.url, "--json"), "Ladder.colour: no such field", "status")


@pytest.mark.parametrize("make", [Path.mkdir, lambda folder: None], ids=["empty", "absent"])
def test_a_folder_without_a_ladder_is_said_and_stays_as_it_is(make, tmp_path, experiment, said):
    folder = tmp_path / "nothing"
    make(folder)
    for words in reading(folder, experiment())[:-2]:
        one_line(
            *said(*words, "--json"), "holds no ladder: `ladder run FILE --store DIR` makes one", words[0]
        )
    assert not folder.exists() or not list(folder.iterdir())


@pytest.mark.parametrize("resources", ["cpus=64", "hosts=64", "gpus=1", 'custom={"tpu": 4.0}'])
def test_what_this_machine_cannot_hold_is_said_by_plan_and_refused_by_run(
    resources, tmp_path, experiment, said
):
    file = experiment(f"""
run = RUN.replace(batch_tokens=512, parallel=ParallelSpec(data=64), steps=400)
LADDER = LADDER.replace(target=Rung(name="target", run=run, resources=Resources({resources})))
""")
    here = resources.startswith(("cpus", "hosts"))
    message = "target asks for 64 CPUs (Resources(" if here else f"target asks for Resources({resources[:5]}"
    code, out, _ = said("plan", file)
    assert code == (2 if here else 0)
    assert ("PROBLEM" if here else "not here") in out and message in " ".join(out.split())
    planned = json.loads(said("plan", file, "--json")[1])
    assert message in "; ".join(planned["problems"] + planned["elsewhere"])
    one_line(*said("run", file, "--store", tmp_path / "store", "--json"), message, "run")
    assert not any(run.begun for run in Store(tmp_path / "store").runs())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("RAY_AUTH_TOKEN", "two words", "RAY_AUTH_TOKEN holds a blank"),
        ("RAY_AUTH_TOKEN", "a token\n", "RAY_AUTH_TOKEN holds a blank"),
        ("RAY_AUTH_TOKEN", "schl\u00fcssel", "RAY_AUTH_TOKEN holds a blank"),
        ("RAY_AUTH_MODE", "tokens", "RAY_AUTH_MODE='tokens' is not token or disabled"),
    ],
)
def test_a_wrong_token_is_said_before_anything_starts(
    name, value, message, tmp_path, experiment, said, monkeypatch
):
    monkeypatch.setenv(name, value)
    one_line(*said("run", experiment(), "--store", tmp_path / "store", "--json"), message, "run")
    assert not (tmp_path / "store").exists()


def test_a_second_driver_is_told_who_drives(tmp_path, said):
    smoke = ROOT / "experiments" / "smoke.py"
    store = Store(tmp_path / "store")
    store.create(load(smoke))
    with store.lease("ladder run smoke"):
        words = "run", smoke, "--store", store.url, "--json"
        one_line(*said(*words), f"ladder run smoke (pid {os.getpid()} on ", "run")
        assert "is at work on this store: wait for it or stop it" in said(*words)[2]
    assert store.driver() is None and not any(run.begun for run in store.runs())


def bound_by_permissions():
    """In a child: even root may write only where its user may."""
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


def test_a_store_that_is_read_only_is_read_and_not_written(store, experiment, tmp_path):
    for path in [Path(store.url), *Path(store.url).rglob("*")]:
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))

    def call(*words):
        return child(*words, preexec_fn=bound_by_permissions)

    try:
        assert call("status", store.url).returncode == call("logs", store.url, "d8").returncode == 0
        assert call("report", store.url, "--out", tmp_path / "page.html").returncode == 0
        for words in (
            ("stop", store.url, "d8"),
            ("report", store.url),
            ("run", experiment("LADDER = LADDER.replace(name='other')"), "--store", f"{store.url}/sub"),
        ):
            done = call(*words, *([] if words[0] == "report" else ["--json"]))
            line = done.stderr.splitlines()[-1]
            assert done.returncode == 2 and line.startswith(f"ladder {words[0]}: cannot write {store.url}/")
            assert "Permission denied: make its folder writable, or use another store" in line
    finally:
        for path in [Path(store.url), *Path(store.url).rglob("*")]:
            path.chmod(path.stat().st_mode | stat.S_IWUSR)


def test_an_output_that_nobody_can_take_is_no_traceback(store):
    trained(store.run("d8"), 40, 99, note="x" * 2000).finish("stopped")
    for words in [
        ("status", store.url),
        ("logs", store.url, "d8"),
        ("logs", "-f", store.url, "d8", "--json"),
    ]:
        with open("/dev/full", "w") as full:
            done = child(*words, stdout=full)
        assert done.returncode == 1
        assert done.stderr == "ladder: cannot write the output: No space left on device: make room for it\n"
        reader = subprocess.Popen(["true"], stdin=subprocess.PIPE)
        reader.wait()
        with reader.stdin:
            done = child(*words, stdout=reader.stdin)
        assert (done.returncode, done.stderr) == (1, "")
        assert child(*words, stdout=None, preexec_fn=lambda: os.close(1)).stderr == ""


@pytest.mark.parametrize("setting", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}, {"NO_COLOR": "1"}])
def test_any_terminal_gets_every_word(setting, store):
    life = trained(store.run("d8-long"), 0, 3)
    life.event(3, "note", "\u00fcber \u2265 3 \u00b1 1")
    life.finish("failed", "na\u00efve")
    environment = {**os.environ, "COLUMNS": "40", **setting}
    log = child("logs", store.url, "d8-long", env=environment)
    status = child("status", store.url, env=environment)
    assert (log.returncode, log.stderr, status.returncode, status.stderr) == (0, "", 0, "")
    escaped = "PYTHONIOENCODING" in setting
    assert ("\\xfcber \\u2265 3" if escaped else "\u00fcber \u2265 3") in log.stdout
    assert ("na\\xefve" if escaped else "na\u00efve") in status.stdout
    assert "\x1b" not in log.stdout + status.stdout and "d8-long  failed" in status.stdout


def test_every_answer_in_json_is_json(store, experiment, tmp_path, said):
    file = tmp_path / "evals.csv"
    file.write_text("run,flops,loss\n" + "".join(f"r{k},1e1{k},{5 - k / 2}\n" for k in range(6)))
    for words in [
        ("plan", experiment()),
        ("status", store.url),
        ("stop", store.url, "d8-long"),
        ("report", store.url),
        ("fit", file),
    ]:
        code, out, _ = said(*words, "--json")
        assert code == 0 and isinstance(json.loads(out, parse_constant=pytest.fail), dict)
