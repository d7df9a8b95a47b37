"""Token shards on disk: one memory-mapped file a domain and split, and a manifest that is written last."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ladder.corpus.cache import CorpusError, Say, cache_folder, file_sha256, locked
from ladder.corpus.sources import content_hash, place, split_documents, state
from ladder.corpus.tokenize import SAMPLE_BYTES, Tokenizer, sample, train_bpe
from ladder.spec import DataSpec, Source
from ladder.values import digest

FORMAT = 1
SPLITS = ("train", "held_out")
BATCH = 2_000_000  # characters encoded at a time: a tokenizer needs some hundred bytes a token meanwhile


@dataclass(frozen=True)
class Corpus:
    """Tokens of every domain. `sha256` covers the declaration, the vocabulary and every token."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def sha256(self) -> str:
        return self.manifest["sha256"]

    @property
    def vocab_size(self) -> int:
        return self.manifest["vocab_size"]

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(self.manifest["domains"])

    def train(self, domain: str) -> np.ndarray:
        """The training tokens of a domain: one long read-only row, documents begun with BOS."""
        return self._tokens(domain, "train")

    def held_out(self, domain: str) -> np.ndarray:
        return self._tokens(domain, "held_out")

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_json((self.folder / "tokenizer.json").read_text(), self.vocab_size)

    @cached_property
    def token_bytes(self) -> np.ndarray:
        """uint16[vocab_size]: bytes of text that a token stands for; 0 for BOS."""
        return self.tokenizer.token_bytes

    def _tokens(self, domain: str, split: str) -> np.ndarray:
        if domain not in self.manifest["domains"]:
            raise CorpusError(f"no domain {domain!r} in {self.folder}; it has {', '.join(self.domains)}")
        part = self.manifest["domains"][domain][split]
        return np.memmap(self.folder / part["file"], dtype=self.manifest["dtype"], mode="r")


