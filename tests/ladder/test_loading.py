"""An experiment file may use the files beside it, and leaves nothing behind."""

import sys

import pytest

from ladder import SpecError, load

FILE = """\
from ladder import Ladder, Rung
from shared_parts import RUN
LADDER = Ladder(name="l", rungs=(Rung(name="a", run=RUN),))
"""
PARTS = "from tests.ladder.examples import RUN\nRUN = RUN.replace(steps={})\n"


def experiment(folder, steps):
    folder.mkdir()
    (folder / "shared_parts.py").write_text(PARTS.format(steps))
    file = folder / "experiment.py"
    file.write_text(FILE)
    return file


def test_each_file_meets_its_own_neighbour(tmp_path):
    before = list(sys.path)
    files = [experiment(tmp_path / str(steps), steps) for steps in (70, 80)]
    assert [load(file).rungs[0].run.steps for file in files] == [70, 80]
    assert sys.path == before and "shared_parts" not in sys.modules
    (files[0].parent / "shared_parts.py").write_text(PARTS.format(700))
    assert load(files[0]).rungs[0].run.steps == 700


def test_an_installed_package_is_not_hidden_by_a_neighbour(tmp_path):
    file = experiment(tmp_path / "here", 70)
    (file.parent / "pandas.py").write_text("raise RuntimeError('not this one')\n")
    file.write_text("import pandas; pandas.DataFrame\n" + FILE)
    assert load(file).rungs[0].run.steps == 70


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ("RUN = (\n", r"experiment.py:2: SyntaxError: .*shared_parts.py, line 1"),
        ("1 / 0\n", r"experiment.py:2: ZeroDivisionError"),
        ("", r"experiment.py:2: ImportError: cannot import name 'RUN' from 'shared_parts'"),
    ],
)
def test_a_broken_neighbour_is_said_with_the_line_that_wants_it(parts, message, tmp_path):
    file = experiment(tmp_path / "here", 70)
    (file.parent / "shared_parts.py").write_text(parts)
    with pytest.raises(SpecError, match=message):
        load(file)
