"""Token shards beside the record: one folder a text, named by its sha256, written once, read through the
local cache.

    DATA/SHA256/manifest.json      last: without it the folder holds nothing
               /tokenizer.json, DOMAIN.SPLIT.bin
"""

import json
import os
import secrets
import shutil
from pathlib import Path

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from ladder.corpus.cache import CorpusError, Say, cache_folder, locked
from ladder.corpus.shards import Corpus, open_corpus

MANIFEST = "manifest.json"


def publish(corpus: Corpus, data: str) -> bool:
    """Copy a corpus into the folder or URL `data`; False when it lies there already.

    Raises CorpusError when a file cannot be written. What a killed writer leaves is written over.
    """
    fs, root = url_to_fs(f"{data}/{corpus.sha256}", use_listings_cache=False)
    if fs.exists(f"{root}/{MANIFEST}"):
        return False
    try:
        fs.makedirs(root, exist_ok=True)
        for name in sorted(path.name for path in corpus.folder.iterdir() if path.name != MANIFEST):
            _put(fs, corpus.folder / name, f"{root}/{name}")
        _put(fs, corpus.folder / MANIFEST, f"{root}/{MANIFEST}")
    except OSError as error:
        raise CorpusError(f"cannot write {data}/{corpus.sha256}: {error}") from error
    return True


def published(data: str, sha256: str) -> bool:
    fs, root = url_to_fs(f"{data}/{sha256}", use_listings_cache=False)
    return fs.exists(f"{root}/{MANIFEST}")


def fetch(folder: str, sha256: str, say: Say = lambda _: None, verify: bool = False) -> Corpus:
    """The corpus in `folder`: read where it lies on a local disk, else through the user's cache.

    A copy is verified when it is made; what is there already, with `verify` (reads every byte). Raises
    CorpusError when it is not the text with this sha256.
    """
    fs, root = url_to_fs(folder, use_listings_cache=False)
    if isinstance(fs, LocalFileSystem):
        return _checked(open_corpus(Path(root), verify), sha256, folder)
    return _cached(fs, root, folder, sha256, say, verify)


def _checked(corpus: Corpus, sha256: str, folder: str) -> Corpus:
    if corpus.sha256 != sha256:
        raise CorpusError(
            f"{folder} holds the text {corpus.sha256[:12]}, the run was declared on {sha256[:12]}: bring "
            "that text back, or train in another store"
        )
    return corpus


def _cached(fs: AbstractFileSystem, root: str, folder: str, sha256: str, say: Say, verify: bool) -> Corpus:
    here = cache_folder() / "fetched" / sha256
    with locked(here, say):
        if here.exists():
            try:
                return open_corpus(here, verify)
            except CorpusError as error:
                say(f"{error}; fetching it again")
                shutil.rmtree(here)
        part = here.with_name(here.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        try:
            manifest = json.loads(fs.cat_file(f"{root}/{MANIFEST}"))
            (part / MANIFEST).write_text(json.dumps(manifest, indent=1))
            say(f"fetching the text {sha256[:12]} from {folder}")
            for name in _files(manifest):
                fs.get_file(f"{root}/{name}", str(part / name))
            _checked(open_corpus(part, verify=True), sha256, folder)
            os.replace(part, here)
        except FileNotFoundError as error:
            raise CorpusError(
                f"{folder} is incomplete ({error}): `ladder data build FILE --store URL` writes it"
            ) from None
        except CorpusError as error:
            raise CorpusError(f"what {folder} holds is damaged: {error}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise CorpusError(f"{folder}/{MANIFEST} cannot be read: build the corpus again") from None
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return open_corpus(here)


def _files(manifest: dict) -> list[str]:
    splits = [part for domain in manifest["domains"].values() for part in domain.values()]
    return [part["file"] for part in (manifest["tokenizer"], *splits)]


def _put(fs: AbstractFileSystem, source: Path, target: str) -> None:
    if isinstance(fs, LocalFileSystem):  # others may be reading an older copy: replace it whole
        part = f"{target}.{secrets.token_hex(6)}.part"
        shutil.copyfile(source, part)
        os.replace(part, target)
    else:
        fs.put_file(str(source), target)
