"""Counts by hand, and counts against loops that build the model's products one by one.

The comparison with the real initialisation lives in tests/ladder/moe.
"""

import math

import pytest

from ladder import OptimizerSpec, ParallelSpec
from ladder.accounting import (
    LOGITS,
    QUERY_BLOCK,
    active_parameters,
    device_bytes,
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
    assert found.active_groups == {
        "attention": 2 * ATTENTION,
        "router": 2 * ROUTER,
        "experts": 2 * 2 * EXPERT,
        "shared": 2 * SHARED,
    }
    assert found.trained_as == {
        "embedding": 257 * 8,
        "vector": 8 + 2 * (8 + 8) + 8 + 2 * 4,
        "matrix": 2 * (ATTENTION + 4 * EXPERT + SHARED),
        "gate": 2 * ROUTER,
        "head": 257 * 8,
    }
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

    for is_global in model.is_global:
        keys = model.context if is_global else model.window or model.context
        inside = model.latent_width or model.width
        for _ in range(model.heads):
            product(model.width, model.head_dim)  # query
            product(model.head_dim, model.width)  # output
            for _ in range(keys):
                total += 2 * model.head_dim  # score
                total += 2 * model.head_dim  # weighted value
                total += 3
        for _ in range((is_global and model.global_kv_heads) or model.kv_heads):
            product(model.width, model.head_dim)
            product(model.width, model.head_dim)
        product(model.width, model.experts)
        if model.latent_width:
            product(model.width, inside)
            product(inside, model.width)
        for _ in range(model.top_k):
            for _ in ("gate", "up", "down"):
                product(inside, model.expert_width)
        for _ in range(model.shared_experts):
            for _ in ("gate", "up", "down"):
                product(model.width, model.shared_width)
    if lm_head:
        product(model.width, model.vocab_size)
    return total


@pytest.mark.parametrize(
    "model",
    [
        MODEL,
        MODEL.replace(shared_experts=0, shared_width=0),
        MODEL.replace(heads=6, kv_heads=3, layers=3, context=31, top_k=3, conv_taps=4),
        MODEL.replace(
            heads=6,
            kv_heads=3,
            global_kv_heads=2,
            layers=5,
            context=31,
            window=7,
            global_every=2,
            latent_width=3,
        ),
    ],
)
@pytest.mark.parametrize("lm_head", [False, True])
def test_forward_flops_equal_the_loops(model, lm_head):
    assert forward_flops(model, lm_head, true_globals=True) == flops_by_loops(model, lm_head)
    published = model.replace(layers=model.layers - model.layers % (model.global_every or 1))
    assert forward_flops(published, lm_head) == flops_by_loops(published, lm_head)


def test_the_published_count_forgets_that_the_last_layer_is_global_too():
    model = MODEL.replace(layers=5, context=32, window=8, global_every=2)
    more = forward_flops(model, true_globals=True) - forward_flops(model)
    assert more == (32 - 8) * model.heads * (4 * model.head_dim + 3)


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
    assert shared_fraction(MODEL.replace(latent_width=4)) == 8 * 10 / (8 * 10 + 4 * 2 * 6)


MUONH = OptimizerSpec(kind="muonh", lr=0.01, matrix_lr=0.02)


@pytest.mark.parametrize(("optimizer", "matrix"), [(RUN.optimizer, 8), (MUONH, 4)])
def test_bytes_of_one_device_by_hand(optimizer, matrix):
    count = parameters(MODEL)
    untrained = 2 * 4  # the router's bias
    held = device_bytes(RUN.replace(optimizer=optimizer))
    assert held.weights == 4 * count.total and held.gradients == 4 * (count.total - untrained)
    assert held.optimizer == 8 * (count.total - untrained) - (8 - matrix) * count.trained_as["matrix"]
    assert held.total == held.weights + held.optimizer + held.gradients + held.activations


def test_devices_on_the_expert_axis_share_what_divides():
    """Four devices: experts and all that has a width; gains and the router's bias stay whole on each."""
    held = device_bytes(RUN.replace(optimizer=MUONH, parallel=ParallelSpec(expert=4)))
    vectors, count = 8 + 2 * (8 + 8) + 8, parameters(MODEL)
    divided = count.total - vectors - 2 * 4
    assert held.weights == 4 * (divided // 4 + vectors + 2 * 4)
    assert held.optimizer == (8 * divided - 4 * count.trained_as["matrix"]) // 4 + 8 * vectors
    replicas = device_bytes(RUN.replace(optimizer=MUONH, parallel=ParallelSpec(data=4)))
    assert replicas.weights == 4 * count.total


def test_activations_grow_with_what_a_device_works_on_and_remat_keeps_layer_inputs_alone():
    model = MODEL.replace(layers=8)
    whole = device_bytes(RUN.replace(model=model))
    micro = device_bytes(RUN.replace(model=model, parallel=ParallelSpec(micro_batch_rows=1)))
    remat = device_bytes(RUN.replace(model=model, parallel=ParallelSpec(remat="layer")))
    half = device_bytes(RUN.replace(model=model.replace(compute_dtype="bfloat16")))
    assert micro.activations == whole.activations // 4 and micro.gradients == 2 * whole.gradients
    assert remat.activations < whole.activations / 2 and half.activations < whole.activations
    long = RUN.replace(model=model.replace(context=4096), batch_tokens=4 * 4096)
    scores = 4 * 3 * model.heads * 4096 * 4096
    assert device_bytes(long).activations < 8 * scores  # those of a block at a time, and no layer keeps them


def test_what_the_estimate_of_activations_knows_of_the_core():
    from ladder.moe import attention, loss

    assert attention.BLOCK == QUERY_BLOCK and loss.LOGITS == LOGITS


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
