"""Three public packages as a source of text: pinned by hash, fetched by pip, read as zip files.

They are never installed: that could clash with the user's own (S3 clients pin botocore).
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ladder.corpus.cache import CorpusError, Say, cache_folder, file_sha256, locked


@dataclass(frozen=True)
class Wheel:
    name: str
    version: str
    sha256: str
    licence: str

    @property
    def filename(self) -> str:
        return f"{self.name}-{self.version}-py3-none-any.whl"


WHEELS = {
    "docs": Wheel(
        "botocore",
        "1.44.8",
        "76342a76c338701db80dcb8afe1c9bd079283d6fffbb9d881442abb02a215043",
        "Apache-2.0",
    ),
    "code": Wheel(
        "sympy",
        "1.14.0",
        "e091cc3e99d2141a0ba2847328f5479b05d94a6635cb96148ccb3f34671bd8f5",
        "BSD-3-Clause",
    ),
    "intl": Wheel(
        "django",
        "5.2.19",
        "5965d974a5218a2b68a11dd1276434707f23886525c23f0598eccedaf4f4ca00",
        "BSD-3-Clause",
    ),
}


def fetch(wheel: Wheel, say: Say) -> Path:
    """The wheel's file in the cache, downloaded by pip unless it is there with the right hash.

    Raises CorpusError when pip cannot bring it; the text says which files to put into which folder.
    """
    path = cache_folder() / "wheels" / wheel.filename
    with locked(path, say):
        if path.is_file():
            if file_sha256(path) == wheel.sha256:
                return path
            say(f"{path} is damaged (its sha256 differs): fetching it again")
        say(f"fetching {wheel.filename} ({wheel.licence}), once")
        part = path.with_name(path.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        try:
            _pip_download(wheel, part)
            os.replace(part / wheel.filename, path)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return path


def _pip_download(wheel: Wheel, folder: Path) -> None:
    """pip checks the hash itself and leaves nothing when it differs."""
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--only-binary=:all:", "--disable-pip-version-check", "--no-input"]
    command += ["--retries=1", "--timeout=15", "--dest", str(folder), "--requirement", str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode or not (folder / wheel.filename).is_file():
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr]
        raise CorpusError(
            f"pip could not fetch {wheel.filename} ({said[-1].strip()[:200]}). "
            f"Without a network, put these files into {folder.parent}: "
            + "; ".join(f"{each.filename} (sha256 {each.sha256})" for each in WHEELS.values())
        )
