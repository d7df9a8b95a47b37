"""One run from its newest checkpoint to its end: steps, evaluations, rows, checkpoints.

It writes no file but checkpoints; rows and events go to the attempt that it is given, and what to do about
a row is decided by the `watch` that it is given. In a gang of several processes each runs this loop on the
devices of all: process 0 alone has rows to report and decides, and every process does what it decided.
"""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import jax
import numpy as np
from jax.sharding import Mesh
from orbax.checkpoint import multihost

from ladder.corpus import Corpus
from ladder.corpus.cache import cache_folder
from ladder.moe.mesh import make_mesh, of_first_process, over_devices
from ladder.spec import RunSpec
from ladder.train.checkpoint import Checkpoints
from ladder.train.data import Batches, EvalRows, eval_rows
from ladder.train.step import Eval, State, compile_eval, compile_step, init_state

Row = dict[str, Any]
MEET_S = 600


@dataclass(frozen=True)
class Action:
    """What `watch` asks for: go on, keep a checkpoint for good, or checkpoint and stop."""

    kind: Literal["continue", "checkpoint", "stop"]
    reason: str = ""


@dataclass(frozen=True)
class Outcome:
    state: Literal["finished", "stopped"]
    step: int  # completed updates
    reason: str = ""
    by_watch: bool = False  # stopped by its word, and not because somebody asked


class _Decision(NamedTuple):
    """What follows after rows were read."""

    stop: bool
    save: bool
    keep: bool  # the checkpoint, for good


class Diverged(FloatingPointError):
    """Loss or update is no longer a number, and nobody stopped the run before."""


class Attempt(Protocol):
    """What the loop needs of `ladder.store.Attempt`."""

    checkpoints: str

    def resumed(self, step: int) -> None: ...
    def row(self, row: Row) -> None: ...
    def event(self, step: int, kind: str, detail: str = "", registered: bool = True) -> None: ...
    def flush(self) -> None: ...
    def check_current(self) -> None: ...


def train(
    run: RunSpec,
    corpus: Corpus,
    attempt: Attempt,
    *,
    watch: Callable[[Row], Action] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    flush_steps: int = 10,
    checkpoint_every_s: float = 60.0,
) -> Outcome:
    """Train `run` to its last step, or until `watch` or `should_stop` ends it.

    Goes on from the newest complete checkpoint under `attempt.checkpoints`, bit-equal to a run that was
    never interrupted. Each completed update gives one row; rows are read from the device `flush_steps` at a
    time, and before an evaluation, whose losses stand in the row of its step. `should_stop` is asked after
    every step, in a gang only when rows are read, and leaves a checkpoint behind. Of `watch`, `should_stop`
    and the row methods of `attempt` a gang uses those of process 0.

    Raises Diverged, with the step and the last good checkpoint, when the loss is no number and `watch` did
    not ask to stop; no checkpoint is ever written of such a state.
    """
    _use_compilation_cache()
    mesh = make_mesh(run.parallel)
    step, evaluate = compile_step(run, mesh), compile_eval(run, mesh, _eval_rows(run))
    batches, held_out = Batches(corpus, run), eval_rows(corpus, run)
    # Collectives of several CPU devices share one thread pool: steps in flight together can dead-lock.
    blocking = mesh.size > 1 and jax.default_backend() == "cpu"
    alone, leads = jax.process_count() == 1, jax.process_index() == 0

    initial = init_state(run, mesh)
    _meet()
    with Checkpoints(attempt.checkpoints) as checkpoints:
        state, done, lost = checkpoints.resume(initial)
        attempt.resumed(done)
        if lost:
            attempt.event(done, "alarm", lost, registered=False)

        def save(keep: bool = False) -> None:
            attempt.flush()  # rows up to a checkpoint are never made again
            attempt.check_current()  # a leftover of an older attempt must not publish
            checkpoints.save(state, done, keep=keep)

        waiting: list[tuple[int, dict[str, jax.Array]]] = []
        window: float | None = None  # when the steps that wait began; None while they include a compilation
        saved_at = time.monotonic()
        while done < run.steps:
            state, metrics = step(state, over_devices(mesh, batches.batch(done)))
            done += 1
            waiting.append((done, metrics))
            if blocking:
                jax.block_until_ready(metrics)
            leaving, evaluating = leads and should_stop(), done in run.eval_steps
            at_once = leaving and alone
            if not (at_once or evaluating or window is None or len(waiting) >= flush_steps):
                continue

            rows = _rows(run, waiting, window)
            if evaluating:
                rows[-1] |= _evaluation(run, mesh, evaluate, state, held_out)
            action, decision = Action("continue"), _Decision(False, False, False)
            if leads:
                action = _report(rows, attempt, watch, checkpoints)
                stop = action.kind == "stop" or leaving
                keep = action.kind == "checkpoint"
                due = keep or time.monotonic() - saved_at >= checkpoint_every_s
                decision = _Decision(stop, _sound(rows[-1]) if stop else due, keep)
            decision = _Decision(*map(bool, of_first_process(decision)))
            if decision.save:
                save(decision.keep)
                saved_at = time.monotonic()
            if decision.stop:
                attempt.flush()
                by_watch = action.kind == "stop"
                return Outcome("stopped", done, action.reason if by_watch else "asked to stop", by_watch)
            waiting, window = [], time.monotonic()
        save()
        attempt.flush()
    return Outcome("finished", done)


