"""Batches as a pure function of (seed, step): mixture, order and evaluation rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladder import DataSpec, EvalSpec, ModelSpec, OptimizerSpec, Phase, RunSpec, Source
from ladder.corpus import CorpusError, build
from ladder.train.data import Batches, _interleave, _shared_out, eval_rows, permuted

CONTEXT, ROWS, STEPS = 16, 10, 100
PHASES = (
    Phase(start=0.0, weights={"a": 0.5, "b": 0.3, "c": 0.2}),
    Phase(start=0.8, weights={"a": 0.1, "c": 0.9}),
)


def declared(folder):
    sources = tuple(Source(domain=d, uri=str(folder / f"{d}.txt")) for d in "abc")
    return DataSpec(sources=sources, phases=PHASES, held_out=0.2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three domains, each document a number in its domain's own letters."""
    folder = tmp_path_factory.mktemp("text")
    for domain, documents in (("a", 400), ("b", 300), ("c", 60)):
        lines = (f"{domain}{k:06d}" + domain * (k % 40) for k in range(documents))
        (folder / f"{domain}.txt").write_text("\f".join(lines))
    return folder


@pytest.fixture(scope="module")
def corpus(folder):
    return build(declared(folder), 257, folder / "shards", lambda _: None)


@pytest.fixture
def run(folder):
    sizes = dict(layers=1, width=8, heads=1, head_dim=8, kv_heads=1, experts=4, top_k=2, expert_width=8)
    return RunSpec(
        model=ModelSpec(vocab_size=257, context=CONTEXT, **sizes),
        optimizer=OptimizerSpec(lr=1e-3, matrix_lr=1e-3),
        data=declared(folder),
        steps=STEPS,
        batch_tokens=ROWS * CONTEXT,
    )


def drawn(batches):
    """(domain, window) of every row of the run, in order: int64[steps * rows] each."""
    pairs = [batches.windows(step) for step in range(batches.run.steps)]
    return np.concatenate([d for d, _ in pairs]), np.concatenate([w for _, w in pairs])


def test_rows_are_windows_of_their_domains_stream(corpus, run):
    batches = Batches(corpus, run)
    for step in (0, 57, 99):
        batch = batches.batch(step)
        assert batch.shape == (ROWS, CONTEXT) and batch.dtype == np.int32
        for row, domain, window in zip(batch, *batches.windows(step), strict=True):
            stream = corpus.train(corpus.domains[domain])
            np.testing.assert_array_equal(row, stream[window * CONTEXT : (window + 1) * CONTEXT])


def test_the_same_seed_gives_the_same_batches_and_another_seed_others(corpus, run):
    first, again, other = (Batches(corpus, r) for r in (run, run, run.replace(seed=1)))
    for step in (0, 1, 99):
        np.testing.assert_array_equal(first.batch(step), again.batch(step))
        assert (first.batch(step) != other.batch(step)).any()
    assert (drawn(first)[1] != drawn(other)[1]).mean() > 0.9


def test_any_step_is_reached_without_the_earlier_ones(corpus, run):
    played = [Batches(corpus, run).batch(step) for step in range(STEPS)]
    resumed = Batches(corpus, run)
    for step in (99, 3, 50):
        np.testing.assert_array_equal(resumed.batch(step), played[step])


@pytest.mark.parametrize("step", [-1, STEPS])
def test_a_step_outside_the_run_is_refused(corpus, run, step):
    with pytest.raises(ValueError, match=r"0\.\.99"):
        Batches(corpus, run).batch(step)


def test_the_mixture_holds_in_each_phase_to_a_row_and_in_each_step_nearly(corpus, run):
    domains, _ = drawn(Batches(corpus, run))
    early, late = domains[: 80 * ROWS], domains[80 * ROWS :]
    np.testing.assert_array_equal(np.bincount(early, minlength=3), [400, 240, 160])
    np.testing.assert_array_equal(np.bincount(late, minlength=3), [20, 0, 180])
    for step in early.reshape(80, ROWS):
        assert (np.abs(np.bincount(step, minlength=3) - [5, 3, 2]) <= 2).all()


def test_no_window_comes_back_before_all_of_its_domain_have_been_seen(corpus, run):
    batches = Batches(corpus, run)
    domains, windows = drawn(batches)
    for d, name in enumerate(corpus.domains):
        mine, n = windows[domains == d], len(corpus.train(name)) // CONTEXT
        epochs = [mine[k : k + n] for k in range(0, len(mine), n)]
        assert all(len(set(epoch)) == len(epoch) for epoch in epochs)
        assert mine.max() < n and batches.epochs[name] == pytest.approx(len(mine) / n)
        if len(epochs) > 2:
            assert sorted(epochs[0]) == sorted(epochs[1]) and (epochs[0] != epochs[1]).any()
    assert batches.epochs["c"] > 2  # so the last lines were reached


def test_a_domain_that_is_repeated_too_often_is_a_warning(corpus, run):
    assert Batches(corpus, run.replace(steps=20)).warnings == ()
    (warning,) = Batches(corpus, run).warnings
    assert "domain 'c' is repeated" in warning


