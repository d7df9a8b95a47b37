"""The command line as a user meets it: one clear line and an exit code."""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from ladder import Store
from ladder.cli import VERBS, main
from tests.ladder.examples import LADDER, trained


def said(capsys: pytest.CaptureFixture) -> str:
    return capsys.readouterr().err.strip()


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([verb, "--help"])
    assert VERBS[verb][1:20] in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("LADDER = 3\n", "no LADDER|neither LADDER"),
        ("import ladder\n1 / 0\n", ":2: ZeroDivisionError"),
        ("def f(:\n", ":1: SyntaxError"),
        ("import sys\n\nsys.exit('no GPU')\n", ":3: the file ended the program \\('no GPU'\\)"),
        (
            "from ladder import ModelSpec\n\nModelSpec(widht=3)\n",
            ":3: ModelSpec.widht: no such field, did you mean width",
        ),
    ],
)
@pytest.mark.parametrize("verb", ["plan", "run"])
def test_a_broken_experiment_is_one_line_with_its_place(
    verb: str,
    source: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my-broken ladder.py").write_text(source)
    assert main([verb, "my-broken ladder.py"]) == 2
    line = said(capsys)
    assert "\n" not in line
    assert re.search(message, line), line


def test_a_missing_file_is_said(capsys: pytest.CaptureFixture) -> None:
    assert main(["plan", "nowhere.py"]) == 2
    assert said(capsys) == "ladder plan: nowhere.py: no such experiment file"


def test_a_page_that_cannot_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    Store(tmp_path / "s").create(LADDER)
    assert main(["report", str(tmp_path / "s"), "--out", str(tmp_path)]) == 2
    assert said(capsys) == f"ladder report: {tmp_path}: Is a directory"


def test_a_torn_row_is_a_warning_of_one_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    store = Store(tmp_path / "s")
    store.create(LADDER)
    trained(store.run("d8"), 0, 5).finish("stopped")
    segment = tmp_path / "s" / "runs" / "d8" / "attempts" / "0001" / "metrics-00000001.jsonl"
    segment.write_bytes(segment.read_bytes()[:-10])
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main(["report", str(tmp_path / "s")]) == 0
    line = said(capsys)
    assert "\n" not in line and line.startswith("warning: ") and "torn last line dropped" in line


def test_a_reader_that_stops_reading_is_no_traceback(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text("run,flops,loss\n" + "".join(f"r{k},1e1{k},{5 - k / 2}\n" for k in range(6)))
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "ladder", "fit", str(file)], stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_the_line_is_named_for_a_relative_path_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.py").write_text("from ladder.recipe import laptop\n\nlaptop(32, steps=0)\n")
    assert main(["plan", "broken.py"]) == 2
    assert said(capsys) == "ladder plan: broken.py:3: steps=0: use a positive number"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("run|flops|loss\na|1e18|3.4\n", "separated by something else than commas"),
        ("run;flops;loss\na;1.000,5;3,4\n", "flops is '1.000,5' in row 0: a point and a comma"),
        ("Run,flops,loss\na,1e18,3.4\n", "rename 'Run'"),
        ("run,flops,loss\na,1e18,3.47\nb,4e18,oops\n", "loss is 'oops' (str) in row 1"),
        ("", "is empty: give a header"),
    ],
)
def test_a_table_that_cannot_be_read_says_which_cell(
    table: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "evals.csv").write_text(table)
    assert main(["fit", str(tmp_path / "evals.csv")]) == 2
    assert words in said(capsys)


def test_a_table_that_is_not_there_is_said(capsys: pytest.CaptureFixture) -> None:
    assert main(["fit", "nowhere.csv"]) == 2
    assert said(capsys) == "ladder fit: nowhere.csv: No such file or directory: give a CSV file"
