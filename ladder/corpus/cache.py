"""The user's cache folder: where wheels, cleaned text and token shards are kept between runs."""

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

Say = Callable[[str], None]


class CorpusError(ValueError):
    """Text that cannot be used. The message names the domain, the file and the next step."""


def cache_folder() -> Path:
    """LADDER_CACHE, else scaling-ladder below XDG_CACHE_HOME, else ~/.cache/scaling-ladder."""
    if named := os.environ.get("LADDER_CACHE"):
        return Path(named)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scaling-ladder"
    except RuntimeError:  # no HOME, and a user without an entry in the user database
        raise CorpusError("this user has no home folder: set LADDER_CACHE to a folder") from None


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def locked(path: Path, say: Say) -> Iterator[None]:
    """Hold `path` + ".lock" against other processes, so that two of them never do the same work twice.

    The lock goes with the process that holds it, however that one ends; the empty file stays. What the disk
    refuses meanwhile is a CorpusError that names `path`.
    """
    with _lock_file(path.with_name(path.name + ".lock")) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that is preparing {path}")
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        except OSError as error:
            raise CorpusError(
                f"cannot prepare {path} ({error.strerror or error}): free some space there, or set "
                "LADDER_CACHE to another folder"
            ) from error


def _lock_file(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w")
    except OSError as error:
        raise CorpusError(
            f"cannot write to {path.parent} ({error}): set LADDER_CACHE to a folder that can be written"
        ) from None


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a reader finds all of it or none. Call it with the file's lock held."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
