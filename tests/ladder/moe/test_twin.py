"""The whole model against its slow float64 twin: values and every gradient."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ladder.moe import model as core
from ladder.moe.params import init
from ladder.spec import ModelSpec
from tests.ladder.examples import ROOT
from tests.reference import decoder

# float32 against float64 over two layers: rounding reaches some 1e-6 of the largest entry
VALUE, GRADIENT = 1e-5, 1e-5

SIZES = dict(vocab_size=11, context=4, layers=2, width=6, experts=4, top_k=2, expert_width=5)
EVERYTHING = dict(
    heads=4,
    kv_heads=2,
    global_kv_heads=1,
    head_dim=4,
    window=2,
    global_every=2,
    rope_fraction=0.5,
    qk_mult=1.3,
    exclusive_attention=True,
    head_gate=True,
    isolate_documents=True,
    gated_norm_rank=3,
    latent_width=4,
    shared_experts=2,
    shared_width=7,
    conv_taps=3,
    z_loss=0.1,
)
MODELS = {
    "everything": ModelSpec(**SIZES, **EVERYTHING),
    "grouped heads, ShortConv, two shared": ModelSpec(
        **SIZES, heads=4, kv_heads=2, head_dim=4, shared_experts=2, shared_width=7, conv_taps=3, z_loss=0.1
    ),
    "plain": ModelSpec(**SIZES, heads=1, kv_heads=1, head_dim=6, init_scale=2.0),
}
SLOW = ["everything", *(pytest.param(name, marks=pytest.mark.slow) for name in list(MODELS)[1:])]


@pytest.fixture(params=SLOW, scope="module")
def case(request):
    """(model, parameters with gains and biases moved off their start, tokens)"""
    model = MODELS[request.param]
    params = jax.jit(lambda: init(model, jax.random.key(3)))()
    rng = np.random.default_rng(4)
    for name, value in params.items():
        if name.startswith(("conv", "router_bias", "attn_gate")) or name.endswith("norm"):
            params[name] = value + 0.3 * jnp.asarray(rng.standard_normal(value.shape), jnp.float32)
    tokens = rng.integers(0, model.vocab_size, (2, model.context)).astype(np.int32)
    tokens[0, 2] = model.vocab_size - 1  # a document begins inside a row
    return model, params, tokens


def relative(ours, theirs) -> float:
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    assert ours.shape == theirs.shape and np.isfinite(ours).all()
    return float(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-30))


def widened(params):
    return {name: np.asarray(value, np.float64) for name, value in params.items()}


def test_hidden_states_routing_and_loss_match_the_twin(case):
    model, params, tokens = case
    wide = widened(params)
    h, chosen, margins = decoder.hidden(wide, tokens, model, np)
    total, ce, count = decoder.losses(h, wide["lm_head"], tokens, model.z_loss, np)

    ours, routed = jax.jit(lambda p, t: core.hidden(p, t, model))(params, tokens)
    _, (sums, _) = jax.jit(lambda p, t: core.loss(p, t, model, model.z_loss))(params, tokens)
    assert relative(ours, h) < VALUE
    assert relative(ours @ params["lm_head"], np.array(h) @ wide["lm_head"]) < VALUE
    assert relative(routed.margin, margins) < VALUE
    load = [[sum(e in token for token in layer) for e in range(model.experts)] for layer in chosen]
    assert np.asarray(routed.stats.demand).tolist() == load
    assert float(sums.loss) == pytest.approx(total, rel=VALUE)
    assert float(sums.ce) == pytest.approx(ce, rel=VALUE)
    assert float(sums.weight) == count == 2 * (model.context - 1)


def test_every_gradient_matches_the_twin(case, tmp_path):
    model, params, tokens = case
    np.savez(tmp_path / "in.npz", model=model.to_json(), tokens=tokens, **params)
    subprocess.run(
        [sys.executable, "-m", "tests.reference.gradients", tmp_path / "in.npz", tmp_path / "out.npz"],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": ""},
        check=True,
    )
    twin = np.load(tmp_path / "out.npz")
    assert_slope(model, widened(params), tokens, twin)
    count = tokens.size - len(tokens)
    ours = jax.jit(jax.grad(lambda p: core.loss(p, tokens, model, model.z_loss)[0] / count))(params)
    for name, gradient in ours.items():
        if name == "router_bias":
            assert not np.asarray(gradient).any() and not twin["d_router_bias"].any()
        else:
            assert relative(gradient, twin[f"d_{name}"]) < GRADIENT, name
            assert np.asarray(gradient).any(), name


def assert_slope(model, params, tokens, twin):
    """The gradient is the slope of the loss along a random direction, with the choice of experts held."""
    _, told, _ = decoder.hidden(params, tokens, model, np)
    rng = np.random.default_rng(7)
    along = {name: rng.standard_normal(value.shape) for name, value in params.items()}

    def at(step):
        moved = {name: value + step * along[name] for name, value in params.items()}
        return decoder.mean_loss(moved, tokens, model, model.z_loss, np, told)

    slope = sum((twin[f"d_{name}"] * value).sum() for name, value in along.items())
    assert (at(1e-5) - at(-1e-5)) / 2e-5 == pytest.approx(slope, rel=1e-6)
