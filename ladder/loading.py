"""Read an experiment file: the ladder that it declares, or the line that is wrong."""

import contextlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ladder.spec import Ladder
from ladder.values import SpecError


def load(path: str | Path) -> Ladder:
    """The LADDER that an experiment file declares.

    Raises SpecError when the file is missing, raises, or declares no LADDER; the text names the line.
    """
    ladder = getattr(load_module(path), "LADDER", None)
    if not isinstance(ladder, Ladder):
        raise SpecError(
            f"{path} declares no LADDER (found {type(ladder).__name__}): end it with LADDER = Ladder(...)"
        )
    return ladder


def load_module(path: str | Path) -> Any:
    """Run an experiment file as a module of its own name. It may import the files beside it; afterwards its
    folder is no longer importable, so that no other experiment meets them."""
    file = Path(path).absolute()  # as tracebacks name it
    if not file.is_file():
        raise SpecError(f"{path}: no such experiment file")
    found = importlib.util.spec_from_file_location(f"experiment_{file.stem}", file)
    if found is None or found.loader is None:
        raise SpecError(f"{path}: not a Python file (.py)")
    module = importlib.util.module_from_spec(found)
    try:
        with _importable(file.parent):
            found.loader.exec_module(module)
    except SystemExit as error:
        raise SpecError(
            f"{path}:{_line_in(error, file)}: the file ended the program ({error.code!r}): it is given no "
            "arguments and only declares LADDER"
        ) from None
    except SpecError as error:
        raise SpecError(f"{path}:{_line_in(error, file)}: {error}") from None
    except Exception as error:
        line = _line_in(error, file)
        last = traceback.format_exception_only(error)[-1].strip()
        if isinstance(error, SyntaxError):  # of a file beside it too: its text names that file
            last = f"{type(error).__name__}: {error}"
        raise SpecError(f"{path}:{line}: {last}") from error
    return module


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Modules of `folder` can be imported for a with block, after those that are installed."""
    if str(folder) in sys.path:
        yield
        return
    before = set(sys.modules)
    sys.path.append(str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            place = getattr(sys.modules[name], "__file__", None)
            if place and Path(place).parent == folder:
                del sys.modules[name]


def _line_in(error: BaseException, file: Path) -> int | str:
    if isinstance(error, SyntaxError) and error.lineno and error.filename == str(file):
        return error.lineno
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).resolve() == file.resolve()
    ]
    return frames[-1].lineno or "?" if frames else "?"
