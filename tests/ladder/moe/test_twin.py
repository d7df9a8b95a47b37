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
MODELS = {
    "grouped heads, ShortConv, two shared": ModelSpec(
        **SIZES, heads=4, kv_heads=2, head_dim=4, shared_experts=2, shared_width=7, conv_taps=3, z_loss=0.1
    ),
    "plain": ModelSpec(**SIZES, heads=1, kv_heads=1, head_dim=6, init_scale=2.0),
}
SLOW = ["grouped heads, ShortConv, two shared", pytest.param("plain", marks=pytest.mark.slow)]


@pytest.fixture(params=SLOW, scope="module")
def case(request):
    """(model, parameters with gains and biases moved off their start, tokens)"""
    model = MODELS[request.param]
    params = jax.jit(lambda: init(model, jax.random.key(3)))()
    rng = np.random.default_rng(4)
    for name, value in params.items():
        if name.startswith(("conv", "router_bias")) or name.endswith("norm"):
            params[name] = value + 0.3 * jnp.asarray(rng.standard_normal(value.shape), jnp.float32)
    return model, params, rng.integers(0, model.vocab_size, (2, model.context)).astype(np.int32)


def relative(ours, theirs) -> float:
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    assert ours.shape == theirs.shape and np.isfinite(ours).all()
    return float(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-30))


def test_hidden_states_routing_and_loss_match_the_twin(case):
    model, params, tokens = case
    wide = {name: np.asarray(value, np.float64) for name, value in params.items()}
    h, chosen, margins = decoder.hidden(wide, tokens, model, np)
    total, ce, count = decoder.losses(h, wide["lm_head"], tokens, model.z_loss, np)

    ours, routed = jax.jit(lambda p, t: core.hidden(p, t, model))(params, tokens)
    _, (sums, _) = jax.jit(lambda p, t: core.loss(p, t, model, model.z_loss))(params, tokens)
    assert relative(ours, h) < VALUE
    assert relative(routed.margin, margins) < VALUE
    load = [[sum(e in token for token in layer) for e in range(model.experts)] for layer in chosen]
    assert np.asarray(routed.load).tolist() == load
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
    count = tokens.size - len(tokens)
    ours = jax.jit(jax.grad(lambda p: core.loss(p, tokens, model, model.z_loss)[0] / count))(params)
    for name, gradient in ours.items():
        if name == "router_bias":
            assert not np.asarray(gradient).any() and not twin["d_router_bias"].any()
        else:
            assert relative(gradient, twin[f"d_{name}"]) < GRADIENT, name
            assert np.asarray(gradient).any(), name
