"""A run from start to end: its rows, its checkpoints, how it goes on and how it stops."""

import math
from pathlib import Path

import jax
import numpy as np
import pytest

from ladder import DataSpec, EvalSpec, ParallelSpec, Phase, Source
from ladder.corpus import build
from ladder.moe.mesh import make_mesh
from ladder.train import loop
from ladder.train.checkpoint import Checkpoints, Damaged
from ladder.train.data import eval_rows
from ladder.train.loop import Action, Diverged, Outcome, train
from ladder.train.step import init_state, make_eval
from tests.ladder.examples import MODEL
from tests.ladder.examples import RUN as EXAMPLE

STEPS = 20


class Notes:
    """What the loop writes, in lists; stands in for an attempt of the store."""

    def __init__(self, folder):
        self.checkpoints = str(folder / "checkpoints")
        self.rows, self.start, self.flushed, self.events = [], None, 0, []

    def resumed(self, step):
        assert self.start is None and not self.rows
        self.start = step

    def row(self, row):
        self.rows.append(dict(row))

    def event(self, step, kind, detail="", registered=True):
        self.events.append((step, kind, detail))

    def flush(self):
        self.flushed = len(self.rows)

    def check_current(self):
        pass


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    for domain in "ab":
        lines = (f"{k:04d} {domain * (k % 30)}" for k in range(400))
        (folder / f"{domain}.txt").write_text("\f".join(lines))
    data = DataSpec(
        sources=tuple(Source(domain=d, uri=str(folder / f"{d}.txt")) for d in "ab"),
        phases=(Phase(start=0.0, weights={"a": 2.0, "b": 1.0}),),
        held_out=0.2,
    )
    return EXAMPLE.replace(
        model=MODEL.replace(layers=1, context=16),
        data=data,
        steps=STEPS,
        batch_tokens=8 * 16,
        evaluation=EvalSpec(every=0.25, rows=11),
    )


@pytest.fixture(scope="module")
def corpus(run, tmp_path_factory):
    return build(run.data, 257, tmp_path_factory.mktemp("shards"), lambda _: None)


@pytest.fixture(scope="module")
def whole(run, corpus, tmp_path_factory):
    """A run that nothing disturbed."""
    notes = Notes(tmp_path_factory.mktemp("whole"))
    outcome = train(run, corpus, notes, flush_steps=7)
    return outcome, notes


def state_at(run, notes, step):
    with Checkpoints(notes.checkpoints) as checkpoints:
        return checkpoints.restore(init_state(run, make_mesh(run.parallel)), step)


def leaves(state):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]


def numbers(rows):
    return [{name: value for name, value in row.items() if name != "tokens_per_s"} for row in rows]


def test_each_update_gives_one_row_and_evaluations_stand_in_theirs(whole, run):
    outcome, notes = whole
    assert outcome == Outcome("finished", STEPS)
    assert [row["step"] for row in notes.rows] == list(range(1, STEPS + 1))
    assert [row["tokens"] for row in notes.rows] == [k * 128 for k in range(1, STEPS + 1)]
    assert all(type(row["step"]) is int and type(row["train_ce"]) is float for row in notes.rows)
    evaluated = [row for row in notes.rows if "eval_loss" in row]
    assert [row["step"] for row in evaluated] == list(run.eval_steps) == [5, 10, 15, 20]
    for row in evaluated:
        assert row["eval_loss"] == pytest.approx((row["eval/a"] + row["eval/b"]) / 2)
    assert evaluated[-1]["eval_loss"] < evaluated[0]["eval_loss"] < math.log(257)
    assert "tokens_per_s" not in notes.rows[0]  # the first step compiles
    assert all(row["tokens_per_s"] > 0 for row in notes.rows[1:])
    assert notes.flushed == STEPS and not notes.events


