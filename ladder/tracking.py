"""A mirror of runs on Weights & Biases. The store is the record: a mirror reads it and sends what W&B lacks.

Nothing here is called by a process that trains: ladder.cluster.mirror follows the record from a process of
its own. A run keeps one id for all its attempts, so that it has one history at W&B; steps that are there
already are not sent again. The axis is the rows' own `tokens`: wandb's step counts calls, not updates.
"""

import contextlib
import functools
import hashlib
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

from ladder.spec import RunSpec

Mode = Literal["off", "offline", "online"]

PROJECT = "scaling-ladder"  # unless WANDB_PROJECT names another
ANSWER_S = 15  # how long the service may take to begin a run, or to say what it has
FINISH_S = 30  # with a dead service finish() would otherwise wait for minutes
SETTLE_S = 10  # rows that were sent this long ago are seen by who asks for them


class Unreachable(ConnectionError):
    """The service did not answer, or did not accept us, when a run was to begin there."""


class Record(Protocol):
    """What a mirror needs of `ladder.store.RunRecord`."""

    @property
    def id(self) -> str: ...
    @property
    def rung(self) -> str: ...
    @property
    def spec(self) -> RunSpec: ...
    def rows(self) -> list[dict]: ...
    def events(self) -> list[dict]: ...
    def status(self) -> dict: ...


def default_mode() -> Mode:
    """What WANDB_MODE asks for; offline where it says nothing."""
    modes: dict[str, Mode] = {"disabled": "off", "dryrun": "offline", "online": "online", "run": "online"}
    return modes.get(os.environ.get("WANDB_MODE", ""), "offline")


def new_identity(url: str) -> str:
    """A name for the store at `url` that no other store has; kept in the store, so that it may be moved."""
    return hashlib.sha256(f"{socket.gethostname()}:{url}".encode()).hexdigest()[:16]


def run_id(identity: str, record: Record) -> str:
    """The id of a run at W&B: the same for every attempt, another one for another spec or store."""
    unique = hashlib.sha256(f"{identity}:{record.id}:{record.spec.fingerprint}".encode()).hexdigest()
    return f"{record.id}-{unique[:10]}"


