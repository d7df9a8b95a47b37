"""The process that mirrors a store on W&B while a ladder trains, and the one call of `ladder sync`.

wandb lives in a process of its own, at low priority, that reads the store and nothing else: a service that
is dead, slow or full cannot reach a run, a prompt has no terminal, and an end that takes too long is cut
off. Its standard input is the line to its parent: when it closes, by will or by death, the mirror sends what
is left and ends.
"""

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from ladder.corpus.cache import cache_folder
from ladder.store import Store, StoreError
from ladder.tracking import FINISH_S, Mode, RunMirror, Unreachable, new_identity

LOOK_S = 5.0  # between two looks at the record
SHARE = 0.05  # of the time at most is spent on looking


class MirrorError(RuntimeError):
    """W&B could not be brought up to date. The text says why and what to do."""


@contextlib.contextmanager
def mirrored(store: Store, mode: Mode, say: Callable[[str], None]) -> Iterator[None]:
    """Mirror `store` for the length of a with block, which is left within about FINISH_S."""
    # an object store has no place for offline files, and needs none: `ladder sync` reads the record
    if mode == "off" or (mode == "offline" and not _is_local(store)):
        yield
        return
    try:
        process = _start(store, mode)
    except OSError as error:  # no place on the disk, no more processes: training goes on
        say(f"nothing is mirrored on W&B: {error}")
        yield
        return
    relay = threading.Thread(target=_relay, args=(process, say), daemon=True)
    relay.start()
    try:
        yield
    finally:
        code = _end(process)
        relay.join(10)  # wandb-core holds the pipe too, and follows its parent within seconds
        if code:
            say(f"W&B has not everything; `ladder sync {store.url}` sends the rest")


def _relay(process: subprocess.Popen, say: Callable[[str], None]) -> None:
    for line in _lines(process):
        say(line.get("say") or line["failed"])


def sync(store: Store, say: Callable[[str], None]) -> list[dict]:
    """Send what the service lacks of each run that has rows: run, rows (in the store), sent, there (on the
    service afterwards). Raises MirrorError when the service does not take them."""
    process = _start(store, "online", "sync")
    done: list[dict] = []
    try:
        for line in _lines(process):
            if "say" in line:
                say(line["say"])
            elif "failed" in line:
                raise MirrorError(f"{line['failed'].rstrip('.')}; then call this again")
            else:
                done.append(line)
        if process.wait():
            raise MirrorError(f"the sending process ended with code {process.returncode}: see {_log(store)}")
    finally:
        _end(process)
    return done


def _start(store: Store, mode: Mode, *how: str) -> subprocess.Popen:
    folder = _folder(store)
    folder.mkdir(parents=True, exist_ok=True)
    with open(_log(store), "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "ladder.cluster.mirror", store.url, mode, *how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=folder,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for the driver, which then ends us
        )


def _environment() -> dict[str, str]:
    """Ours, without a wandb session or a mode that some other code has chosen."""
    kept = {name: value for name, value in os.environ.items() if name not in ("WANDB_SERVICE", "WANDB_MODE")}
    return kept | {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}


def _end(process: subprocess.Popen) -> int:
    """Its exit code; it is killed when it does not keep to its time."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        return process.wait(FINISH_S + 5)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _lines(process: subprocess.Popen) -> Iterator[dict]:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            yield json.loads(line)


def _is_local(store: Store) -> bool:
    return store.files.local


def _folder(store: Store) -> Path:
    """Where the files of wandb go: in the store, or in this user's cache for a store that is no folder."""
    root = Path(store.url) if _is_local(store) else cache_folder() / "mirrors" / new_identity(store.url)
    return root / "wandb"


def _log(store: Store) -> Path:
    return _folder(store) / "mirror.log"


# --- in the process of its own ---


