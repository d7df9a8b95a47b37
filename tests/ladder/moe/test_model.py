"""The decoder as a whole: its size is the size that was counted, and it only looks back."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ladder import load
from ladder.accounting import parameters
from ladder.moe import params as parameter_tree
from ladder.moe.loss import loss_sums, targets_of
from ladder.moe.model import UNROLLED_LAYERS, hidden, loss
from ladder.spec import ParallelSpec
from ladder.tensors import init_std, tensors
from tests.ladder.examples import MODEL, ROOT

FULL = MODEL.replace(
    layers=3,
    heads=4,
    kv_heads=2,
    global_kv_heads=1,
    window=6,
    global_every=2,
    rope_fraction=0.5,
    qk_mult=1.3,
    exclusive_attention=True,
    head_gate=True,
    isolate_documents=True,
    gated_norm_rank=4,
    latent_width=4,
    conv_taps=4,
    shared_experts=2,
)
VARIANTS = {
    "tiny": MODEL,
    "every feature": FULL,
    "conv, two shared": MODEL.replace(conv_taps=4, shared_experts=2),
    "no shared": MODEL.replace(shared_experts=0, shared_width=0),
    "deep": MODEL.replace(layers=UNROLLED_LAYERS + 1),
    "535B-like width": MODEL.replace(width=6144, head_dim=128, heads=48, kv_heads=12, experts=384, top_k=8),
}
DECLARED = {
    f"{file.stem}/{name}": run.model
    for file in sorted((ROOT / "experiments").glob("*.py"))
    for rung in load(file).everything
    for name, run in rung.runs
}


def fresh(model, seed):
    return jax.jit(lambda: parameter_tree.init(model, jax.random.key(seed)))()


@pytest.mark.parametrize("model", [*VARIANTS.values(), *DECLARED.values()], ids=[*VARIANTS, *DECLARED])
def test_the_count_of_parameters_is_the_size_of_the_real_tree(model):
    tree = parameter_tree.abstract(model)
    assert {name: value.shape for name, value in tree.items()} == {
        name: tensor.shape for name, tensor in tensors(model).items()
    }
    assert parameters(model).total == sum(math.prod(value.shape) for value in tree.values())


@pytest.fixture(scope="module", params=[MODEL.replace(conv_taps=3), FULL], ids=["few features", "all"])
def case(request):
    model = request.param.replace(context=16)
    params = fresh(model, 0)
    tokens = np.random.default_rng(0).integers(0, 257, (2, 16)).astype(np.int32)
    return model, params, tokens


def test_no_position_sees_a_later_token_or_another_row(case):
    model, params, tokens = case
    forward = jax.jit(lambda tokens: hidden(params, tokens, model)[0])
    before = np.asarray(forward(tokens))
    changed = tokens.copy()
    changed[0, 9:] = (changed[0, 9:] + 1) % 257
    after = np.asarray(forward(changed))
    # to rounding: another routing of later tokens may put the same rows into other blocks
    np.testing.assert_allclose(after[0, :9], before[0, :9], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after[1], before[1], rtol=1e-5, atol=1e-6)
    assert np.abs(after[0, 9:] - before[0, 9:]).max(axis=1).min() > 1e-3


def test_order_matters_even_without_convolutions(case):
    _, _, tokens = case
    model = MODEL.replace(context=16)
    params = fresh(model, 0)
    forward = jax.jit(lambda tokens: hidden(params, tokens, model)[0])
    swapped = tokens.copy()
    swapped[:, [2, 7]] = swapped[:, [7, 2]]
    assert np.abs(np.asarray(forward(swapped)[:, -1]) - np.asarray(forward(tokens)[:, -1])).max() > 1e-5


def test_scanned_layers_are_the_unrolled_ones(case, monkeypatch):
    model, params, tokens = case

    def run():
        return jax.jit(jax.grad(lambda p: loss(p, tokens, model, 1e-4)[0]))(params)

    unrolled = run()
    monkeypatch.setattr("ladder.moe.model.UNROLLED_LAYERS", 0)
    for name, gradient in run().items():
        np.testing.assert_allclose(gradient, unrolled[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_documents_of_a_row_are_as_good_as_alone():
    """RoPE knows distances alone, so a packed row is its documents side by side."""
    model = FULL.replace(context=16)
    params = fresh(model, 4)
    row = np.random.default_rng(5).integers(0, 256, 16).astype(np.int32)
    row[[0, 6]] = 256  # the mark that begins a document
    states = jax.jit(lambda tokens: hidden(params, tokens, model)[0][0])
    packed = np.asarray(states(row[None]))
    for part in (slice(0, 6), slice(6, 16)):
        np.testing.assert_allclose(packed[part], states(row[None, part]), rtol=1e-4, atol=1e-5)
    mixed = jax.jit(lambda tokens: hidden(params, tokens, model.replace(isolate_documents=False))[0][0])
    assert np.abs(mixed(row[None])[6:] - packed[6:]).max() > 1e-2


def test_layers_computed_again_give_the_same_gradients(case):
    model, params, tokens = case

    def run(remat):
        layout = ParallelSpec(remat=remat)
        return jax.jit(jax.grad(lambda p: loss(p, tokens, model, 1e-4, layout)[0]))(params)

    plain = run("none")
    for name, gradient in run("layer").items():
        np.testing.assert_allclose(gradient, plain[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_padding_is_routed_nowhere(case):
    model, params, tokens = case
    padded = np.where(np.arange(16) < 9, tokens, -1)
    _, routed = jax.jit(lambda t: hidden(params, t, model))(padded)
    assert (np.asarray(routed.stats.demand).sum(axis=1) == 2 * 9 * model.top_k).all()
    assert np.isinf(routed.margin).sum() == model.layers * 2 * 7 * model.experts


@pytest.mark.parametrize("features", [MODEL, FULL.replace(latent_width=32)], ids=["few features", "all"])
def test_a_fresh_model_knows_nothing(features):
    """Logits of a fresh model have a variance near .06, so the loss is ln V + .03."""
    model = features.replace(width=64, head_dim=16, heads=4, expert_width=64, shared_width=64)
    model = model.replace(vocab_size=1024, context=64)
    params = fresh(model, 1)
    tokens = jnp.asarray(np.random.default_rng(1).integers(0, 1024, (16, 64)), jnp.int32)
    h = jax.jit(lambda: hidden(params, tokens, model)[0])().reshape(-1, 64)
    target, weight = targets_of(tokens)
    _, (ce, _) = loss_sums(h, params["lm_head"], target.ravel(), weight.ravel(), 0.0)
    assert float(ce / weight.sum()) == pytest.approx(math.log(1024) + 0.03, abs=0.1)


def test_bfloat16_computes_near_float32_and_keeps_its_parameters_and_gradients_float32():
    model = FULL.replace(context=16)
    params, tokens = fresh(model, 0), np.random.default_rng(0).integers(0, 257, (2, 16)).astype(np.int32)

    def run(model):
        f = jax.value_and_grad(lambda p: loss(p, tokens, model, 1e-4)[0])
        return jax.jit(f)(params)

    (half, gradients), (full, _) = run(model.replace(compute_dtype="bfloat16")), run(model)
    assert float(half) == pytest.approx(float(full), rel=1e-2)
    assert {g.dtype for g in gradients.values()} == {jnp.dtype("float32")}


def test_initial_values_follow_the_table():
    model = MODEL.replace(width=64, conv_taps=3)
    params, std = fresh(model, 2), init_std(model)
    assert np.abs(params["wq"]).max() <= 3 * std
    assert np.std(params["embed"]) == pytest.approx(0.9866 * std, rel=0.02)  # of a normal cut at 3
    assert (
        np.asarray(params["conv_attn"][:, 0] == 1).all() and not np.asarray(params["conv_attn"][:, 1:]).any()
    )
    assert np.asarray(params["attn_norm"] == 1).all() and not np.asarray(params["router_bias"]).any()
    assert not np.array_equal(params["sh0_gate"], params["sh0_up"])
