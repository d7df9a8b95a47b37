"""What import-linter does not see: experiments and bench stand on top, files stay small, copies validate."""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("ladder", "analysis")
TOP = ("experiments", "bench")


def files(*folders: str) -> list[Path]:
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *folders], cwd=ROOT, capture_output=True, text=True
    )
    return [ROOT / name for name in tracked.stdout.split() if name.endswith(".py")]


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def breaches(path: Path) -> set[str]:
    """Imports of a file that its floor forbids.

    An experiment declares and a benchmark measures: neither drives the command line, and an experiment
    does not need its neighbour.
    """
    home = path.relative_to(ROOT).parts[0]
    forbidden = {"tests", *TOP} - ({"bench"} if home == "bench" else set())
    names = imported(path)
    found = {name for name in names if name.split(".")[0] in forbidden}
    if home in TOP:
        found |= {name for name in names if name.startswith("ladder.cli")}
    return found


@pytest.mark.parametrize("folder", [*PACKAGES, *TOP])
def test_nothing_imports_upward(folder: str) -> None:
    found = {str(path.relative_to(ROOT)): breaches(path) for path in files(folder)}
    assert {name: bad for name, bad in found.items() if bad} == {}


def test_an_upward_import_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    planted = tmp_path / "ladder" / "spec.py"
    planted.parent.mkdir()
    planted.write_text("from experiments.laptop import LADDER\n")
    assert breaches(planted) == {"experiments.laptop"}


def test_no_file_passes_500_lines() -> None:
    long = {str(p.relative_to(ROOT)): n for p in files() if (n := len(p.read_text().splitlines())) > 500}
    assert long == {}


def test_copies_of_values_validate() -> None:
    """pydantic's model_copy(update=) skips validation; Value.replace does not."""
    users = [path for path in files(*PACKAGES, *TOP) if "model_copy" in path.read_text()]
    assert users == []
