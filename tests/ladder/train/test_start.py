"""What a start costs, and that the device never waits for the host: counted, not timed."""

import json
import os
import subprocess
import sys
import types

import jax
import pytest

from ladder import DataSpec, EvalSpec, Phase, RunSpec, Source
from ladder.corpus import Corpus, build
from ladder.train import loop
from tests.ladder.examples import MODEL
from tests.ladder.examples import RUN as EXAMPLE

STEPS = 20


class Notes:
    """Takes what the loop hands over."""

    def __init__(self, checkpoints):
        self.checkpoints, self.steps = str(checkpoints), []

    def resumed(self, step): ...
    def event(self, step, kind, detail="", registered=True): ...
    def flush(self): ...
    def check_current(self): ...

    def row(self, row):
        self.steps.append(row["step"])


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunSpec:
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_text("\f".join(f"{k:04d} {'a' * (k % 30)}" for k in range(400)))
    data = DataSpec(
        sources=(Source(domain="a", uri=str(path)),),
        phases=(Phase(start=0.0, weights={"a": 1.0}),),
        held_out=0.2,
    )
    return EXAMPLE.replace(
        model=MODEL.replace(layers=1, context=16),
        data=data,
        steps=STEPS,
        batch_tokens=8 * 16,
        evaluation=EvalSpec(every=0.5, rows=11),
    )


@pytest.fixture(scope="module")
def corpus(run, tmp_path_factory) -> Corpus:
    return build(run.data, 257, tmp_path_factory.mktemp("shards"), lambda _: None)


def test_the_host_reads_metrics_at_a_flush_and_an_evaluation_only(run, corpus, tmp_path, monkeypatch):
    dispatched, reads = 0, []
    real = loop.compile_step

    def counted(run, mesh):
        step = real(run, mesh)

        def dispatch(state, tokens):
            nonlocal dispatched
            dispatched += 1
            return step(state, tokens)

        return dispatch

    def device_get(values):
        reads.append(dispatched)
        return jax.device_get(values)

    def block_until_ready(_):
        raise AssertionError("the loop waited for a step")

    mine = types.SimpleNamespace(**vars(jax))
    mine.device_get, mine.block_until_ready = device_get, block_until_ready
    monkeypatch.setattr(loop, "jax", mine)
    monkeypatch.setattr(loop, "compile_step", counted)
    notes = Notes(tmp_path)
    loop.train(run, corpus, notes, flush_steps=6)
    assert sorted(set(reads)) == [1, 7, 10, 16, 20]  # the first step, six steps on, and evaluations
    assert notes.steps == list(range(1, STEPS + 1))


COUNTED = """
import collections, json, sys
import jax
from pathlib import Path
from ladder.corpus.shards import open_corpus
from ladder.spec import RunSpec
from ladder.train.loop import train
from tests.ladder.train.test_start import Notes

seen = collections.Counter()
count = lambda name, *_, **__: seen.update([name.rpartition("/")[2]])
jax.monitoring.register_event_listener(count)
jax.monitoring.register_event_duration_secs_listener(count)
spec, corpus, checkpoints, stop_at = sys.argv[1:]
notes = Notes(checkpoints)
asked = lambda: bool(notes.steps) and notes.steps[-1] >= int(stop_at)
train(RunSpec.from_json(spec), open_corpus(Path(corpus)), notes, should_stop=asked)
print(json.dumps(seen | {"first": notes.steps[0], "last": notes.steps[-1]}))
"""


def test_the_second_start_of_a_run_compiles_nothing(run, corpus, tmp_path):
    def start(stop_at: int) -> dict:
        arguments = [run.to_json(), str(corpus.folder), str(tmp_path / "checkpoints"), str(stop_at)]
        environment = os.environ | {"LADDER_CACHE": str(tmp_path / "cache")}
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        done = subprocess.run(
            [sys.executable, "-c", COUNTED, *arguments], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    first, second = start(stop_at=10), start(stop_at=STEPS)
    assert first["cache_misses"] > 0 and first["backend_compile_duration"] > 0  # what is counted happens
    assert second["first"] == first["last"] + 1 and second["last"] == STEPS  # it is a resume
    assert second.get("cache_misses", 0) == 0
    assert second["cache_hits"] == second["compile_requests_use_cache"] == second["backend_compile_duration"]
