"""ladder data build: tokens beside the record, once; another text is refused before anything trains."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ladder import Store
from ladder.cluster.texts import text_of
from ladder.corpus import CorpusError, open_corpus
from ladder.corpus.remote import fetch, publish
from tests.ladder.examples import RUN

FILE = """
from ladder import Ladder, Rung
from tests.ladder.examples import RUN
LADDER = Ladder(name="tiny", rungs=(Rung(name="a", run=RUN), Rung(name="b", run=RUN.replace(steps=200))))
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A working folder with the two texts of the example, and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LADDER_CACHE", str(tmp_path / "cache"))
    write_texts("first")
    Path("tiny.py").write_text(FILE)


def write_texts(word):
    rng = np.random.default_rng(0)
    documents = [" ".join([word, *map(str, rng.integers(0, 99, 20))]) for _ in range(200)]
    Path("text.txt").write_text("\f".join(documents))
    Path("code.jsonl").write_text("\n".join(json.dumps({"text": d[::-1]}) for d in documents))


@pytest.fixture(params=["folder", "memory"])
def url(request, tmp_path):
    return str(tmp_path / "store") if request.param == "folder" else f"memory://data-{tmp_path.name}"


def test_the_shards_are_written_once_for_runs_that_share_a_text(url, said, answered):
    code, out, _ = said("data", "build", "tiny.py", "--store", url)
    assert code == 0 and out.endswith(": written\n") and len(out.splitlines()) == 1
    code, found = answered("data", "build", "tiny.py", "--store", url)
    assert code == 0 and [text["written"] for text in found["texts"]] == [False]
    sha256 = found["texts"][0]["sha256"]
    assert Store(url).files.names(f"data/{sha256}") == [
        "code.held_out.bin", "code.train.bin", "manifest.json",
        "text.held_out.bin", "text.train.bin", "tokenizer.json",
    ]  # fmt: skip


def test_a_machine_without_the_text_reads_the_same_tokens(url, said, tmp_path, monkeypatch):
    said("data", "build", "tiny.py", "--store", url)
    before = text_of(Store(url), RUN, print)
    Path("text.txt").unlink()
    monkeypatch.setenv("LADDER_CACHE", str(tmp_path / "another machine"))
    text = text_of(Store(url), RUN, print)
    assert text == before
    tokens = fetch(text.folder, text.sha256)
    assert bytes(tokens.train("text")[:6].astype(np.uint8)[1:]) == b"first"
    assert np.array_equal(fetch(text.folder, text.sha256).train("text"), tokens.train("text"))


def test_a_text_that_changed_is_refused_by_build_and_by_run(url, said):
    said("data", "build", "tiny.py", "--store", url)
    sha256 = text_of(Store(url), RUN, print).sha256
    write_texts("second")
    code, _, complaint = said("data", "build", "tiny.py", "--store", url)
    line = complaint.splitlines()[-1]
    assert code == 2 and f"begun on the text {sha256[:12]}, text.txt, code.jsonl now gives" in line
    assert text_of(Store(url), RUN, print).sha256 == sha256  # the run itself reads what the store holds


def test_without_data_build_the_first_run_pins_its_text(url):
    text_of(Store(url), RUN, print)
    write_texts("second")
    with pytest.raises(CorpusError, match=r"begun on the text .* now gives .*bring the old text back"):
        text_of(Store(url), RUN, print)


def test_shards_of_another_hash_or_damaged_ones_are_refused(url, said, tmp_path, monkeypatch):
    said("data", "build", "tiny.py", "--store", url)
    store = Store(url)
    text = text_of(store, RUN, print)
    with pytest.raises(CorpusError, match="was declared on 000000000000"):
        fetch(text.folder, "0" * 64)
    monkeypatch.setenv("LADDER_CACHE", str(tmp_path / "another machine"))
    name = f"data/{text.sha256}/text.train.bin"
    whole = store.read(name)
    store.write(name, b"\7" + whole[1:])
    with pytest.raises(CorpusError, match="damaged"):
        text_of(store, RUN, print)
    store.write(name, whole[:-2])
    with pytest.raises(CorpusError, match="bytes, not"):
        fetch(text.folder, text.sha256)


def test_a_damaged_copy_in_the_cache_is_fetched_again(tmp_path, said):
    url = f"memory://data-{tmp_path.name}"
    said("data", "build", "tiny.py", "--store", url)
    text = text_of(Store(url), RUN, print)
    copy = fetch(text.folder, text.sha256)
    (copy.folder / "text.train.bin").write_bytes(b"torn")
    said_again = []
    again = fetch(text.folder, text.sha256, said_again.append)
    assert "fetching it again" in said_again[0]
    assert len(again.train("text")) == again.manifest["domains"]["text"]["train"]["tokens"]


def test_what_a_killed_writer_left_is_not_trusted_and_written_over(url, said):
    said("data", "build", "tiny.py", "--store", url)
    store = Store(url)
    text = text_of(store, RUN, print)
    corpus = fetch(text.folder, text.sha256)
    kept = shutil.copytree(corpus.folder, Path("kept"))
    store.files.remove(f"data/{text.sha256}/manifest.json")
    store.write(f"data/{text.sha256}/text.train.bin", b"half")
    assert publish(open_corpus(kept), store.path("data"))
    assert fetch(text.folder, text.sha256).sha256 == text.sha256
    assert store.read(f"data/{text.sha256}/text.train.bin") == (kept / "text.train.bin").read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.py", "--store", "s"], "nowhere.py: no such experiment file"),
        (["tiny.py", "--store", "nosuch://bucket"], "nosuch"),
    ],
)
def test_a_wrong_call_is_one_line(words, message, said):
    code, _, complaint = said("data", "build", *words)
    assert code == 2 and message in complaint and len(complaint.splitlines()) == 1