def _meet() -> None:
    """Wait for all processes before the first collective, which waits 30 s for a peer that still compiles."""
    multihost.sync_global_processes("compiled", timeout=MEET_S, processes=set(range(jax.process_count())))


def _rows(run: RunSpec, waiting: list[tuple[int, dict[str, jax.Array]]], window: float | None) -> list[Row]:
    """Rows of the steps that wait; blocks until they are done."""
    values = jax.device_get([metrics for _, metrics in waiting])
    speed: Row = {}
    if window is not None:
        speed["tokens_per_s"] = len(waiting) * run.batch_tokens / (time.monotonic() - window)
    return [
        {"step": step, "tokens": step * run.batch_tokens, "batch_tokens": run.batch_tokens}
        | {name: float(value) for name, value in metrics.items()}
        | speed
        for (step, _), metrics in zip(waiting, values, strict=True)
    ]


def _report(
    rows: list[Row], attempt: Attempt, watch: Callable[[Row], Action] | None, checkpoints: Checkpoints
) -> Action:
    """Hand rows over in order. The answer: the first stop, else the last wish for a checkpoint."""
    answer = Action("continue")
    for row in rows:  # all of them before the first judgement: a stop saves the state after the last one
        attempt.row(row)
    for row in rows:
        action = watch(row) if watch else Action("continue")
        if action.kind == "stop":
            return action
        if not _sound(row):
            attempt.flush()
            good = checkpoints.newest()
            raise Diverged(
                f"step {row['step']}: train_loss={row['train_loss']}, update_norm={row['update_norm']}; "
                + (
                    f"last good checkpoint: step {good} in {checkpoints.where}"
                    if good
                    else "no checkpoint yet"
                )
                + "; lower the learning rate or lengthen the warm-up"
            )
        if action.kind == "checkpoint":
            answer = action
    return answer


def _sound(row: Row) -> bool:
    return math.isfinite(row["train_loss"]) and math.isfinite(row["update_norm"])


def _evaluation(run: RunSpec, mesh: Mesh, evaluate: Eval, state: State, held_out: dict[str, EvalRows]) -> Row:
    """eval/DOMAIN of each domain and eval_loss, their plain mean: nats a token, or bits a byte of text."""
    losses: Row = {}
    for domain, rows in held_out.items():
        pieces = (over_devices(mesh, chunk) for chunk in _chunks(run, rows.tokens))
        sums = [jax.device_get(evaluate(state, piece)) for piece in pieces]
        nats = sum(float(nll) for nll, _ in sums)
        predicted = sum(float(weight) for _, weight in sums)
        per_byte = run.evaluation.loss_per == "byte"
        losses[f"eval/{domain}"] = nats / math.log(2) / rows.bytes if per_byte else nats / predicted
    return losses | {"eval_loss": sum(losses.values()) / len(losses)}


def _chunks(run: RunSpec, tokens: np.ndarray) -> list[np.ndarray]:
    """Rows in pieces of one shape, so that one compiled program serves all; padded with rows of -1."""
    rows = _eval_rows(run)
    padded = np.pad(tokens, ((0, -len(tokens) % rows), (0, 0)), constant_values=-1)
    return np.split(padded, len(padded) // rows)


def _eval_rows(run: RunSpec) -> int:
    return (run.parallel.micro_batch_rows or run.rows // run.parallel.devices) * run.parallel.devices


def _use_compilation_cache() -> None:
    """Whatever is compiled is kept in the user's cache folder, unless JAX_COMPILATION_CACHE_DIR says where:
    the next start of the run compiles nothing."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "compiled"))
    # jax's default leaves out what compiles in less than a second
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