def build(data: DataSpec, vocab_size: int, where: Path | None = None, say: Say = print) -> Corpus:
    """The token shards of a declaration, made on the first call and found again on later ones.

    They lie in a folder of `where` (default: the user's cache) named by what decides the tokens: sources,
    tokenizer, share held out, vocabulary and the state of the user's files. Phases do not matter.
    Raises CorpusError when some text cannot be used; nothing half-built is left that a next call trusts.
    """
    key = {"format": FORMAT, "data": _identity(data), "vocab_size": vocab_size}
    key["state"] = [state(source) for source in data.sources]
    folder = Path(where or cache_folder() / "shards") / digest(key)[:16]
    with locked(folder, say):
        if folder.exists():
            try:
                return open_corpus(folder, verify=True)
            except CorpusError as error:
                say(f"{error}; building it again")
                shutil.rmtree(folder)
        part = folder.with_name(folder.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        try:
            _write(part, data, vocab_size, say)
            os.replace(part, folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return open_corpus(folder)


def open_corpus(folder: Path, verify: bool = False) -> Corpus:
    """A corpus that `build` has finished. Raises CorpusError when files are missing or of the wrong size,
    with `verify` also when the sha256 of one differs (reads every byte)."""
    folder = Path(folder)
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        parts = [
            manifest["tokenizer"],
            *(part[split] for part in manifest["domains"].values() for split in SPLITS),
        ]
        changed = manifest["sha256"] != _sha256(manifest)
    except FileNotFoundError:
        raise CorpusError(f"{folder} holds no finished corpus (no manifest.json): build it again") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CorpusError(f"{folder / 'manifest.json'} cannot be read: build the corpus again") from None
    if changed:
        raise CorpusError(
            f"{folder / 'manifest.json'} was changed (its sha256 differs): build the corpus again"
        )
    for part in parts:
        file = folder / part["file"]
        size = file.stat().st_size if file.is_file() else 0
        if size != part["size"]:
            raise CorpusError(f"{file} has {size:,} bytes, not {part['size']:,}: build the corpus again")
        if verify and file_sha256(file) != part["sha256"]:
            raise CorpusError(f"{file} is damaged (its sha256 differs): build the corpus again")
    return Corpus(folder, manifest)


def check_declared(corpus: Corpus, data: DataSpec, vocab_size: int) -> None:
    """Raise CorpusError unless the corpus was built from this declaration (phases aside)."""
    if corpus.manifest["data"] != _identity(data) or corpus.vocab_size != vocab_size:
        raise CorpusError(
            f"{corpus.folder} was built from other sources, tokenizer, held_out or vocab_size than the run "
            "declares: build(run.data, run.model.vocab_size) makes the right one"
        )


def _identity(data: DataSpec) -> dict[str, Any]:
    return data.model_dump(mode="json", exclude={"phases"})


def _write(folder: Path, data: DataSpec, vocab_size: int, say: Say) -> None:
    tokenizer = Tokenizer(vocab_size) if data.tokenizer == "bytes" else _learn(data, vocab_size, say)
    (folder / "tokenizer.json").write_text(tokenizer.to_json())
    manifest = {
        "format": FORMAT,
        "data": _identity(data),
        "vocab_size": vocab_size,
        "dtype": tokenizer.dtype.str,
        "tokenizer": _described(folder / "tokenizer.json"),
        "domains": {source.domain: _encode(folder, source, data, tokenizer, say) for source in data.sources},
    }
    manifest["sha256"] = _sha256(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))


def _learn(data: DataSpec, vocab_size: int, say: Say) -> Tokenizer:
    """A vocabulary from equal shares of every domain's training text, so that phases do not change it."""
    texts: list[str] = []
    for source in data.sources:
        documents = split_documents(source, data.held_out, say)
        texts += sample((text for held, text in documents if not held), SAMPLE_BYTES // len(data.sources))
    say(f"learning a BPE vocabulary of {vocab_size}")
    return train_bpe(texts, vocab_size)


def _encode(folder: Path, source: Source, data: DataSpec, tokenizer: Tokenizer, say: Say) -> dict[str, Any]:
    """Write the token files of one domain; what the manifest says of each split."""
    parts = {split: {"tokens": 0, "bytes": 0, "documents": 0} for split in SPLITS}
    quiet = say if data.tokenizer == "bytes" else lambda _: None  # said once, on the first reading
    documents = split_documents(source, data.held_out, quiet)
    files = {split: folder / f"{source.domain}.{split}.bin" for split in SPLITS}
    with files["train"].open("wb") as train, files["held_out"].open("wb") as held_out:
        for batch in _batches(documents):
            for split, file in (("train", train), ("held_out", held_out)):
                if texts := [text for held, text in batch if held == (split == "held_out")]:
                    tokens = tokenizer.encode(texts)
                    file.write(tokens.tobytes())
                    parts[split]["tokens"] += len(tokens)
                    parts[split]["bytes"] += sum(len(text.encode()) for text in texts)
                    parts[split]["documents"] += len(texts)
    for split in SPLITS:
        if not parts[split]["documents"]:
            total = sum(part["documents"] for part in parts.values())
            raise CorpusError(
                f"domain {source.domain!r}: {source.uri} has {total} documents and held_out={data.held_out} "
                f"leaves none of them as {split} text{_better_share(source, data.held_out)}; give more "
                "documents (a form feed separates those of a .txt file): each is drawn by a hash of its text"
            )
    count = {split: f"{part['tokens']:,} {split} tokens" for split, part in parts.items()}
    say(f"encoded {source.domain}: {', '.join(count.values())}")
    return {split: _described(files[split]) | parts[split] for split in SPLITS}


def _better_share(source: Source, held_out: float) -> str:
    """The share nearest to `held_out` that leaves a document on either side, if there is one."""
    places = [place(content_hash(text)) for _, text in split_documents(source, held_out, lambda _: None)]
    shares = [percent / 100 for percent in range(1, 50) if min(places) < percent / 100 <= max(places)]
    near = min(shares, key=lambda share: abs(share - held_out), default=None)
    return f": use held_out={near:g}" if near else ""


def _batches(documents: Iterable[tuple[bool, str]]) -> Iterator[list[tuple[bool, str]]]:
    batch, size = [], 0
    for held, text in documents:
        batch.append((held, text))
        size += len(text)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    yield batch


def _described(file: Path) -> dict[str, Any]:
    return {"file": file.name, "size": file.stat().st_size, "sha256": file_sha256(file)}


def _sha256(manifest: dict[str, Any]) -> str:
    return digest({key: value for key, value in manifest.items() if key != "sha256"})
