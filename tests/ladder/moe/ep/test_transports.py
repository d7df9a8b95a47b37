"""Every transport against the oracle with the same keep mask: values, every gradient, every drop."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ladder import ParallelSpec, SpecError
from ladder.moe.ep import ragged, transport
from ladder.moe.ep.grouped import group_starts
from ladder.moe.ep.layer import moe
from tests.ladder.moe.ep.cases import (
    ROUTINGS,
    E,
    K,
    N,
    gradients,
    inputs,
    kept,
    norm,
    oracle,
    ours,
    over_mesh,
    program,
    relative,
)

# Relative to the largest entry: float32 sums in another order; bfloat16 operands against the float32 oracle.
TOLERANCE = {"float32": {"y": 1e-6, "x": 2e-6, "weight": 2e-6, "experts": 5e-6}, "bfloat16": {}}
ROUNDED = 2e-2

MOVES = ({"transport": "ring"}, {}, {"waves": 3}, {"transport": "ragged"}, {"transport": "local"})
MESHES = ({"data": 4, "expert": 2}, {"data": 2, "expert": 4}, {"expert": 8})
ROOM = ({}, {"capacity": 1.0}, {"capacity": 1.25}, {"capacity": 1.25, "sender_capacity": 1.5})
TYPES = ("float32", "bfloat16")

# All pairs of (move, mesh), (move, room), (mesh, room) and dtype with each; the full table is slow.
PAIRS = [ParallelSpec(**MOVES[i], **MESHES[j], **ROOM[(i + j) % 4]) for i in range(5) for j in range(3)] + [
    ParallelSpec(data=8),
    ParallelSpec(data=8, capacity=0.5),
]
ALL = [ParallelSpec(**a, **b, **c) for a, b, c in itertools.product(MOVES, MESHES, ROOM)]


def check(layout: ParallelSpec, routing: str, dtype: str) -> dict[str, float]:
    given = inputs(routing, dtype)
    keep = kept(layout, given)
    result, stats = ours(layout, given)
    expected = oracle(given, keep)

    for name in ("y", "x", "weight"):
        tolerance = TOLERANCE[dtype].get(name, ROUNDED)
        assert relative(getattr(result, name), getattr(expected, name)) <= tolerance, name
    for a, b in zip(result.experts, expected.experts, strict=True):
        assert relative(a, b) <= TOLERANCE[dtype].get("experts", ROUNDED)
    assert norm(result) == pytest.approx(norm(expected), rel=TOLERANCE[dtype].get("y", ROUNDED))

    # A dropped assignment is one whose weight has no gradient; every kept one has some.
    np.testing.assert_array_equal(result.weight != 0, keep)
    demand = np.bincount(np.asarray(given.expert).ravel(), minlength=E + 1)
    np.testing.assert_array_equal(stats.demand.sum(0), demand[:E])
    accepted = np.bincount(np.asarray(given.expert)[keep], minlength=E)
    np.testing.assert_array_equal(stats.accepted.sum(0), accepted)
    assert stats.dropped_sender.sum() + stats.dropped_receiver.sum() == demand[:E].sum() - keep.sum()
    assert stats.padding.sum() == demand[E]
    if not layout.drops:
        assert keep.sum() == demand[:E].sum()


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("case", range(len(PAIRS)))
def test_parity_with_the_oracle(case, routing):
    check(PAIRS[case], routing, TYPES[case % 2])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("layout", ALL, ids=str)
def test_parity_of_the_full_table(layout, dtype):
    for routing in ROUTINGS:
        check(layout, routing, dtype)


@pytest.mark.parametrize("move", [{}, {"waves": 3}, {"transport": "ragged"}, {"transport": "ring"}])
def test_what_lies_in_the_tail_of_a_buffer_reaches_nothing(move, monkeypatch):
    """NaN in the padding of pools, in the tail of what came, and in padding rows that experts return."""
    layout = ParallelSpec(data=2, expert=4, capacity=1.25, **move)
    given = inputs("skewed")
    clean, _ = ours(layout, given)

    gather, grouped_mlp, emulated = transport.gather, transport.grouped_mlp, ragged.emulated

    def poisoned_pools(x, plan):
        pools = plan.slot.shape[1] == K and "ring" not in move.values()
        return jnp.where(plan.used[:, None] | (not pools), gather(x, plan), jnp.nan)

    def poisoned_experts(rows, experts, sizes, b):
        starts, i = group_starts(sizes, b), jnp.arange(rows.shape[0])[:, None]
        used = ((i >= starts) & (i < starts + sizes)).any(axis=1, keepdims=True)
        return jnp.where(used, grouped_mlp(rows, experts, sizes, b), jnp.nan)

    def poisoned_tail(rows, output, at, *, axis):
        return emulated(rows, jnp.full_like(output, jnp.nan), at, axis=axis)

    monkeypatch.setattr(transport, "gather", poisoned_pools)
    monkeypatch.setattr(transport, "grouped_mlp", poisoned_experts)
    monkeypatch.setattr(ragged, "emulated", poisoned_tail)
    dirty, _ = ours(layout, given, program.__wrapped__)
    for a, b in zip(jax.tree.leaves(dirty), jax.tree.leaves(clean), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("move", [{}, {"waves": 2}, {"transport": "ragged"}, {"transport": "ring"}])
def test_a_batch_of_padding_gives_nothing_and_no_nan(move):
    given = inputs("uniform")
    given = given._replace(expert=jnp.full_like(given.expert, E))
    result, stats = ours(ParallelSpec(data=2, expert=4, capacity=1.25, **move), given)
    assert not any(a.any() or np.isnan(a).any() for a in jax.tree.leaves(result))
    assert stats.padding.sum() == 8 * N * K and not stats.demand.any() and not stats.accepted.any()


def test_dropless_tokens_go_in_parts_where_the_worst_case_is_too_large(monkeypatch):
    layout, given = ParallelSpec(data=2, expert=4), inputs("one-hot")
    monkeypatch.setattr("ladder.moe.ep.layer.BUFFER", 300)
    result, stats = ours(layout, given, program.__wrapped__)
    expected = oracle(given, np.ones(given.expert.shape, bool))
    assert count(jax.make_jaxpr(over_mesh(layout))(*given[:4]).jaxpr, "scan") == 1
    assert relative(result.y, expected.y) <= 1e-6 and relative(result.x, expected.x) <= 2e-6
    assert stats.accepted.sum() == given.expert.size


def count(jaxpr, primitive: str) -> int:
    """How often it stands in a jaxpr and in all that is inside."""
    found = 0
    for equation in jaxpr.eqns:
        found += equation.primitive.name == primitive
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda v: hasattr(v, "eqns")):
            inner = getattr(value, "jaxpr", value)
            found += count(inner, primitive) if hasattr(inner, "eqns") else 0
    return found


@pytest.mark.parametrize(
    ("move", "collective", "forward", "both"),
    [
        ({}, "all_to_all", 2, 4),
        ({"transport": "ragged"}, "ragged_all_to_all", 2, 4),
        ({"transport": "ring"}, "reduce_scatter", 1, 3),  # of y; then of the gradients of x and weight
        ({"transport": "local"}, "all_to_all", 0, 0),
    ],
)
def test_no_more_collectives_than_the_transport_needs(move, collective, forward, both):
    given, layer = inputs("uniform"), over_mesh(ParallelSpec(data=2, expert=4, **move))
    once = jax.make_jaxpr(layer)(*given[:4]).jaxpr
    twice = jax.make_jaxpr(lambda given: gradients(layer, given))(given).jaxpr
    assert (count(once, collective), count(twice, collective)) == (forward, both)
    assert count(twice, "scatter-add") == count(twice, "scatter_add") == 0


@pytest.mark.parametrize("move", [{"waves": 2}, {"transport": "ragged"}])
def test_under_scan_and_recomputation(move):
    """Two layers in a scan with jax.checkpoint are the two layers one after the other."""
    layout, given = ParallelSpec(data=2, expert=4, capacity=1.25, **move), inputs("skewed")
    layer = over_mesh(layout)

    def twice(x, expert, weight, experts):
        y, _ = layer(x, expert, weight, experts)
        return layer(y, expert, weight, experts)[0], None

    def scanned(x, expert, weight, experts):
        block = jax.checkpoint(lambda x, _: (layer(x, expert, weight, experts)[0], None))
        return jax.lax.scan(block, x, None, length=2)[0], None

    (a, _), (b, _) = (
        (jax.tree.map(np.asarray, jax.jit(lambda g, f=f: gradients(f, g))(given))) for f in (twice, scanned)
    )
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert relative(right, left) <= 2e-6


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_the_real_ragged_collective_lowers(platform):
    given, layer = inputs("uniform"), over_mesh(ParallelSpec(expert=8, capacity=1.25, transport="ragged"))
    traced = jax.jit(lambda given: gradients(layer, given)).trace(given)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert text.count("ragged_all_to_all") >= 4
    assert "ragged_all_to_all" not in traced.lower(lowering_platforms=("cpu",)).as_text()


def temporaries(waves: int) -> int:
    """Bytes of temporaries that the compiled gradient of a layer needs on a device."""
    tokens = 512
    given = inputs("uniform", tokens=tokens)
    layout = ParallelSpec(expert=8, capacity=1.25, sender_capacity=1.25, waves=waves)
    compiled = jax.jit(lambda given: gradients(over_mesh(layout), given)).lower(given).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.slow
@pytest.mark.parametrize("waves", [2, 4])
def test_waves_need_a_part_of_the_memory(waves):
    assert temporaries(waves) <= (1 / waves + 0.2) * temporaries(1)


def test_a_backend_without_the_ragged_collective_is_told_which_transports_run(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "metal")
    given = inputs("uniform")
    with pytest.raises(SpecError, match=r"'ragged' needs .* metal .*: use one of dense, local, ring, a2a"):
        moe(*given[:4], ParallelSpec(transport="ragged"))


def test_large_experts_take_turns(monkeypatch):
    """Blocks one after the other, without a copy of the weights for each."""
    monkeypatch.setattr("ladder.moe.ep.grouped.LARGE", 0)
    given = inputs("skewed")
    result, _ = ours(ParallelSpec(data=8), given, program.__wrapped__)
    expected = oracle(given, np.asarray(given.expert) < E)
    for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        assert relative(a, b) <= 5e-6


def test_one_device_takes_the_layer_as_it_is():
    """No collective and no mesh where the expert axis has one device."""
    given = inputs("skewed")
    y, stats = jax.jit(lambda g: moe(g.x, g.expert, g.weight, g.experts, ParallelSpec()))(given)
    assert relative(np.asarray(y), oracle(given, np.asarray(given.expert) < E).y) <= 1e-6
    assert int(stats.accepted.sum()) == int((given.expert < E).sum())