def test_the_evaluation_is_the_mean_over_all_held_out_rows(whole, run, corpus):
    _, notes = whole
    state, mesh = state_at(run, notes, STEPS), make_mesh(run.parallel)
    rows = eval_rows(corpus, run)["a"]
    nats, weight = make_eval(run, mesh)(state, rows.tokens)  # in one piece, where the loop takes chunks of 8
    assert weight == 11 * 15
    assert notes.rows[-1]["eval/a"] == pytest.approx(float(nats) / float(weight), rel=1e-5)


def test_a_run_over_several_devices_evaluates_the_same(run, corpus, whole, tmp_path):
    notes = Notes(tmp_path)
    train(run.replace(parallel=ParallelSpec(data=4, micro_batch_rows=1)), corpus, notes)
    for name in ("train_ce", "eval/a", "eval/b"):
        ours, alone = (found.rows[-1][name] for found in (notes, whole[1]))
        assert ours == pytest.approx(alone, rel=1e-5), name


def test_bits_per_byte_count_the_text_behind_the_tokens(run, corpus, whole, tmp_path):
    in_bits = run.replace(evaluation=EvalSpec(every=0.25, rows=11, loss_per="byte", unit="bits/byte"))
    notes = Notes(tmp_path)
    train(in_bits, corpus, notes)
    rows = eval_rows(corpus, run)["b"]
    expected = whole[1].rows[-1]["eval/b"] * 11 * 15 / rows.bytes / math.log(2)
    assert notes.rows[-1]["eval/b"] == pytest.approx(expected, rel=1e-6)