def test_evaluation_rows_are_the_same_for_every_run_of_a_ladder(corpus, run):
    first = eval_rows(corpus, run)
    wider = run.replace(seed=5, steps=7, batch_tokens=4 * CONTEXT)
    for domain, rows in eval_rows(corpus, wider).items():
        np.testing.assert_array_equal(rows.tokens, first[domain].tokens)
        assert rows.bytes == first[domain].bytes


def test_evaluation_rows_come_from_held_out_text_and_count_the_predicted_bytes(corpus, run):
    for domain, rows in eval_rows(corpus, run).items():
        held_out = corpus.held_out(domain)
        np.testing.assert_array_equal(rows.tokens.ravel(), held_out[: rows.tokens.size])
        assert len(rows.tokens) == len(held_out) // CONTEXT and rows.tokens.dtype == np.int32
        by_hand = sum(int(token) != 256 for row in rows.tokens for token in row[1:])
        assert rows.bytes == by_hand < rows.tokens[:, 1:].size


def test_fewer_evaluation_rows_are_spread_over_the_held_out_text(corpus, run):
    rows = eval_rows(corpus, run)["a"].tokens
    few = eval_rows(corpus, run.replace(evaluation=EvalSpec(rows=5)))["a"].tokens
    np.testing.assert_array_equal(few, rows[[len(rows) * k // 5 for k in range(5)]])


def test_no_training_row_holds_a_held_out_document(corpus, run):
    """Every document has its own number, so a number is on one side only."""
    sides = []
    for stream in (corpus.train("a"), corpus.held_out("a")):
        text = corpus.tokenizer.decode(stream)
        sides.append({text[k : k + 7] for k in range(len(text) - 6) if text[k + 1 : k + 7].isdigit()})
    assert not sides[0] & sides[1] and len(sides[0]) + len(sides[1]) == 400


def test_too_little_text_for_one_row_is_an_error(corpus, run):
    long = run.replace(model=run.model.replace(context=1000), batch_tokens=1000)
    with pytest.raises(CorpusError, match=r"'c' has .* tokens, fewer than one row of model.context=1000"):
        eval_rows(corpus, long)
    longer = run.replace(model=run.model.replace(context=10_000), batch_tokens=10_000)
    with pytest.raises(CorpusError, match="training tokens, fewer than one row"):
        Batches(corpus, longer)


def test_a_corpus_of_another_declaration_is_refused(corpus, run):
    other = run.replace(data=run.data.replace(held_out=0.3))
    with pytest.raises(CorpusError, match="built from other"):
        Batches(corpus, other)


def test_a_phase_shorter_than_a_step_is_passed_over(corpus, run):
    blink = Phase(start=0.795, weights={"b": 1.0})
    data = run.data.replace(phases=(PHASES[0], blink, PHASES[1]))
    with_blink, without = (Batches(corpus, r) for r in (run.replace(data=data), run))
    np.testing.assert_array_equal(drawn(with_blink), drawn(without))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(n=st.integers(1, 3000), key=st.text(max_size=5))
def test_the_order_of_an_epoch_is_a_permutation(n, key):
    assert sorted(permuted(np.arange(n), n, key).tolist()) == list(range(n))


def test_a_permutation_scatters_neighbours_and_keys_do_not_agree():
    n = 10_007
    first, other = permuted(np.arange(n), n, "x"), permuted(np.arange(n), n, "y")
    assert (first == other).mean() < 0.001
    assert abs(np.corrcoef(np.arange(n), first)[0, 1]) < 0.03
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.03


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    quotas=st.lists(st.integers(0, 60), min_size=1, max_size=6).filter(any),
    length=st.integers(1, 40),
)
def test_the_mixture_is_even_wherever_it_is_cut(quotas, length):
    """Pieces equal the whole; each domain's rows are counted up; no prefix is off by D/2 + 1 rows."""
    quotas = np.array(quotas)
    total = int(quotas.sum())
    domains, counts = _interleave(quotas, 0, total)
    for start in range(0, total, length):
        piece = _interleave(quotas, start, min(start + length, total))
        np.testing.assert_array_equal(piece[0], domains[start : start + length])
        np.testing.assert_array_equal(piece[1], counts[start : start + length])
    for d, quota in enumerate(quotas):
        np.testing.assert_array_equal(counts[domains == d], np.arange(quota))
        drift = np.cumsum(domains == d) - np.arange(1, total + 1) * quota / total
        assert np.abs(drift).max() < len(quotas) / 2 + 1


@settings(max_examples=200, deadline=None, derandomize=True)
@given(rows=st.integers(1, 10**9), weights=st.lists(st.floats(0.01, 1), min_size=1, max_size=6))
def test_rows_are_shared_out_to_within_one(rows, weights):
    shares = np.array(weights) / sum(weights)
    quotas = _shared_out(rows, shares)
    assert quotas.sum() == rows and (np.abs(quotas - rows * shares) <= 1 + 1e-6).all()
