"""From what code, packages and machine a run came."""

import contextlib
import getpass
import hashlib
import platform
import socket
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = (
    "jax",
    "jaxlib",
    "optax",
    "orbax-checkpoint",
    "ray",
    "numpy",
    "scipy",
    "pandas",
    "pydantic",
    "wandb",
)


def provenance() -> dict:
    """version, git (sha, dirty, diff_sha256; absent outside a checkout), packages, python, platform, host,
    user, argv. What cannot be known is left out."""
    import ladder

    found = {
        "version": ladder.__version__,
        "packages": {name: v for name in PACKAGES if (v := _version(name))},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "argv": sys.argv,
    }
    with contextlib.suppress(KeyError, OSError):  # a container without a user database
        found["user"] = getpass.getuser()
    git = _git_state(Path(ladder.__file__).parent)
    return found | ({"git": git} if git else {})


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_state(folder: Path) -> dict | None:
    """None when `folder` is in no checkout, or only ignored by one (an environment inside it)."""
    try:
        _git(folder, "ls-files", "--error-unmatch", "__init__.py")
        sha, diff = _git(folder, "rev-parse", "HEAD"), _git(folder, "diff", "HEAD", "--binary")
        untracked = _git(folder, "ls-files", "--others", "--exclude-standard", ":/")
    except (OSError, subprocess.SubprocessError):
        return None
    state = {"sha": sha.decode().strip(), "dirty": bool(diff or untracked)}
    return state | ({"diff_sha256": hashlib.sha256(diff).hexdigest()} if diff else {})


def _git(folder: Path, *arguments: str) -> bytes:
    done = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, timeout=10)
    return done.stdout
