"""Who is kept: max-min fair shares, limits that hold, and the same answer as counting by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladder import SpecError
from ladder.moe.ep.plan import MOST, Bounds, accept, bounds, max_min, placed, ranks
from tests.reference import plan as slow

S, E = 4, 8
ACCEPT = jax.jit(accept, static_argnums=1)
SHARES = jax.jit(max_min)


def tables(most: int = 60):
    cells = st.lists(st.one_of(st.just(0), st.integers(0, most)), min_size=S * E, max_size=S * E)
    return cells.map(lambda flat: np.array(flat, np.int32).reshape(S, E))


@settings(max_examples=100)
@given(tables(), st.integers(0, 400), st.integers(0, 9000))
def test_shares_are_those_of_dealing_rows_out_one_by_one(table, limit, turn):
    demand = table.ravel()
    share = np.asarray(SHARES(jnp.asarray(demand), limit, turn))
    assert share.sum() == min(demand.sum(), limit)
    assert (share <= demand).all()
    cut = share < demand
    if cut.any():  # nobody who was cut has less than anybody else, but for one row of the remainder
        assert share[cut].min() >= share.max() - 1
    np.testing.assert_array_equal(share, slow.fair_shares(demand, limit, turn % len(demand)))


@settings(max_examples=100)
@given(tables(), st.integers(1, 40), st.integers(1, 150), st.integers(0, 9000))
def test_first_pairs_then_receivers(table, pair, receiver, turn):
    limits = Bounds(S, E, receiver, pair, (True, True))
    sent, accepted = (np.asarray(a) for a in ACCEPT(jnp.asarray(table), limits, turn))
    assert (accepted <= sent).all() and (sent <= table).all()
    by_pair = accepted.reshape(S, S, E // S).sum(axis=2)
    assert by_pair.max() <= pair and by_pair.sum(axis=0).max() <= receiver
    np.testing.assert_array_equal(accepted, slow.accepted(table, pair, receiver, turn))


@settings(max_examples=50)
@given(tables(), st.integers(1, 150), st.randoms(use_true_random=False))
def test_no_sender_and_no_expert_is_favoured(table, receiver, random):
    """Devices and experts under other names: each cell keeps what it had, but for the remainder's one."""
    limits = Bounds(S, E, receiver, 10**6, (True, False))
    senders = random.sample(range(S), S)
    receivers = random.sample(range(S), S)
    local = random.sample(range(E // S), E // S)
    renamed = table.reshape(S, S, E // S)[senders][:, receivers][:, :, local].reshape(S, E)
    before = np.asarray(ACCEPT(jnp.asarray(table), limits, 0)[1])
    after = np.asarray(ACCEPT(jnp.asarray(renamed), limits, 0)[1])
    expected = before.reshape(S, S, E // S)[senders][:, receivers][:, :, local].reshape(S, E)
    assert np.abs(after - expected).max() <= 1
    assert after.sum() == before.sum()


def test_the_remainder_takes_turns():
    shares = np.stack([np.asarray(SHARES(jnp.array([9, 9, 9, 9]), 18, turn)) for turn in range(4)])
    assert (shares.sum(axis=0) == 18).all() and (shares.max(axis=1) == 5).all()


@pytest.mark.parametrize("hot", [0, E - 1])
def test_everything_to_one_expert_and_empty_experts(hot):
    table = np.zeros((S, E), np.int32)
    table[:, hot] = [100, 100, 1, 100]
    _, accepted = ACCEPT(jnp.asarray(table), Bounds(S, E, 61, 10**6, (True, False)), 3)
    assert np.asarray(accepted)[:, hot].tolist() == [20, 20, 1, 20]
    assert int(accepted.sum()) == 61


def test_without_a_limit_every_assignment_is_kept():
    table = np.random.default_rng(0).integers(0, 50, (S, E)).astype(np.int32)
    sent, accepted = ACCEPT(jnp.asarray(table), bounds(1000, 2, E, S), 5)
    np.testing.assert_array_equal(sent, table)
    np.testing.assert_array_equal(accepted, table)


def test_bounds_are_the_documented_rows_and_never_more_than_can_come():
    assert bounds(100, 2, 8, 4, capacity=1.15).receiver == 230
    assert bounds(5, 2, 8, 4, capacity=1.1).receiver == 11  # in binary 1.1 is above 1.1
    assert bounds(100, 2, 8, 4, sender_capacity=1.25) == Bounds(4, 8, 252, 63, (False, True))
    assert bounds(100, 2, 8, 4) == bounds(100, 2, 8, 4, capacity=99.0) == Bounds(4, 8, 800, 200)
    assert bounds(100, 4, 4, 4).pair == 100  # one local expert: a token asks for it once


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"capacity": 0.0}, r"capacity=0.0: give more than 0, or None"),
        ({"sender_capacity": -1.0}, r"sender_capacity=-1.0: give more than 0"),
        ({"experts": 6}, r"6 experts do not divide over 4 devices"),
        ({"tokens": MOST // 8}, r"pass 2\^31 numbers of rows: lower parallel.micro_batch_rows"),
    ],
)
def test_what_cannot_be_planned_is_refused(given, says):
    with pytest.raises(SpecError, match=says):
        bounds(**{"tokens": 100, "top_k": 2, "experts": 8, "devices": 4} | given)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 5), min_size=40, max_size=40))
def test_ranks_count_in_token_order(groups):
    members, rank = (np.asarray(a) for a in jax.jit(ranks, static_argnums=1)(jnp.array(groups), 5))
    np.testing.assert_array_equal(members, np.bincount(groups, minlength=6)[:5])
    for g in range(6):
        assert rank[np.array(groups) == g].tolist() == list(range(groups.count(g)))


def test_a_dispatch_goes_both_ways():
    slot, keep = jnp.array([[4, 1], [7, 0], [2, 9]]), jnp.array([[True, True], [False, True], [True, False]])
    plan = placed(slot, keep, 6)
    assert np.asarray(plan.used).tolist() == [True, True, True, False, True, False]
    assert np.asarray(plan.source)[[4, 1, 0, 2]].tolist() == [0, 1, 3, 4]
