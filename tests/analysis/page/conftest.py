"""Stores with made-up rows at each stage of a ladder, written through the real store and fitted for real."""

import copy

import numpy as np
import pytest

import analysis
from analysis import gates
from analysis.monitor import Monitor, declared_events
from analysis.page.gather import gather
from ladder import Hypothesis, Ladder, Rung, Store
from ladder.accounting import eval_points
from ladder.recipe import laptop

WIDTHS, TARGET_WIDTH = (32, 40, 48, 56), 72
STAGES = ("empty", "rungs", "gated", "frozen", "midrun", "finished", "alarm", "missed")


def ladder(name="laptop", **changes):
    rungs = [Rung(name=f"d{w}", run=laptop(w), seeds=2 if w < 48 else 1) for w in WIDTHS]
    question = "Does a ladder of four small rungs forecast a run of twice the compute?"
    hypothesis = Hypothesis(
        question=question,
        prediction="The target's final loss lies inside the frozen 90 % band.",
        decides="Whether the same recipe is worth a run of 10x the compute.",
        links=("https://example.org/issue/1",),
    )
    values = {
        "name": name,
        "rungs": tuple(rungs),
        "target": Rung(name=f"d{TARGET_WIDTH}", run=laptop(TARGET_WIDTH)),
        "hypothesis": hypothesis,
    }
    return Ladder(**(values | changes))


def rows_of(spec, rng, offset=0.0):
    """A row a step, as the training loop writes them: the loss falls to E + K C^-g, seeds scatter by .4 %."""
    points = eval_points(spec)
    final = 1.10 + 0.62 * (points[-1]["flops"] / 1e12) ** -0.20
    final *= 1 + 0.004 * rng.standard_normal() + offset
    evals = {point["step"] for point in points}
    steps = np.arange(1, spec.steps + 1)
    share = steps / spec.steps
    curve = final * (1 + 0.16 * (share**-0.42 - 1)) * np.minimum(1 + 0.8 * np.exp(-steps / 40), 2)
    noise = np.exp(0.03 * rng.standard_normal((4, len(steps))))
    columns = {
        "train_ce": np.minimum(curve, 5.5) * noise[0],
        "grad_norm": 0.5 * (1 + 2 * np.exp(-steps / 60)) * noise[1] ** 4,
        "update_norm": 0.02 * (np.minimum(share / 0.1, (1 - share) / 0.9) + 1e-3) * noise[2] ** 2,
        "router_entropy": 2.02 - 0.2 * np.exp(-share * 6) + 0.01 * np.log(noise[3]) / 0.03,
        "max_over_mean_load": 1.25 + 0.9 * np.exp(-share * 9) + 0.02 * np.log(noise[1]) / 0.03,
    }
    for k, step in enumerate(steps):
        row = {"step": int(step), "tokens": int(step) * spec.batch_tokens, "tokens_per_s": 40_000.0}
        row |= {key: float(values[k]) for key, values in columns.items()}
        if step in evals:
            row["eval_loss"] = float(curve[k] * (1 + 0.002 * rng.standard_normal()))
        yield row


def train(store, run_id, seed, until=1.0, offset=0.0, frozen=None, spike=None):
    record = store.run(run_id)
    monitor, state = (Monitor(frozen), "normal") if frozen else (None, "normal")
    for event in declared_events(record.spec) if monitor else ():
        monitor.register(event)
    attempt = record.begin(record.spec, {})
    for row in rows_of(record.spec, np.random.default_rng(seed), offset):
        if row["step"] > until * record.spec.steps:
            attempt.flush()  # left open: a run that is still at work
            return
        if spike and row["step"] in range(spike, spike + 8):
            row["train_ce"] *= 1.9
            row["grad_norm"] *= 30
        attempt.row(row)
        if monitor and (verdict := monitor.update(row)).state != state:
            state = verdict.state
            attempt.event(row["step"], "verdict", "; ".join(verdict.reasons), state=state)
            if verdict.stop:
                attempt.finish("stopped", f"{state}: {verdict.reasons[0]}")
                return
    attempt.finish("finished")


def build(folder, stage="finished", **changes):
    """A store at a stage: STAGES, in the order in which a ladder goes through them."""
    store = Store(folder)
    declared = ladder(**changes)
    store.create(declared)
    runs = [run for rung in declared.rungs for run, _ in rung.runs]
    for k, run in enumerate(runs):
        if stage == "empty" or (stage == "rungs" and k > 3) or (stage == "gated" and run == "d56"):
            break
        if run in ("d48", "d56"):
            below = [rung for rung in declared.rungs if rung.name < run]
            gates.predict(store, declared.rungs[len(below)], below)
        bent = 0.04 if (stage, run) == ("gated", "d48") else 0.0
        train(store, run, seed=k, until=0.45 if stage == "rungs" and k == 3 else 1.0, offset=bent)
    if stage in ("empty", "rungs", "gated"):
        return store
    frozen = analysis.forecast(analysis.fit(store.evals(names=runs)), declared.target.run)
    frozen.save(store.path("forecast.json"))
    if stage != "frozen":
        how = {"midrun": {"until": 0.52}, "alarm": {"spike": 1100}, "missed": {"offset": 0.04}}.get(stage, {})
        train(store, declared.target.name, seed=99, frozen=frozen, **how)
    return store


@pytest.fixture
def declared():
    return ladder()


@pytest.fixture(scope="session")
def stores(tmp_path_factory):
    """Stores by stage, each built once."""
    built = {}

    def at(stage):
        if stage not in built:
            built[stage] = build(tmp_path_factory.mktemp(stage), stage)
        return built[stage]

    return at


@pytest.fixture(scope="session")
def gathered(stores):
    """The page's data by stage; each call answers a copy of its own."""
    kept = {}

    def at(stage):
        if stage not in kept:
            kept[stage] = gather(stores(stage))
        return copy.deepcopy(kept[stage])

    return at
