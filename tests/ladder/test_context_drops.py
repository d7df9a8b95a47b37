"""The drop figures of experiments/context_drops.py, against those that are published or were simulated."""

import numpy as np
import pytest

from ladder.loading import load_module


@pytest.fixture(scope="module")
def experiment():
    return load_module("experiments/context_drops.py")


def test_a_token_chooses_its_experts_as_gumbel_top_k_does(experiment):
    """Against 20,000 tokens of one document drawn one by one."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, experiment.SIGMA, (1, experiment.EXPERTS))
    p = experiment.chosen(logits)[0]
    assert p.sum() == pytest.approx(experiment.TOP_K, rel=1e-4)
    noisy = logits + rng.gumbel(size=(20_000, experiment.EXPERTS))
    drawn = np.argpartition(-noisy, experiment.TOP_K)[:, : experiment.TOP_K]
    share = np.bincount(drawn.ravel(), minlength=experiment.EXPERTS) / len(noisy)
    deviation = np.sqrt(p * (1 - p) / len(noisy))
    assert (np.abs(share - p) < 4 * deviation + 0.02 * p).all()


@pytest.mark.slow
def test_longer_documents_drop_more_and_a_pool_of_the_receiver_hardly_any(experiment):
    rows = list(experiment.table(0))
    by_context, shared = {row["context"]: row for row in rows[:3]}, rows[3]
    assert by_context[4_096]["sender"] <= 0.03
    assert by_context[4_096]["receiver"] <= 0.0005 and by_context[65_536]["receiver"] <= 0.01
    for rule in ("cell", "sender", "receiver"):
        drops = [by_context[c][rule] for c in (4_096, 16_384, 65_536)]
        assert drops == sorted(drops)
    assert 0.07 < by_context[4_096]["cell"] < 0.12 and 0.36 < by_context[65_536]["cell"] < 0.45
    assert shared["sender"] <= 0.04
