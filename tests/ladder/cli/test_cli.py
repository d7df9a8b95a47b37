"""The command line as a user meets it: one clear line and an exit code."""

import re
from pathlib import Path

import pytest

from ladder.cli import VERBS, main


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
        (
            "from ladder import ModelSpec\n\nModelSpec(widht=3)\n",
            ":3: ModelSpec.widht: no such field, did you mean width",
        ),
    ],
)
@pytest.mark.parametrize("verb", ["plan", "run"])
def test_a_broken_experiment_is_one_line_with_its_place(
    verb: str, source: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    file = tmp_path / "broken.py"
    file.write_text(source)
    assert main([verb, str(file)]) == 2
    line = said(capsys)
    assert "\n" not in line
    assert re.search(message, line), line


def test_a_missing_file_is_said(capsys: pytest.CaptureFixture) -> None:
    assert main(["plan", "nowhere.py"]) == 2
    assert said(capsys) == "ladder plan: nowhere.py: no such experiment file"
