"""What a ladder costs beyond its training: python -m bench.overhead [--repeats N]

Four runs, two side by side on two cores, are trained by `ladder` and by plain Ray actors (the peer). Both
train with `ladder.train.loop`, on one running cluster, with the same specs, shards, cores, thread flags and
checkpoints, and find the same compiled programs in the cache. In turns, after one pair that does not count.

ours: all that `ladder run` does between its plan and its fit: declare the store, take the lease, check the
text, queue, place, look at every run twice a second, listen for requests, keep attempts with events and
write-once segments, mirror the rows on W&B in offline files, and close all of it.
peer: an actor a run, as a careful user writes it by hand: bound to its core, started with its variables, its
rows one line each in a file that is flushed with every batch of rows and synced before a checkpoint; the
next one starts when one has ended. It retries nothing, watches nothing, and nothing reads its rows.

The last line is JSON: seconds of both (medians), the ratio of the medians, and what each pair gave.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from ladder import Ladder, Rung, RunSpec, Store, corpus
from ladder.cluster.driver import launches
from ladder.cluster.gang import RayCluster, environment
from ladder.cluster.mirror import mirrored
from ladder.cluster.training import Training
from ladder.cluster.work import Job
from ladder.recipe import laptop


def declared(scale: float) -> Ladder:
    """Four replicates of one rung, each 15 to 20 seconds of one core at scale 1, from its imports on."""
    run = laptop(32, tokens_per_active=6 * scale, steps=round(180 * scale))
    return Ladder(name="overhead", rungs=(Rung(name="d32", run=run, seeds=4),))


def ours(ladder: Ladder, folder: Path, cluster: RayCluster) -> None:
    store = Store(folder)
    store.create(ladder)
    training = Training(store, lambda: cluster, say=lambda _: None, show=lambda _: None)
    with store.lease("bench.overhead"), mirrored(store, "offline", print):
        training.finish([launch for rung in ladder.rungs for launch in launches(rung)])


class Rows:
    """The least record of a run that still gives back every row up to a checkpoint."""

    def __init__(self, folder: str):
        os.makedirs(folder)
        self.checkpoints = f"{folder}/checkpoints"
        self._file = open(f"{folder}/rows.jsonl", "a")  # noqa: SIM115

    def row(self, row: dict) -> None:
        self._file.write(json.dumps(row) + "\n")

    def flush(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def resumed(self, step: int) -> None: ...
    def event(self, step: int, kind: str, detail: str = "", registered: bool = True) -> None: ...
    def check_current(self) -> None: ...


class Actor:
    def __init__(self, core: int):
        os.sched_setaffinity(0, {core})

    def train(self, spec: str, shards: str, folder: str) -> str:
        from ladder.train.loop import train

        return train(RunSpec.from_json(spec), corpus.open_corpus(Path(shards)), Rows(folder)).state


def peer(ladder: Ladder, folder: Path, cluster: RayCluster) -> None:
    import ray

    waiting = [(name, spec) for rung in ladder.rungs for name, spec in rung.runs]
    shards = str(corpus.build(waiting[0][1].data, waiting[0][1].model.vocab_size).folder)
    free = sorted(os.sched_getaffinity(0))
    running: dict[Any, tuple[Any, int]] = {}
    while waiting or running:
        while waiting and free:
            (name, spec), core = waiting.pop(0), free.pop(0)
            variables = environment(Job(name, spec.to_json(), "", shards, cpus=1, devices=1, provenance={}))
            options = {"num_cpus": 1, "max_restarts": 0, "runtime_env": {"env_vars": variables}}
            actor = ray.remote(Actor).options(**options).remote(core)
            running[actor.train.remote(spec.to_json(), shards, str(folder / name))] = actor, core
        (ended,), _ = ray.wait(list(running))
        actor, core = running.pop(ended)
        assert ray.get(ended) == "finished"
        ray.kill(actor)
        free.append(core)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="pairs that count")
    parser.add_argument("--scale", type=float, default=1.0, help="of the training, for trying this out")
    options = parser.parse_args()
    ladder = declared(options.scale)
    if len(os.sched_getaffinity(0)) > 2:  # two side by side on any machine
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    cluster = RayCluster()
    pairs: list[dict[str, float]] = []
    for pair in range(options.repeats + 1):
        seconds: dict[str, float] = {}
        for side in (ours, peer) if pair % 2 else (peer, ours):
            with tempfile.TemporaryDirectory() as folder:
                start = time.perf_counter()
                side(ladder, Path(folder) / "store", cluster)
                seconds[side.__name__] = time.perf_counter() - start
        load = os.getloadavg()[0]
        note = "" if pair else " (does not count)"
        print(
            f"ours {seconds['ours']:.2f} s, peer {seconds['peer']:.2f} s, load {load:.1f}{note}", flush=True
        )
        pairs += [seconds] if pair else []
    cluster.close()
    report(pairs)


def report(pairs: list[dict[str, float]]) -> None:
    by_side = {side: [round(pair[side], 3) for pair in pairs] for side in ("ours", "peer")}
    ours_s, peer_s = (statistics.median(seconds) for seconds in by_side.values())
    ratio, ratios = round(ours_s / peer_s, 4), [round(pair["ours"] / pair["peer"], 4) for pair in pairs]
    spread = {side: max(seconds) / min(seconds) - 1 for side, seconds in by_side.items()}
    print(
        f"medians of {len(pairs)}: ours {ours_s:.2f} s, peer {peer_s:.2f} s, ratio {ratio:.3f} (by pair "
        f"{min(ratios):.3f} to {max(ratios):.3f}); noise, slowest over fastest: ours +{spread['ours']:.1%}, "
        f"peer +{spread['peer']:.1%}"
    )
    print(json.dumps({"ours_s": ours_s, "peer_s": peer_s, "ratio": ratio, "ratios": ratios} | by_side))


if __name__ == "__main__":
    main()
