"""What a user may declare, what is refused and in which words, and what identifies a run."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder import (
    DataSpec,
    EvalSpec,
    Hypothesis,
    Ladder,
    ModelSpec,
    OptimizerSpec,
    ParallelSpec,
    Phase,
    Resources,
    Rung,
    RunSpec,
    ScheduleSpec,
    Source,
    SpecError,
    load,
)
from ladder.values import digest
from tests.ladder.examples import LADDER, MODEL, RUN

SOURCE = Source(domain="text", uri="text.txt")
START = Phase(start=0.0, weights={"text": 1.0})


def names():
    return st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)


def positive(top=1e6):
    return st.floats(1e-9, top)


@st.composite
def models(draw):
    experts = draw(st.integers(2, 64))
    kv_heads = draw(st.integers(1, 4))
    shared = draw(st.integers(0, 2))
    return ModelSpec(
        vocab_size=257,
        context=draw(st.integers(1, 64)),
        layers=draw(st.integers(1, 99)),
        width=draw(st.integers(1, 10**6)),
        heads=kv_heads * draw(st.integers(1, 4)),
        head_dim=2 * draw(st.integers(1, 64)),
        kv_heads=kv_heads,
        experts=experts,
        top_k=draw(st.integers(1, experts - 1)),
        expert_width=draw(st.integers(1, 10**6)),
        shared_experts=shared,
        shared_width=draw(st.integers(1, 99)) if shared else 0,
        combine_sum=draw(positive()),
        conv_taps=draw(st.sampled_from([0, 2, 4])),
    )


@st.composite
def runs(draw):
    domains = draw(st.lists(names(), min_size=1, max_size=3, unique=True))
    weights = st.dictionaries(st.sampled_from(domains), positive(), min_size=1)
    starts = [0.0, *sorted(draw(st.sets(st.floats(0.01, 0.99), max_size=2)))]
    model = draw(models())
    return RunSpec(
        model=model,
        optimizer=OptimizerSpec(
            lr=draw(positive()), matrix_lr=draw(positive()), clip_norm=draw(st.none() | positive())
        ),
        schedule=ScheduleSpec(warmup=draw(st.floats(0, 1)), final=draw(st.floats(0, 1))),
        data=DataSpec(
            sources=tuple(Source(domain=name, uri=draw(st.text(min_size=1))) for name in domains),
            phases=tuple(Phase(start=start, weights=draw(weights)) for start in starts),
        ),
        evaluation=EvalSpec(every=draw(st.floats(0.001, 1)), loss_per="byte", unit="bits/byte"),
        parallel=ParallelSpec(micro_batch_rows=draw(st.none() | st.just(1))),
        steps=draw(st.integers(1, 10**12)),
        batch_tokens=model.context * draw(st.integers(1, 10**6)),
        seed=draw(st.integers(0, 2**40)),
    )


@given(runs(), st.lists(names(), min_size=1, max_size=3, unique_by=str.casefold))
def test_json_gives_back_the_same_value_and_fingerprint(run, rung_names):
    assert RunSpec.from_json(run.to_json()) == run
    assert RunSpec.from_json(run.to_json()).fingerprint == run.fingerprint
    ladder = Ladder(
        name="l",
        rungs=tuple(Rung(name=name, run=run, resources=Resources(custom={"x": 1.0})) for name in rung_names),
        hypothesis=Hypothesis(question="?", links=("a",)),
    )
    assert Ladder.from_json(ladder.to_json()) == ladder
    assert hash(Ladder.from_json(ladder.to_json())) == hash(ladder)


@given(runs())
def test_evaluations_are_in_order_and_end_at_the_last_step(run):
    small = run.replace(steps=min(run.steps, 1000))
    steps = small.eval_steps
    assert list(steps) == sorted(set(steps)) and steps[0] > 0 and steps[-1] == small.steps


def test_five_percent_is_twenty_evaluations():
    assert RUN.eval_steps == tuple(range(5, 101, 5))
    assert RUN.replace(steps=3).eval_steps == (1, 2, 3)


def test_a_changed_copy_is_checked_like_a_new_value():
    assert RUN.replace(steps=7).steps == 7 and RUN.steps == 100
    with pytest.raises(SpecError, match=r"not a multiple of model\.context=8"):
        RUN.replace(batch_tokens=33)
    with pytest.raises(SpecError, match="no such field"):
        RUN.replace(stepps=7)


def test_a_value_cannot_be_changed_in_place():
    with pytest.raises(Exception, match="frozen"):
        RUN.steps = 7  # pyright: ignore[reportAttributeAccessIssue]


def test_counts_accept_whole_floats_and_nothing_else():
    assert RUN.replace(steps=1e9).steps == 10**9 and type(RUN.replace(steps=1e9).steps) is int
    for bad in (1.5, 0, -1, float("nan"), "7", True, None):
        with pytest.raises(SpecError, match="steps"):
            RUN.replace(steps=bad)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: MODEL.replace(widht=8), ("widht", "no such field, did you mean width", "width")),
        (lambda: MODEL.replace(width="8"), ("width", "'8'")),
        (lambda: MODEL.replace(heads=3, kv_heads=2), ("heads=3", "kv_heads=2")),
        (lambda: MODEL.replace(head_dim=5), ("head_dim=5", "odd")),
        (lambda: MODEL.replace(top_k=4), ("at least 5 experts", "experts=4")),
        (lambda: MODEL.replace(shared_width=0), ("shared_experts=1", "shared_width=0")),
        (lambda: MODEL.replace(conv_taps=1), ("conv_taps=1",)),
        (lambda: MODEL.replace(global_kv_heads=3, global_every=2), ("heads=2", "global_kv_heads=3")),
        (lambda: MODEL.replace(global_kv_heads=1), ("global_kv_heads=1", "no layer is global")),
        (lambda: MODEL.replace(window=9), ("window=9", "context=8")),
        (lambda: MODEL.replace(rope_fraction=0.25), ("head_dim=4", "rope_fraction=0.25", "not even")),
        (lambda: MODEL.replace(rope_fraction=0.0), ("rope_fraction", "greater than 0")),
        (lambda: MODEL.replace(qk_mult=31.0), ("qk_mult=31", "62", "float32")),
        (lambda: MODEL.replace(latent_width=0), ("latent_width", "greater than 0")),
        (lambda: MODEL.replace(compute_dtype="float16"), ("compute_dtype", "'float32' or 'bfloat16'")),
        (lambda: OptimizerSpec(lr=0.0, matrix_lr=1.0), ("OptimizerSpec.lr", "0.0")),
        (lambda: OptimizerSpec(lr=float("inf"), matrix_lr=1.0), ("lr", "finite")),
        (lambda: ScheduleSpec(warmup=1.5), ("warmup", "1.5")),
        (lambda: Source(domain="a/b", uri="x"), ("'a/b'", "no name")),
        (lambda: Source(domain="../x", uri="x"), ("'../x'", "no name")),
        (lambda: Phase(start=0.0, weights={}), ("weights is empty",)),
        (lambda: Phase(start=0.0, weights={"text": 0.0}), ("weights", "greater than 0")),
        (lambda: Phase(start=0.0, weights=(("text", 1.0), ("text", 2.0))), ("a domain twice", "text")),
        (lambda: Phase(start=0.0, weights=(("text", 1.0), 7)), ("weights", "7")),
        (lambda: OptimizerSpec(lr=1.0, matrix_lr=1.0, beta2=1.0), ("beta2", "less than 1")),
        (lambda: Source(domain="text", uri=""), ("uri", "at least 1 character")),
        (lambda: DataSpec(sources=(SOURCE, SOURCE), phases=(START,)), ("'text' has two sources",)),
        (lambda: DataSpec(sources=(SOURCE,), phases=()), ("starts at 0",)),
        (
            lambda: DataSpec(sources=(SOURCE,), phases=(START, START.replace(start=1.0))),
            ("stay below 1",),
        ),
        (
            lambda: DataSpec(sources=(SOURCE,), phases=(Phase(start=0.0, weights={"cod": 1.0}),)),
            ("'cod'", "['text']"),
        ),
        (lambda: RUN.replace(parallel=ParallelSpec(data=3)), ("4 rows", "parallel.data=3")),
        (
            lambda: RUN.replace(parallel=ParallelSpec(data=2, expert=4)),
            ("4 rows", "parallel.data=2 x expert=4"),
        ),
        (
            lambda: RUN.replace(batch_tokens=24, parallel=ParallelSpec(expert=3)),
            ("model.experts=4", "parallel.expert=3"),
        ),
        (
            lambda: ParallelSpec(sender_capacity=1.15),
            ("sender_capacity=1.15", "expert=1"),
        ),
        (lambda: ParallelSpec(capacity=0.0), ("ParallelSpec.capacity", "greater than 0", "0.0")),
        (lambda: ParallelSpec(transport="rings"), ("transport", "'a2a', 'ragged', 'ring'", "'rings'")),
        (
            lambda: ParallelSpec(expert=2, transport="ring", waves=2),
            ("waves=2", "transport='a2a'", "'ring'"),
        ),
        (
            lambda: RUN.replace(parallel=ParallelSpec(micro_batch_rows=3)),
            ("micro_batch_rows=3", "the 4 rows of a device"),
        ),
        (lambda: RUN.replace(model=MODEL.replace(vocab_size=256)), ("vocab_size=256", "257")),
        (
            lambda: RUN.replace(data=RUN.data.replace(tokenizer="bpe")),
            ("vocab_size=257", "at least 258"),
        ),
        (lambda: RUN.replace(evaluation=EvalSpec(loss_per="byte")), ("nats/token", "bits/byte")),
        (lambda: Ladder(name="l", rungs=()), ("rungs is empty",)),
        (lambda: LADDER.replace(rungs=(LADDER.rungs[0],) * 2), ("'d8' is used twice",)),
        (
            lambda: LADDER.replace(rungs=(LADDER.rungs[0], LADDER.rungs[0].replace(name="d8-r1", seeds=1))),
            ("'d8-r1' is used twice",),
        ),
        (lambda: LADDER.replace(target=LADDER.target.replace(seeds=2)), ("target.seeds=2",)),
        (
            lambda: LADDER.rungs[0].replace(resources=Resources(hosts=2)),
            ("parallel.data=1", "resources.hosts=2"),
        ),
        (
            lambda: LADDER.replace(
                target=LADDER.target.replace(run=LADDER.target.run.replace(count_lm_head=True))
            ),
            ("count_lm_head differs",),
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_the_field_and_the_value(build, words):
    with pytest.raises(SpecError) as error:
        build()
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value) and "https://errors.pydantic.dev" not in str(error.value)


def test_broken_json_is_a_spec_error():
    with pytest.raises(SpecError, match="JSON"):
        RunSpec.from_json("{")


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"seed": 1}, False),
        ({"steps": 101}, False),
        ({"schedule": ScheduleSpec(warmup=0.02)}, False),
        ({"optimizer": RUN.optimizer.replace(beta2=0.96)}, False),
        ({"evaluation": EvalSpec(every=0.1)}, False),
        ({"count_lm_head": True}, False),
        ({"parallel": ParallelSpec(data=2, micro_batch_rows=1)}, True),
        ({"parallel": ParallelSpec(expert=2, remat="layer")}, True),
        ({"parallel": ParallelSpec(expert=2, transport="ragged")}, True),
        ({"parallel": ParallelSpec(expert=2, capacity=1.15)}, False),
    ],
)
def test_the_fingerprint_is_what_changes_the_numbers(change, same):
    assert (RUN.replace(**change).fingerprint == RUN.fingerprint) is same


def test_a_limited_capacity_is_part_of_the_fingerprint_and_the_transport_is_not():
    """The plan decides who is dropped, from devices, tokens and capacities."""
    limited = ParallelSpec(expert=2, capacity=1.15)
    names = [
        RUN.replace(parallel=limited.replace(**change)).fingerprint
        for change in (
            {},
            {"waves": 2},
            {"transport": "ragged", "remat": "layer"},
            {"sender_capacity": 1.15},
            {"expert": 4},
            {"micro_batch_rows": 1},
        )
    ]
    assert names[0] == names[1] == names[2]
    assert len(set(names[2:])) == 4


def test_the_fingerprint_does_not_depend_on_how_it_was_said():
    said = json.loads(RUN.to_json())
    said["steps"] = 100.0
    said["data"]["phases"][0]["weights"] = [["text", 3], ["code", 1]]
    assert RunSpec.from_json(json.dumps(said)).fingerprint == RUN.fingerprint


def test_the_fingerprint_stays_what_it_was():
    """A stored run is found by it: when this fails, old stores no longer match their own runs."""
    assert RUN.fingerprint == "f04405da9826a86f4330a6b356a6e6ca9a4a544f6554ed4d63fbfa91451c511c"
    assert digest({"b": 1, "a": [0.5, "x"]}) == digest({"a": [0.5, "x"], "b": 1})


def test_replicates_and_moved_seeds_never_meet():
    ladder = LADDER.replace(rungs=(LADDER.rungs[0].replace(seeds=3),))
    seeds = [
        spec.seed
        for moved in range(5)
        for rung in ladder.with_seed(moved).everything
        if rung.name == "d8"
        for _, spec in rung.runs
    ]
    assert len(set(seeds)) == 15
    assert [name for name, _ in ladder.rungs[0].runs] == ["d8", "d8-r1", "d8-r2"]
    assert ladder.with_seed(0) == ladder


# --- load -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\n", "declares no LADDER"),
        ("x = 1\nLADDER = x\n", r"declares no LADDER \(found int\)"),
        ("x = 1\n1 / 0\n", r"bad\.py:2: ZeroDivisionError"),
        ("def (:\n", r"bad\.py:1: .*SyntaxError"),
        ("import no_such_package\n", r"bad\.py:1: ModuleNotFoundError"),
        ("\nfrom ladder import ScheduleSpec\nScheduleSpec(warm=1)\n", r"bad\.py:3: ScheduleSpec\.warm"),
    ],
)
def test_a_bad_experiment_file_is_named_with_the_line(tmp_path, text, words):
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(SpecError, match=words):
        load(tmp_path / "bad.py")


def test_a_missing_experiment_file_is_named(tmp_path):
    with pytest.raises(SpecError, match="no such experiment file"):
        load(tmp_path / "nowhere.py")


def test_load_gives_the_declared_ladder(tmp_path):
    file = tmp_path / "good.py"
    file.write_text(f"from ladder import Ladder\nLADDER = Ladder.from_json({LADDER.to_json()!r})\n")
    assert load(file) == LADDER


def test_a_list_stands_for_a_tuple():
    listed = LADDER.replace(rungs=list(LADDER.rungs))
    assert listed == LADDER and isinstance(listed.rungs, tuple)