def main(url: str, mode: Literal["offline", "online"], *how: Literal["sync"]) -> int:
    store, once = Store(url), "sync" in how
    if not once:
        os.nice(19)  # what trains comes first; Ray runs it at 15
    over = threading.Event()
    threading.Thread(target=_watch_parent, args=(over,), daemon=True).start()
    try:
        with _alone(_folder(store) / f"{mode}.lock", wait=not once):
            mirrors = _mirrors(store, mode)
            if once:
                _send_all(mirrors)
            elif not follow(mirrors, over, lambda: _mirrors(store, "offline")):
                return 1
            return 0
    except Exception as error:
        _print(failed=_line(error))
        return 1


def _watch_parent(over: threading.Event) -> None:
    while os.read(0, 1):  # unbuffered: a lock held on sys.stdin would abort the interpreter's own exit
        pass
    over.set()
    time.sleep(FINISH_S)
    os._exit(1)  # wandb's own exit would wait for the service; wandb-core follows us by itself


@contextlib.contextmanager
def _alone(path: Path, wait: bool) -> Iterator[None]:
    """Two senders would each send what the other is about to; the lock falls with its process."""
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise StoreError("another process is sending this store to W&B now: wait for it") from None
        yield


def _mirrors(store: Store, mode: Mode) -> dict[str, RunMirror]:
    try:
        identity = store.read("wandb/identity").decode()
    except FileNotFoundError:
        identity = new_identity(store.url)
        store.write("wandb/identity", identity)
    folder = _folder(store).parent
    return {
        record.id: RunMirror(record, mode, ladder=store.ladder().name, identity=identity, folder=folder)
        for record in store.runs()
    }


def follow(
    mirrors: dict[str, RunMirror], over: threading.Event, offline: Callable[[], dict[str, RunMirror]]
) -> bool:
    """Catch up with the record again and again until `over`, and once more. When the service cannot be
    reached, the runs that have not begun there go `offline`. Anything else that goes wrong is said once and
    tried again. True when nothing is left wrong."""
    wrong: dict[str, str] = {}
    while True:
        last, began, reached = over.is_set(), time.monotonic(), True
        for name, mirror in list(mirrors.items()):
            try:
                mirror.catch_up(to_the_end=last)
                mirror.alert()
                if last or mirror.has_ended:
                    del mirrors[name]
                    mirror.catch_up(to_the_end=True)
                    mirror.close()
                wrong.pop(name, None)
            except Unreachable as error:
                _print(
                    say=f"{_line(error)}; its rows go to files in the store, `ladder sync` sends them later"
                )
                reached = False
                mirrors[name] = mirror
                waiting = [run for run, other in mirrors.items() if not other.is_open]
                fresh = offline()
                mirrors |= {run: fresh[run] for run in waiting}
                break
            except Exception as error:
                if wrong.get(name) != _line(error):
                    wrong[name] = _line(error)
                    _print(say=f"W&B has not all of {name}: {wrong[name]}")
        if not reached:
            continue
        if last:
            return not wrong
        over.wait(min(60.0, max(LOOK_S, (time.monotonic() - began) / SHARE)))


def _send_all(mirrors: dict[str, RunMirror]) -> None:
    for mirror in mirrors.values():
        rows = len(mirror.record.rows())
        if rows:
            mirror.catch_up(to_the_end=True)
            mirror.close()
            _print(run=mirror.record.id, rows=rows, sent=mirror.sent, there=mirror.there())


def _print(**line: object) -> None:
    print(json.dumps(line), flush=True)


def _line(error: Exception) -> str:
    kind = "" if isinstance(error, (Unreachable, StoreError)) else f"{type(error).__name__}: "
    text = f"{kind}{' '.join(str(error).split()):.300}"
    key = os.environ.get("WANDB_API_KEY")
    return text.replace(key, "***") if key else text


if __name__ == "__main__":
    ended = main(*sys.argv[1:])  # pyright: ignore[reportArgumentType]
    if ended:
        os._exit(ended)  # wandb's own exit would wait for a service that has had its time
