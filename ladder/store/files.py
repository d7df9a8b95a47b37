"""Whole files under one folder or object-store prefix: put, create, get, names. Nothing appends or renames.

On a local folder a put is a temporary file and a rename, so that a reader sees the old file or the new one
and a killed writer leaves neither half; an object store gives that by itself.
"""

import contextlib
import errno
import json
import os
import secrets
from pathlib import Path
from typing import Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem


class StoreError(ValueError):
    """The store cannot do what was asked. The text names the file, both values and the next step."""


class Files:
    """Files by their name ("runs/d32/run.json") under `url`: a path or any fsspec URL."""

    def __init__(self, url: str | os.PathLike[str]):
        try:
            # A cached listing would hide what other processes write.
            self.fs, self.root = url_to_fs(os.fspath(url), use_listings_cache=False)
        except (ValueError, ImportError) as error:  # no such protocol, or its package is not installed
            raise StoreError(f"{url}: {error}") from None
        try:
            self.root.encode()
        except UnicodeEncodeError:  # letters beyond the locale, which checkpoints cannot be written under
            raise StoreError(
                f"{self.root!a}: the locale cannot say this path: use a UTF-8 locale (LC_ALL=C.UTF-8) or "
                "set PYTHONUTF8=1"
            ) from None
        self.local = isinstance(self.fs, LocalFileSystem)

    def path(self, name: str = "") -> str:
        """The full path (local) or URL of a file."""
        path = f"{self.root}/{name}".rstrip("/")
        return path if self.local else self.fs.unstrip_protocol(path)

    def put(self, name: str, content: bytes) -> None:
        """Write the whole file, in place of an older one; atomic."""
        if self.local:
            with self._written(name, content) as (temporary, target):
                os.replace(temporary, target)
        else:
            self.fs.pipe_file(self.path(name), content)

    def create(self, name: str, content: bytes) -> bool:
        """Write the whole file unless it exists, atomically: of several writers one gets True."""
        try:
            if self.local:
                # A link, and not O_EXCL on the file itself, which readers could see while still empty.
                with self._written(name, content) as (temporary, target):
                    os.link(temporary, target)
            else:
                self.fs.pipe_file(self.path(name), content, mode="create")
        except FileExistsError:
            return False
        return True

    def get(self, name: str) -> bytes:
        """The whole file. FileNotFoundError when there is none."""
        try:
            return self.fs.cat_file(self.path(name))
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(self.path(name)) from None
        except OSError as error:
            raise StoreError(f"cannot read {self.path(name)}: {error.strerror or error}") from error

    def json(self, name: str, *keys: str) -> dict[str, Any]:
        """The JSON object in a file. Raises StoreError unless it is one and has `keys`."""
        content = self.get(name)
        try:
            found = json.loads(content)
            return found | {key: found[key] for key in keys}
        except (ValueError, KeyError, TypeError):
            raise StoreError(
                f"{self.path(name)} is damaged (no JSON object{' with ' if keys else ''}{', '.join(keys)}): "
                "restore it from a copy, or delete it and run again"
            ) from None

    def exists(self, name: str) -> bool:
        return self.fs.exists(self.path(name))

    def names(self, folder: str) -> list[str]:
        """Sorted names of what lies in `folder`, without half-written files; empty without such a folder."""
        try:
            found = self.fs.ls(self.path(folder), detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        names = (path.rstrip("/").rpartition("/")[2] for path in found)
        return sorted(name for name in names if not name.startswith("."))

    def remove(self, name: str) -> None:
        """Delete a file; nothing happens when it is gone already."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(self.path(name))

    @contextlib.contextmanager
    def _written(self, name: str, content: bytes):
        """(temporary file that holds the content on disk, target); the temporary one is gone afterwards."""
        target = Path(self.path(name))
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise _refused(target, error) from error
        try:
            yield temporary, target
        except FileExistsError:
            raise  # what `create` asks for
        except OSError as error:
            raise _refused(target, error) from error
        finally:
            temporary.unlink(missing_ok=True)


def _refused(target: Path, error: OSError) -> StoreError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    step = "make room there" if full else "make its folder writable, or use another store (--store DIR)"
    return StoreError(f"cannot write {target}: {error.strerror}: {step}")
