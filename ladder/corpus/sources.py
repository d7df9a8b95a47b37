"""The user's own text: .txt, .jsonl and .parquet by path, glob or URL, and Hugging Face data sets by name.

A document is a row of .jsonl or .parquet, or a .txt file; form feeds cut a .txt file into several.
Documents without text are skipped and counted, repeated ones are kept once.
"""

import contextlib
import hashlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from fsspec.core import url_to_fs

from ladder.corpus.builtin import RECIPES, builtin
from ladder.corpus.cache import CorpusError, Say
from ladder.spec import Source

KINDS = (".txt", ".jsonl", ".parquet")


def split_documents(source: Source, held_out: float, say: Say) -> Iterator[tuple[bool, str]]:
    """(is it held out, text) of each document of a domain, always in the same order.

    A document's own hash decides, so it stays on its side when others are added. The built-in text is
    split already.
    """
    if source.uri.startswith("builtin:"):
        text = builtin(source.uri.removeprefix("builtin:"), say)
        yield from ((False, document) for document in text.train)
        yield from ((True, document) for document in text.held_out)
        return
    seen: set[bytes] = set()
    empty = 0
    for where, text in _documents(source):
        try:
            key = content_hash(text)
        except UnicodeEncodeError as error:
            raise CorpusError(f"{where}: not text that UTF-8 can say ({error}): repair or drop it") from None
        if not text.strip():
            empty += 1
        elif key not in seen:
            seen.add(key)
            yield place(key) < held_out, text
    if not seen:
        raise CorpusError(f"domain {source.domain!r}: {source.uri} holds no text ({empty} empty documents)")
    if empty:
        say(f"domain {source.domain!r}: skipped {empty} documents without text")


def content_hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:16]


def place(key: bytes) -> float:
    """Where a document's hash lies in [0, 1): it is held out when that is below the share held out."""
    return int.from_bytes(key[:6]) / 2**48


def state(source: Source) -> list[Any]:
    """What changes when the source's text changes: the built-in text's hash, or size and time of each file.

    Raises CorpusError when there is no such text. A data set by name is taken as fixed.
    """
    if source.uri.startswith("builtin:"):
        name = source.uri.removeprefix("builtin:")
        if name not in RECIPES:
            raise CorpusError(
                f"domain {source.domain!r}: no text {source.uri!r}; there are "
                + ", ".join(f"builtin:{known}" for known in sorted(RECIPES))
            )
        return [RECIPES[name].sha256]
    if source.uri.startswith("hf:"):
        name = source.uri.split(":")[1]
        files = sorted(p for p in Path(name).rglob("*") if p.is_file()) if Path(name).is_dir() else []
        return [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    found = []
    for fs, path in _files(source):
        info = fs.info(path)
        stamp = next(
            (info[key] for key in ("ETag", "etag", "mtime", "LastModified", "created") if key in info), ""
        )
        found.append([path, info.get("size"), str(stamp)])
    return found


def _files(source: Source) -> list[tuple[Any, str]]:
    """(file system, path) of each file that the address names, sorted by path."""
    domain = f"domain {source.domain!r}"
    try:
        fs, path = url_to_fs(source.uri)
        paths = sorted(fs.glob(path)) if any(c in path for c in "*?[") else [path] if fs.isfile(path) else []
    except (ImportError, OSError, ValueError) as error:
        raise CorpusError(f"{domain}: cannot open {source.uri} ({error}): check the address") from None
    if not paths and fs.isdir(path):
        raise CorpusError(f"{domain}: {source.uri} is a folder: name its files, such as {source.uri}/*.txt")
    if not paths:
        raise CorpusError(
            f"{domain}: no file {source.uri} (or it cannot be reached): give a path, a glob or a URL of "
            + ", ".join(KINDS)
        )
    for name in paths:
        if not name.removesuffix(".gz").endswith(KINDS):
            raise CorpusError(
                f"{domain}: {name} is none of {', '.join(KINDS)} (.gz allowed for the first two)"
            )
    return [(fs, name) for name in paths]


def _documents(source: Source) -> Iterator[tuple[str, str]]:
    """(where it stands, text) of each document, in order of the files."""
    if source.uri.startswith("hf:"):
        yield from _hugging_face(source)
        return
    for fs, path in _files(source):
        where = f"domain {source.domain!r}: {path}"
        with _opened(fs, path, where) as file:
            if path.endswith(".parquet"):
                yield from _parquet(file, source.text_field, where)
            elif path.removesuffix(".gz").endswith(".jsonl"):
                yield from _jsonl(file, source.text_field, where)
            else:
                for number, text in enumerate(_utf8(file.read(), where).split("\f")):
                    yield f"{where} document {number}", text


@contextlib.contextmanager
def _opened(fs: Any, path: str, where: str) -> Iterator[IO[bytes]]:
    try:
        with fs.open(path, "rb", compression="gzip" if path.endswith(".gz") else None) as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        raise CorpusError(f"{where}: cannot be read ({error})") from None


def _utf8(content: bytes, where: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise CorpusError(f"{where}: not UTF-8 at byte {error.start}: convert the file to UTF-8") from None


def _jsonl(file: IO[bytes], field: str, where: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        at = f"{where} line {number}"
        try:
            row = json.loads(_utf8(line, at))
        except json.JSONDecodeError as error:
            raise CorpusError(f"{at}: not JSON ({error.msg}): each line is one JSON object") from None
        yield at, _field(row, field, at)


def _parquet(file: IO[bytes], field: str, where: str) -> Iterator[tuple[str, str]]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(file)
    except pyarrow.ArrowInvalid as error:
        raise CorpusError(f"{where}: not a Parquet file ({error})") from None
    if field not in table.schema_arrow.names:
        raise CorpusError(_no_field(where, field, table.schema_arrow.names))
    number = 0
    for batch in table.iter_batches(columns=[field]):
        for row in batch.to_pylist():
            yield f"{where} row {number}", _field(row, field, f"{where} row {number}")
            number += 1


def _hugging_face(source: Source) -> Iterator[tuple[str, str]]:
    where = f"domain {source.domain!r}: {source.uri}"
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise CorpusError(f"{where} needs the extra hf: pip install 'scaling-ladder[hf]'") from None
    name, config, split = (*source.uri.split(":")[1:], "", "")[:3]
    try:
        rows = datasets.load_dataset(name, config or None, split=split or "train")
    except Exception as error:  # the library raises a family of its own and those of the network
        raise CorpusError(f"{where}: not loaded ({type(error).__name__}: {error})") from error
    for number, row in enumerate(rows):
        yield f"{where} row {number}", _field(row, source.text_field, f"{where} row {number}")


def _field(row: Any, field: str, at: str) -> str:
    if not isinstance(row, dict) or field not in row:
        raise CorpusError(_no_field(at, field, list(row) if isinstance(row, dict) else []))
    if not isinstance(row[field], str):
        raise CorpusError(
            f"{at}: field {field!r} is {type(row[field]).__name__}, not text: name another text_field"
        )
    return row[field]


def _no_field(at: str, field: str, has: list[str]) -> str:
    return f"{at}: no field {field!r} (it has {', '.join(has) or 'none'}): set Source.text_field"
