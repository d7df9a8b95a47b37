"""Fetching pinned wheels with the real pip, from a folder instead of the network."""

import hashlib
import multiprocessing
import zipfile

import pytest

from ladder.corpus import CorpusError, cache_folder
from ladder.corpus.wheels import WHEELS, Wheel, fetch


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A tiny package that pip finds in a folder; pip has no other place to look."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    file = shelf / "tinytext-1.0-py3-none-any.whl"
    info = "tinytext-1.0.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("tinytext/data.txt", "some text")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tinytext\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("LADDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    return Wheel("tinytext", "1.0", hashlib.sha256(file.read_bytes()).hexdigest(), "MIT")


def entries() -> list[str]:
    folder = cache_folder() / "wheels"
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_a_wheel_is_fetched_once_and_read_from_the_cache_ever_after(wheel, monkeypatch):
    said = []
    path = fetch(wheel, said.append)
    assert zipfile.ZipFile(path).read("tinytext/data.txt") == b"some text"
    assert len(said) == 1 and wheel.filename in said[0]
    assert entries() == [wheel.filename]

    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert fetch(wheel, said.append) == path
    assert len(said) == 1


def test_a_damaged_wheel_is_said_and_fetched_again(wheel):
    path = fetch(wheel, lambda _: None)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    said = []
    fetch(wheel, said.append)
    assert "damaged" in said[0]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == wheel.sha256


def test_without_a_network_the_error_says_which_files_to_put_where(wheel, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(CorpusError) as error:
        fetch(WHEELS["docs"], lambda _: None)
    assert str(cache_folder() / "wheels") in str(error.value)
    for each in WHEELS.values():
        assert each.filename in str(error.value) and each.sha256 in str(error.value)
    assert entries() == []


def test_another_file_of_that_name_is_refused_and_not_kept(wheel):
    other = Wheel(wheel.name, wheel.version, "0" * 64, wheel.licence)
    with pytest.raises(CorpusError, match=f"could not fetch {wheel.filename}.*HASHES"):
        fetch(other, lambda _: None)
    assert entries() == []


def test_what_a_killed_download_left_behind_is_cleared(wheel):
    part = cache_folder() / "wheels" / f"{wheel.filename}.part"
    part.mkdir(parents=True)
    (part / wheel.filename).write_bytes(b"half of it")
    fetch(wheel, lambda _: None)
    assert entries() == [wheel.filename]


def _fetch_and_tell(wheel, out):
    said = []
    fetch(wheel, said.append)
    out.put(sum("fetching" in text for text in said))


def test_of_two_processes_at_once_one_fetches(wheel):
    spawn = multiprocessing.get_context("spawn")
    out = spawn.Queue()
    both = [spawn.Process(target=_fetch_and_tell, args=(wheel, out)) for _ in range(2)]
    for process in both:
        process.start()
    counts = [out.get(timeout=120) for _ in both]
    for process in both:
        process.join()
    assert sorted(counts) == [0, 1]


def test_a_cache_that_cannot_be_written_is_said(wheel, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("LADDER_CACHE", str(tmp_path / "file"))
    with pytest.raises(CorpusError, match="LADDER_CACHE"):
        fetch(wheel, lambda _: None)


def test_the_cache_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("LADDER_CACHE", raising=False)
    assert cache_folder() == tmp_path / "scaling-ladder"
    monkeypatch.setenv("LADDER_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
