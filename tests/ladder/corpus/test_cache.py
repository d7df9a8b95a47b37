"""The cache folder when the machine refuses it."""

import errno
from pathlib import Path

import pytest

from ladder.corpus import CorpusError, cache


def test_a_full_disk_is_one_line_and_leaves_no_half_file(tmp_path, monkeypatch):
    monkeypatch.setenv("LADDER_CACHE", str(tmp_path))

    def no_space(self, content):
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", no_space)
    path = tmp_path / "text.json"
    with (
        pytest.raises(CorpusError, match=r"cannot prepare .*text\.json \(No space left .*LADDER_CACHE"),
        cache.locked(path, print),
    ):
        cache.write_whole(path, b"text")
    assert [left.name for left in tmp_path.iterdir()] == ["text.json.lock"]


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    for name in ("LADDER_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(CorpusError, match="set LADDER_CACHE"):
        cache.cache_folder()