def test_ten_steps_and_a_resume_are_bit_equal_to_twenty_steps(run, corpus, whole, tmp_path):
    first, second = Notes(tmp_path), Notes(tmp_path)
    seen = []

    def stop_at_ten():
        seen.append(1)
        return len(seen) == 10

    assert train(run, corpus, first, should_stop=stop_at_ten) == Outcome("stopped", 10, "asked to stop")
    assert train(run, corpus, second) == Outcome("finished", STEPS)
    assert (first.start, second.start) == (0, 10)
    assert numbers(first.rows + second.rows) == numbers(whole[1].rows)
    for ours, theirs in zip(
        leaves(state_at(run, second, STEPS)), leaves(state_at(run, whole[1], STEPS)), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_a_finished_run_has_nothing_left_to_do(run, corpus, whole):
    again = Notes(Path(whole[1].checkpoints).parent)
    assert train(run, corpus, again) == Outcome("finished", STEPS)
    assert again.rows == [] and again.start == STEPS


def test_the_watcher_can_keep_a_checkpoint_and_stop_the_run(run, corpus, tmp_path):
    notes = Notes(tmp_path)

    def watch(row):
        if row["step"] == 4:
            return Action("checkpoint", "alarm")
        return Action("stop", "runaway: too far out") if row["step"] == 13 else Action("continue")

    outcome = train(run, corpus, notes, watch=watch, flush_steps=4, checkpoint_every_s=0.0)
    assert outcome.state == "stopped" and outcome.reason == "runaway: too far out"
    assert notes.rows[-1]["step"] == outcome.step == 14  # came with the row that was stopped at
    with Checkpoints(notes.checkpoints) as checkpoints:
        kept = sorted(checkpoints.steps())
    # the one that the watcher asked for (its row arrived with those up to step 5), and the newest two
    assert kept[0] == 5 and len(kept) == 3 and kept[-1] == outcome.step


def test_a_loss_that_is_no_number_stops_the_run_and_spares_the_last_good_checkpoint(
    run, corpus, tmp_path, monkeypatch
):
    real = loop.compile_step

    def breaks_at_eight(run, mesh):
        step = real(run, mesh)

        def broken(state, tokens):
            after, metrics = step(state, tokens)
            if int(after.step) >= 8:
                metrics = metrics | {"train_loss": metrics["train_loss"] * np.nan}
            return after, metrics

        return broken

    monkeypatch.setattr(loop, "compile_step", breaks_at_eight)
    notes = Notes(tmp_path)
    with pytest.raises(
        Diverged, match=r"step 8: train_loss=nan.*last good checkpoint: step 5 in .*checkpoints"
    ):
        train(run, corpus, notes, checkpoint_every_s=0.0)
    assert next(row["step"] for row in notes.rows if math.isnan(row["train_loss"])) == 8

    notes = Notes(tmp_path / "watched")
    watch = lambda row: Action("stop" if math.isnan(row["train_loss"]) else "continue", "NaN")  # noqa: E731
    outcome = train(run, corpus, notes, watch=watch)
    assert (outcome.state, outcome.reason) == ("stopped", "NaN")
    with Checkpoints(notes.checkpoints) as checkpoints:
        assert checkpoints.newest() is None  # nothing good had been saved, and nothing bad was


def test_a_leftover_of_an_older_attempt_publishes_no_checkpoint(run, corpus, tmp_path):
    notes = Notes(tmp_path)

    def stale():
        raise RuntimeError("followed by attempt 2")

    notes.check_current = stale
    with pytest.raises(RuntimeError, match="followed by attempt 2"):
        train(run, corpus, notes)
    with Checkpoints(notes.checkpoints) as checkpoints:
        assert checkpoints.newest() is None


def test_what_a_killed_process_left_half_written_is_no_checkpoint(run, whole, tmp_path):
    with Checkpoints(str(tmp_path)) as checkpoints:
        checkpoints.save(state_at(run, whole[1], STEPS), 3)
    (tmp_path / "7.orbax-checkpoint-tmp").mkdir()
    (tmp_path / "7.orbax-checkpoint-tmp" / "half").write_text("x")
    with Checkpoints(str(tmp_path)) as checkpoints:
        assert checkpoints.newest() == 3


def test_the_rows_up_to_a_checkpoint_are_on_disk_before_it_is(run, corpus, tmp_path):
    """Otherwise a kill between the two loses them for good: the next attempt starts behind them."""
    notes = Notes(tmp_path)
    flushed = {}

    class Killed(BaseException):
        pass

    def killed_after_saving(row):
        with Checkpoints(notes.checkpoints) as checkpoints:
            for step in checkpoints.steps():
                flushed[step] = notes.flushed
        if row["step"] > 14:
            raise Killed
        return Action("checkpoint")

    with pytest.raises(Killed):
        train(run, corpus, notes, watch=killed_after_saving, flush_steps=4)
    assert flushed and all(rows >= step for step, rows in flushed.items())


def cut(checkpoint):
    """What a bad copy leaves: a file shorter than it was. (A data file cut short leaves orbax's readers
    complaining in the background; of this one it says so at once.)"""
    path = checkpoint / "default" / "_METADATA"
    path.write_bytes(path.read_bytes()[:200])


def test_a_damaged_newest_checkpoint_makes_way_for_the_one_before(run, corpus, whole, tmp_path):
    first = Notes(tmp_path)
    leave = lambda row: Action("stop" if row["step"] == 12 else "continue")  # noqa: E731
    stopped = train(run, corpus, first, watch=leave, flush_steps=4, checkpoint_every_s=0.0)
    with Checkpoints(first.checkpoints) as checkpoints:
        older, newest = checkpoints.steps()
    assert newest == stopped.step
    cut(Path(first.checkpoints) / str(newest))

    notes = Notes(tmp_path)
    assert train(run, corpus, notes) == Outcome("finished", STEPS)
    assert notes.start == older
    assert notes.events == [
        (older, "alarm", f"checkpoint of step {newest} cannot be read: resumed before it")
    ]
    assert numbers(notes.rows) == numbers(whole[1].rows[older:])

    with Checkpoints(first.checkpoints) as checkpoints:
        left = checkpoints.steps()
    for step in left:
        cut(Path(first.checkpoints) / str(step))
    with pytest.raises(Damaged, match=rf"no checkpoint in .* can be read \(step {STEPS}: .* delete it"):
        train(run, corpus, Notes(tmp_path))
