"""Every Python block of the README runs as it stands, in a folder of its own; its commands exist."""

import re
from pathlib import Path

import pytest

from ladder.cli import VERBS

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0])
def test_a_block_runs(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})


def test_there_are_blocks_and_their_commands_exist() -> None:
    assert len(BLOCKS) >= 2
    used = set(re.findall(r"^    ladder (\w+)", README, flags=re.MULTILINE))
    assert used and used <= set(VERBS)
