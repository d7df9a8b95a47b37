"""Counts by hand, and counts against loops that build the model's products one by one.

The comparison with the real initialisation lives in tests/ladder/moe.
"""

import math

import pytest

from ladder.accounting import (
    active_parameters,
    eval_points,
    forward_flops,
    parameters,
    scaling_flops,
    shared_fraction,
    train_flops,
)
from ladder.tensors import init_std, tensors
from tests.ladder.examples import MODEL, RUN

# The example: d 8, two query heads and one key-value head of 4, f 6, a shared expert of 10, V 257, 2 layers
ATTENTION = 8 * 8 + 8 * 4 + 8 * 4 + 8 * 8
EXPERT, SHARED, ROUTER = 3 * 8 * 6, 3 * 8 * 10, 8 * 4


def test_parameters_by_hand():
    found = parameters(MODEL)
    assert found.groups == {
        "embedding": 257 * 8,
        "norm": 8 + 2 * (8 + 8) + 8,
        "attention": 2 * ATTENTION,
        "router": 2 * (ROUTER + 4),
        "experts": 2 * 4 * EXPERT,
        "shared": 2 * SHARED,
        "lm_head": 257 * 8,
    }
    assert found.total == sum(found.groups.values())
    assert found.active == 2 * (ATTENTION + ROUTER + 2 * EXPERT + SHARED)
    assert found.lm_head == 257 * 8
    assert active_parameters(RUN) == found.active
    assert active_parameters(RUN.replace(count_lm_head=True)) == found.active + 257 * 8


def test_convolutions_are_stored_and_not_active():
    with_taps = parameters(MODEL.replace(conv_taps=4))
    assert with_taps.groups["conv"] == 2 * 4 * (4 + 8 + 8)
    assert with_taps.active == parameters(MODEL).active


def flops_by_loops(model, lm_head):
    """2 for every multiply-add, product by product, for one token; 3 a score for the softmax."""
    total = 0

    def product(rows, columns):
        nonlocal total
        total += 2 * rows * columns

    for _ in range(model.layers):
        for _ in range(model.heads):
            product(model.width, model.head_dim)  # query
            product(model.head_dim, model.width)  # output
            for _ in range(model.context):
                total += 2 * model.head_dim  # score
                total += 2 * model.head_dim  # weighted value
                total += 3
        for _ in range(model.kv_heads):
            product(model.width, model.head_dim)
            product(model.width, model.head_dim)
        product(model.width, model.experts)
        for hidden in [model.expert_width] * model.top_k + [model.shared_width] * model.shared_experts:
            for _ in ("gate", "up", "down"):
                product(model.width, hidden)
    if lm_head:
        product(model.width, model.vocab_size)
    return total


@pytest.mark.parametrize(
    "model",
    [
        MODEL,
        MODEL.replace(shared_experts=0, shared_width=0),
        MODEL.replace(heads=6, kv_heads=3, layers=3, context=31, top_k=3, conv_taps=4),
    ],
)
@pytest.mark.parametrize("lm_head", [False, True])
def test_forward_flops_equal_the_loops(model, lm_head):
    assert forward_flops(model, lm_head) == flops_by_loops(model, lm_head)


def test_training_is_three_forwards_of_every_token_and_the_head_is_counted_on_request():
    assert train_flops(RUN) == 3 * 3200 * forward_flops(MODEL)
    assert train_flops(RUN, lm_head=True) == 3 * 3200 * forward_flops(MODEL, lm_head=True)
    assert scaling_flops(RUN) == train_flops(RUN)
    assert scaling_flops(RUN.replace(count_lm_head=True)) == train_flops(RUN, lm_head=True)


def test_counts_beyond_64_bits_stay_exact():
    run = RUN.replace(model=MODEL.replace(width=10**5 + 1, layers=96), steps=10**9, batch_tokens=8 * 10**6)
    assert type(train_flops(run)) is int and train_flops(run) > 2**63
    assert train_flops(run) % (10**9 * 8 * 10**6) == 0


def test_shared_experts_share_of_a_tokens_expert_compute():
    assert shared_fraction(MODEL) == 10 / (10 + 2 * 6)
    assert shared_fraction(MODEL.replace(shared_experts=0, shared_width=0)) == 0


def test_eval_points_are_the_axis_of_a_forecast():
    points = eval_points(RUN, "d8")
    assert [point["step"] for point in points] == list(RUN.eval_steps)
    last = points[-1]
    assert last == {
        "run": "d8",
        "step": 100,
        "tokens": 3200,
        "flops": float(scaling_flops(RUN)),
        "params_active": active_parameters(RUN),
        "progress": 1.0,
        "peak_lr": 0.02,
    }
    assert points[0]["flops"] == pytest.approx(last["flops"] / 20)
    assert points[0]["progress"] == 0.05


def test_the_table_of_tensors_is_whole():
    table = tensors(MODEL.replace(conv_taps=4, shared_experts=2))
    assert len([name for name in table if name.startswith("sh")]) == 6
    for name, tensor in table.items():
        assert len(tensor.shape) == len(tensor.axes), name
        assert tensor.size == math.prod(tensor.shape)
        assert (tensor.axes[0] == "layer") == (
            name not in ("embed", "embed_norm", "final_norm", "lm_head")
        ), name
        drawn = tensor.group in ("matrix", "gate", "head", "embedding")
        assert (tensor.init == "normal") == drawn, name
        assert 0 <= tensor.active <= 1
    assert not table["router_bias"].trained
    assert all(tensor.trained for name, tensor in table.items() if name != "router_bias")


def test_the_initial_scale_falls_with_the_root_of_the_width():
    assert init_std(MODEL.replace(width=64)) == 0.5 / 8
