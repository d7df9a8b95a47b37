"""The user's own text: every form it may come in, and every way it may be wrong."""

import gzip
import json
import os
import sys

import fsspec
import pyarrow
import pyarrow.parquet
import pytest

from ladder import Source
from ladder.corpus import CorpusError
from ladder.corpus.sources import split_documents, state

TEXTS = [f"Document {k}: naïve café, 漢字.\r\n" for k in range(60)]


def quiet(_):
    pass


def texts(uri, field="text", held_out=0.2, say=quiet):
    source = Source(domain="mine", uri=str(uri), text_field=field)
    return [text for _, text in split_documents(source, held_out, say)]


def jsonl(rows, field="text"):
    return "".join(json.dumps({field: row, "n": k}) + "\n" for k, row in enumerate(rows)).encode()


def test_a_text_file_is_a_document_and_a_form_feed_cuts_it(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\r\nstill one")
    (tmp_path / "b.txt").write_bytes(b"two\f\nthree")
    assert texts(tmp_path / "*.txt") == ["one\r\nstill one", "two", "\nthree"]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.parquet", "rows.txt.gz"])
def test_every_form_gives_the_same_documents(tmp_path, name):
    file = tmp_path / name
    if name == "rows.parquet":
        pyarrow.parquet.write_table(pyarrow.table({"body": TEXTS}), file, row_group_size=7)
    else:
        content = jsonl(TEXTS, "body") if "jsonl" in name else "\f".join(TEXTS).encode()
        file.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert texts(file, "body") == TEXTS


def test_text_is_read_by_url(tmp_path):
    with fsspec.open("memory://shelf/rows.jsonl", "wb") as file:
        file.write(jsonl(TEXTS))
    assert texts("memory://shelf/*.jsonl") == TEXTS
    (tmp_path / "a.txt").write_text("local")
    assert texts(f"file://{tmp_path}/a.txt") == ["local"]


def test_repeated_documents_are_kept_once_and_empty_ones_are_skipped_and_counted(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(jsonl(["a", "", "b", " \n", "a"]))
    said = []
    assert texts(tmp_path / "a.jsonl", say=said.append) == ["a", "b"]
    assert said == ["domain 'mine': skipped 2 documents without text"]


def test_a_document_keeps_its_side_when_others_come(tmp_path):
    def sides(rows):
        (tmp_path / "a.jsonl").write_bytes(jsonl(rows))
        source = Source(domain="mine", uri=str(tmp_path / "a.jsonl"))
        return {text: held for held, text in split_documents(source, 0.2, quiet)}

    few, many = sides(TEXTS), sides([f"more {k}" for k in range(1003)] + TEXTS)
    assert few.items() <= many.items()
    assert 0.15 < sum(many.values()) / len(many) < 0.25


BAD = {
    "missing": ("nowhere.txt", None, "no file .*nowhere.txt.*give a path"),
    "kind": ("a.pdf", b"x", "none of .txt"),
    "empty": ("a.txt", b"  \n", "holds no text"),
    "encoding": ("a.txt", "Größe".encode("latin-1"), r"not UTF-8 at byte 2.*convert"),
    "encoding of a line": ("a.jsonl", b'{"text": "ok"}\n{"text": "\xff"}\n', "line 2.*not UTF-8"),
    "half a character": ("a.jsonl", b'{"text": "\\ud800"}\n', "line 1.*UTF-8"),
    "not json": ("a.jsonl", b'{"text": "ok"}\n{"text"\n', "line 2: not JSON"),
    "not an object": ("a.jsonl", b"[1]\n", "line 1: no field 'text' .it has none"),
    "no such field": ("a.jsonl", b'{"body": "x"}\n', "it has body.*text_field"),
    "not text": ("a.jsonl", b'{"text": 5}\n', "'text' is int, not text"),
    "not gzip": ("a.jsonl.gz", b"plain", "cannot be read"),
    "torn gzip": ("a.jsonl.gz", gzip.compress(jsonl(TEXTS))[:-9], "cannot be read"),
    "not parquet": ("a.parquet", b"plain", "not a Parquet file"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_an_error_that_names_domain_file_and_what_to_do(tmp_path, case):
    name, content, message = BAD[case]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=message) as error:
        texts(tmp_path / name)
    assert "'mine'" in str(error.value) and name in str(error.value)


def test_a_parquet_file_without_the_column_names_those_it_has(tmp_path):
    pyarrow.parquet.write_table(pyarrow.table({"body": TEXTS}), tmp_path / "a.parquet")
    with pytest.raises(CorpusError, match=r"no field 'text' .it has body"):
        texts(tmp_path / "a.parquet")


def test_an_address_of_an_unknown_kind_is_said():
    with pytest.raises(CorpusError, match="cannot open nosuch://"):
        texts("nosuch://x/a.txt")


def test_an_unknown_built_in_text_names_those_there_are():
    with pytest.raises(CorpusError, match="builtin:code, builtin:docs, builtin:intl"):
        state(Source(domain="mine", uri="builtin:novels"))


def test_the_state_of_a_source_changes_with_its_files(tmp_path):
    source = Source(domain="mine", uri=str(tmp_path / "*.txt"))
    (tmp_path / "a.txt").write_text("one")
    first = state(source)
    assert state(source) == first
    os.utime(tmp_path / "a.txt", (0, 0))
    second = state(source)
    (tmp_path / "b.txt").write_text("two")
    assert first != second != state(source) and len(state(source)) == 2


def test_a_hugging_face_data_set_without_the_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(CorpusError, match=r"scaling-ladder\[hf\]"):
        texts("hf:some/name")


def test_a_hugging_face_data_set_is_read_from_a_folder(tmp_path, monkeypatch):
    pytest.importorskip("datasets", reason="needs the extra hf")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.jsonl").write_bytes(jsonl(TEXTS, "body"))
    monkeypatch.chdir(tmp_path)
    assert texts("hf:./mine", "body") == TEXTS
    assert texts("hf:./mine::train", "body") == TEXTS
    assert state(Source(domain="mine", uri="hf:./mine"))
    with pytest.raises(CorpusError, match="no field 'text'"):
        texts("hf:./mine")
    with pytest.raises(CorpusError, match="not loaded"):
        texts("hf:./mine::nosplit", "body")
