"""The figures as files."""

import subprocess
import sys

import pytest

from analysis.page.figures import figures

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("stage", "names"),
    [
        ("empty", []),
        ("rungs", ["scaling", "trajectory"]),
        ("frozen", ["scaling", "trajectory", "residuals"]),
        ("finished", ["scaling", "trajectory", "residuals"]),
    ],
)
def test_what_can_be_drawn_is_drawn(stores, tmp_path, stage, names):
    written = figures(stores(stage), tmp_path / "figures")
    assert written == [str(tmp_path / "figures" / f"{name}.png") for name in names]
    for path in written:
        with open(path, "rb") as file:
            content = file.read()
        assert content.startswith(PNG) and len(content) > 10_000


def test_the_page_loads_no_plotting_library():
    code = "import sys, analysis.page.report, analysis.page.figures; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