class RunMirror:
    """One run of the record and its twin at W&B: online, or as files under `folder`/wandb for `wandb sync`.

    Offline files hold the whole history of a run. When a run goes on, they are written anew from the record.
    """

    def __init__(self, record: Record, mode: Mode, *, ladder: str, identity: str, folder: Path):
        self.record, self.mode = record, mode
        self.id = run_id(identity, record)
        self.sent = 0  # rows, by this mirror
        self._ladder, self._folder = ladder, folder
        self._known: set[int] | None = None  # steps that need no sending
        self._run: Any = None
        self._newest = -1  # step of the newest row that was read

    @property
    def is_open(self) -> bool:
        return self._run is not None

    def catch_up(self, to_the_end: bool = False) -> None:
        """Send the rows that W&B lacks, at about 0.35 ms a row. The newest one waits, as parts of it may
        still come, unless this is the end. Raises Unreachable when the run cannot begin there."""
        rows = self.record.rows()
        if not to_the_end:
            self._newest = rows[-1]["step"] if rows else -1
            rows = rows[:-1]
        if not rows:
            return
        if self._known is None:
            self._known = self._steps_there({row["step"] for row in rows})
        lacking = [row for row in rows if row["step"] not in self._known]
        if not lacking:
            return
        if self._run is None:
            if self.mode == "offline":
                self._clear()
                self._known, lacking = set(), rows
            self._run = self._begin()
        for row in lacking:
            self._run.log(row)
            self._known.add(row["step"])
        self.sent += len(lacking)
        self._stamp.touch()

    @property
    def has_ended(self) -> bool:
        """Is the run over, so that no more rows can come?"""
        return self._newest == self.record.spec.steps and self._state() == "finished"

    def alert(self) -> None:
        """Each change of the monitor's verdict becomes an alert, once, while the run is open here."""
        if self._run is None:
            return
        told = int(self._stamp.read_text() or 0)
        events = self.record.events()
        for event in events[told:]:
            if event["kind"] == "verdict":
                self._run.alert(
                    title=f"{self._ladder} {self.record.id}: {event['state']}",
                    text=f"step {event['step']}: {event['detail']}",
                    level="INFO" if event["state"] == "normal" else "WARN",
                )
        if len(events) > told:
            self._stamp.write_text(str(len(events)))

    def close(self) -> None:
        """Finish, within FINISH_S. TimeoutError when the service has not taken all of it by then."""
        if self._run is None:
            return
        run, self._run = self._run, None
        try:
            run.finish(exit_code=1 if self._state() == "failed" else 0)
        finally:
            self._stamp.touch()
            if self.mode == "online":  # wandb's copy of what it sent; sent again, it would double the rows
                shutil.rmtree(Path(run.dir).parent, ignore_errors=True)
        if self.mode == "offline" and self._known:
            self._complete.write_text(str(max(self._known)))

    def there(self) -> int:
        """How many of the record's steps the service shows; waits up to SETTLE_S for all of them."""
        steps = {row["step"] for row in self.record.rows()}
        deadline = time.monotonic() + SETTLE_S
        while (found := len(steps & steps_on_server(self.id))) < len(steps) and time.monotonic() < deadline:
            time.sleep(1)
        return found

    def _state(self) -> str:
        return self.record.status()["state"]

    def _steps_there(self, wanted: set[int]) -> set[int]:
        if self.mode == "online":
            with _reaching():
                there = steps_on_server(self.id)
                if not wanted <= there and self._stamp.exists():
                    age = time.time() - self._stamp.stat().st_mtime
                    if age < SETTLE_S:  # what was sent a moment ago may not be shown yet
                        time.sleep(min(SETTLE_S - age, SETTLE_S))
                        there = steps_on_server(self.id)
            return there
        with contextlib.suppress(FileNotFoundError):
            return set(range(int(self._complete.read_text()) + 1))
        return set()

    def _clear(self) -> None:
        for older in self._files.glob(f"offline-run-*-{self.id}"):
            shutil.rmtree(older)
        self._complete.unlink(missing_ok=True)

    @property
    def _files(self) -> Path:
        return self._folder / "wandb"

    @property
    def _complete(self) -> Path:
        """Holds the last step of offline files that were finished."""
        return self._files / f"{self.id}.complete"

    @property
    def _stamp(self) -> Path:
        """Changed whenever rows are handed to wandb; holds how many events were looked at for alerts."""
        return self._files / f"{self.id}.{self.mode}"

    def _begin(self) -> Any:
        import wandb

        spec = self.record.spec
        with _reaching() if self.mode == "online" else contextlib.nullcontext():
            run = wandb.init(
                mode=self.mode,  # pyright: ignore[reportArgumentType]
                project=project(),
                group=self._ladder,
                name=self.record.id,
                id=self.id,
                # offline files are whole: sending them replaces what is there
                resume="allow" if self.mode == "online" else None,
                config=spec.model_dump(mode="json")
                | {"rung": self.record.rung, "fingerprint": spec.fingerprint},
                dir=self._folder,
                reinit="create_new",
                settings=_settings(),
            )
        run.define_metric("tokens")
        run.define_metric("*", step_metric="tokens")
        return run


def _settings() -> Any:
    """Nothing is printed, and nothing is told of this process: it is not the one that trains."""
    import wandb

    return wandb.Settings(
        init_timeout=ANSWER_S,
        finish_timeout=FINISH_S,
        finish_timeout_raises=True,
        console="off",
        silent=True,
        save_code=False,
        disable_git=True,
        disable_job_creation=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )


@contextlib.contextmanager
def _reaching() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # wandb raises its own errors, usage errors, time-outs, OS errors
        raise Unreachable(f"W&B does not take the run: {' '.join(str(error).split())}") from error


def project() -> str:
    return os.environ.get("WANDB_PROJECT") or PROJECT


def steps_on_server(id: str) -> set[int]:
    """Steps of all rows that the service has of a run; empty for a run that it does not know."""
    from wandb.apis.public.runs import RunNotFoundError
    from wandb.errors import CommError

    try:
        run = _service().run(f"{project()}/{id}")
    except CommError as error:
        if isinstance(error.exc, RunNotFoundError):
            return set()
        raise
    # `history` would give a sample; the cache on disk may be older than what the service has
    return {row["step"] for row in run.scan_history(keys=["step"], use_cache=False)}


@functools.cache
def _service() -> Any:
    import wandb

    return wandb.Api(timeout=ANSWER_S)
