"""Shards: built once, found again, refused when damaged, never half there."""

import json
import multiprocessing
import re

import numpy as np
import pytest

from ladder import DataSpec, Phase, Source
from ladder.corpus import CorpusError, build, check_declared, open_corpus, shards
from ladder.corpus.sources import content_hash, place

WORDS = ["alpha", "Größe", "漢字", "def f(x):", "return", "  indented", "\n", "a longer stretch of words"]


def documents(seed: int, count: int) -> list[str]:
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, size=40)) + f" {seed} {k}" for k in range(count)]


@pytest.fixture
def data(tmp_path):
    """Two domains of 200 documents, a fifth held out."""
    for k, name in enumerate(("left", "right")):
        (tmp_path / f"{name}.txt").write_bytes("\f".join(documents(k, 200)).encode())
    return DataSpec(
        sources=tuple(Source(domain=d, uri=str(tmp_path / f"{d}.txt")) for d in ("left", "right")),
        phases=(Phase(start=0.0, weights={"left": 0.5, "right": 0.5}),),
        held_out=0.2,
    )


@pytest.fixture
def where(tmp_path):
    return tmp_path / "shards"


def quiet(_):
    pass


def texts(corpus, tokens):
    """The documents of a stream."""
    starts = np.flatnonzero(tokens == corpus.vocab_size - 1)
    return [corpus.tokenizer.decode(part) for part in np.split(tokens, starts[1:])]


@pytest.mark.parametrize(("tokenizer", "vocab_size"), [("bytes", 257), ("bpe", 300)])
def test_every_document_comes_back_from_its_side(data, where, tokenizer, vocab_size):
    corpus = build(data.replace(tokenizer=tokenizer), vocab_size, where, quiet)
    assert corpus.domains == ("left", "right")
    for k, domain in enumerate(corpus.domains):
        train, held_out = corpus.train(domain), corpus.held_out(domain)
        assert sorted(texts(corpus, train) + texts(corpus, held_out)) == sorted(documents(k, 200))
        for split, tokens in (("train", train), ("held_out", held_out)):
            part = corpus.manifest["domains"][domain][split]
            assert part["tokens"] == len(tokens)
            assert (
                part["bytes"]
                == corpus.token_bytes[tokens].sum()
                == sum(len(text.encode()) for text in texts(corpus, tokens))
            )
        assert 20 < len(texts(corpus, held_out)) < 60


def test_a_second_call_finds_the_first_and_phases_do_not_matter(data, where):
    first = build(data, 257, where, quiet)
    other = data.replace(phases=(Phase(start=0.0, weights={"left": 1.0}),))
    said = []
    again = build(other, 257, where, said.append)
    assert again.folder == first.folder and again.sha256 == first.sha256 and said == []
    check_declared(first, other, 257)
    with pytest.raises(CorpusError, match="built from other sources"):
        check_declared(first, other.replace(held_out=0.1), 257)


def test_the_same_text_gives_the_same_sha256_anywhere(data, tmp_path):
    bpe = data.replace(tokenizer="bpe")
    assert build(bpe, 300, tmp_path / "a", quiet).sha256 == build(bpe, 300, tmp_path / "b", quiet).sha256


def test_changed_text_is_another_corpus(data, where, tmp_path):
    first = build(data, 257, where, quiet)
    (tmp_path / "left.txt").write_text("\f".join(documents(7, 200)))
    assert build(data, 257, where, quiet).folder != first.folder


def test_a_shard_cut_short_is_refused_when_opened(data, where):
    corpus = build(data, 257, where, quiet)
    file = corpus.folder / "left.train.bin"
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(CorpusError, match=r"left.train.bin has .* bytes, not"):
        open_corpus(corpus.folder)


def test_a_changed_token_is_found_by_hash_and_the_corpus_built_again(data, where):
    corpus = build(data, 257, where, quiet)
    file = corpus.folder / "left.train.bin"
    good = file.read_bytes()
    file.write_bytes(good[:100] + b"\x01\x00" + good[102:])
    with pytest.raises(CorpusError, match=r"left.train.bin is damaged"):
        open_corpus(corpus.folder, verify=True)
    said = []
    assert build(data, 257, where, said.append).sha256 == corpus.sha256
    assert "building it again" in said[0] and file.read_bytes() == good


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"sha256": "x"'])
def test_a_manifest_that_cannot_be_read_is_refused(data, where, content):
    corpus = build(data, 257, where, quiet)
    (corpus.folder / "manifest.json").write_text(content)
    with pytest.raises(CorpusError, match="cannot be read"):
        open_corpus(corpus.folder)


def test_a_changed_manifest_is_refused(data, where):
    corpus = build(data, 257, where, quiet)
    (corpus.folder / "manifest.json").write_text(json.dumps(corpus.manifest | {"vocab_size": 300}))
    with pytest.raises(CorpusError, match="was changed"):
        open_corpus(corpus.folder)


def test_an_interrupted_build_leaves_nothing_to_trust(data, where, monkeypatch):
    """Ctrl-C after the first domain, then a power cut that leaves the working folder behind."""
    encode = shards._encode

    def interrupted(folder, source, *rest):
        if source.domain == "right":
            raise KeyboardInterrupt
        return encode(folder, source, *rest)

    monkeypatch.setattr(shards, "_encode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build(data, 257, where, quiet)
    assert [path for path in where.iterdir() if path.is_dir()] == []

    with monkeypatch.context() as patch:
        patch.setattr(shards.shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            build(data, 257, where, quiet)
    (left,) = [path for path in where.iterdir() if path.is_dir()]
    with pytest.raises(CorpusError, match="no finished corpus"):
        open_corpus(left)

    monkeypatch.undo()
    corpus = build(data, 257, where, quiet)
    assert [path for path in where.iterdir() if path.is_dir()] == [corpus.folder]


def test_a_split_that_leaves_a_side_empty_is_refused(data, where, tmp_path):
    (tmp_path / "left.txt").write_text("a single document")
    with pytest.raises(CorpusError, match=r"'left'.*left.txt has 1 documents and held_out=0.2.*form feed"):
        build(data, 257, where, quiet)
    assert [path for path in where.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("held_out", [0.001, 0.49])
def test_the_share_that_the_error_names_leaves_text_on_both_sides(held_out, data, where, tmp_path):
    words = [f"document {n}" for n in range(100)]
    places = {word: place(content_hash(word)) for word in words}
    side = [word for word in words if (0.05 < places[word] < 0.45)]
    (tmp_path / "left.txt").write_text("\f".join(side[:5]))
    with pytest.raises(CorpusError, match=r"use held_out=0\.\d+; give more") as error:
        build(data.replace(held_out=held_out), 257, where, quiet)
    named = float(re.search(r"use held_out=([\d.]+)", str(error.value))[1])
    assert build(data.replace(held_out=named), 257, where, quiet).sha256


def test_a_domain_that_is_not_there_names_those_that_are(data, where):
    with pytest.raises(CorpusError, match="it has left, right"):
        build(data, 257, where, quiet).train("middle")


def _build_and_tell(data, where, out):
    said = []
    out.put((build(data, 257, where, said.append).sha256, sum("encoded" in text for text in said)))


def test_of_two_processes_at_once_one_builds_and_both_have_it(data, where):
    spawn = multiprocessing.get_context("spawn")
    out = spawn.Queue()
    both = [spawn.Process(target=_build_and_tell, args=(data, where, out)) for _ in range(2)]
    for process in both:
        process.start()
    results = [out.get(timeout=120) for _ in both]
    for process in both:
        process.join()
    assert results[0][0] == results[1][0] and sorted(count for _, count in results) == [0, 2]
