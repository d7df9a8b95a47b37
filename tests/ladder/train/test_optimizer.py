"""MuonH, AdamH and Adam by group, against their formulas in float64; spheres, directions and joints.

AdamW's own comparison stands in test_step.py.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from ladder import OptimizerSpec, ParallelSpec, ScheduleSpec
from ladder.accounting import device_bytes
from ladder.moe.mesh import make_mesh
from ladder.recipe import marin
from ladder.tensors import tensors
from ladder.train import muonh
from ladder.train.muonh import orthogonalized, step_on_sphere
from ladder.train.optimizer import learning_rate, optimizer
from ladder.train.step import shapes, shardings
from tests.ladder.examples import MODEL
from tests.ladder.examples import RUN as EXAMPLE
from tests.reference import optimizers as reference

SPEC = OptimizerSpec(
    kind="muonh", lr=0.01, matrix_lr=0.03, beta2=0.95, eps=1e-15, weight_decay=0.0, clip_norm=None
)
MARIN = MODEL.replace(
    layers=3, conv_taps=4, head_gate=True, gated_norm_rank=2, latent_width=4, shared_experts=2, heads=4
)
RUN = EXAMPLE.replace(model=MARIN, optimizer=SPEC, schedule=ScheduleSpec(warmup=0.1, final=0.05), steps=60)
CONSTANT = RUN.replace(schedule=ScheduleSpec(warmup=0.0, final=1.0))
# bfloat16 products: five quintics turn their rounding of 2^-9 into some hundredths of a direction's norm.
ROUNDED = 0.05


def drawn(seed, model=MARIN):
    """A normal array for each tensor of the model."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(tensor.shape) for name, tensor in tensors(model).items()}


def single(arrays):
    return {name: jnp.asarray(value, jnp.float32) for name, value in arrays.items()}


@functools.cache
def compiled(run):
    transform = optimizer(run)
    return transform.init, jax.jit(transform.update)


def steps(run, params, gradients):
    """Parameters after each update."""
    init, update = compiled(run)
    state = init(params)
    for gradient in gradients:
        updates, state = update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        yield params


def norms(value):
    value = np.asarray(value, np.float64)
    return [np.linalg.norm(value[part]) for part in reference.spheres(value)]


@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_every_group_moves_as_its_formula_says(decay):
    run = RUN.replace(optimizer=SPEC.replace(weight_decay=decay))
    start, gradients = drawn(0), [drawn(seed) for seed in range(1, 13)]
    expected, twins = dict(start), {}
    for name, tensor in tensors(MARIN).items():
        adam = start[name], SPEC.beta1, SPEC.beta2, SPEC.eps
        kinds = {"matrix": lambda p, *_: reference.MuonH(p), "head": reference.AdamH}
        twins[name] = kinds.get(tensor.group, reference.Adam)(*adam)
    for t, params in enumerate(steps(run, single(start), map(single, gradients))):
        for name, tensor in tensors(MARIN).items():
            on_sphere = tensor.group in ("matrix", "head")
            peak = SPEC.matrix_lr if on_sphere else SPEC.lr
            lr = reference.rate(t, run.steps, peak, 0.1, 0.05)
            more = {"decay": decay * (1 - t / run.steps)} if tensor.group == "gate" else {}
            if tensor.trained:
                expected[name] = twins[name].step(expected[name], gradients[t][name], lr, **more)
            moved = np.linalg.norm(expected[name] - start[name])
            error = np.linalg.norm(np.asarray(params[name], np.float64) - expected[name])
            allowed = ROUNDED if tensor.group == "matrix" else 1e-5
            assert error <= allowed * moved + 2e-6 * np.linalg.norm(start[name]), (t, name)


def test_every_sphere_keeps_its_norm_over_fifty_steps():
    start = drawn(0)
    start["exp_up"][:, 1] *= 10  # experts of unlike size share one radius
    *_, end = steps(CONSTANT, single(start), (single(drawn(seed)) for seed in range(1, 51)))
    checked = 0
    for name, tensor in tensors(MARIN).items():
        if tensor.group in ("matrix", "head"):
            np.testing.assert_allclose(norms(end[name]), norms(start[name]), rtol=1e-5, err_msg=name)
            assert np.linalg.norm(end[name] - start[name]) > 0.5 * np.linalg.norm(start[name])
            checked += len(norms(start[name]))
    stacks = [name for name, tensor in tensors(MARIN).items() if tensor.group == "matrix"]
    ends = [name for name in stacks if name.startswith(("embed", "final"))]
    assert checked == 3 * (len(stacks) - len(ends)) + len(ends) + 1 == 3 * 19 + 4 + 1


def with_singular_values(values, shape, rng):
    u, _, v = np.linalg.svd(rng.standard_normal(shape), full_matrices=False)
    return u * (values / np.linalg.norm(values)) @ v, u, v


@pytest.mark.parametrize("shape", [(48, 48), (16, 64), (64, 16)])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_singular_values_of_a_hundredth_or_more_go_to_about_one(shape, scale):
    rng = np.random.default_rng(0)
    values = np.logspace(0, -2.5, min(shape))
    matrix, u, v = with_singular_values(values, shape, rng)
    values = values / np.linalg.norm(values)
    found = np.asarray(orthogonalized(jnp.asarray(scale * matrix, jnp.float32)), np.float64)
    along = np.diag(u.T @ found @ v.T)  # what became of each singular direction
    assert (values >= 0.01).sum() > 5 and (values < 0.01).sum() > 1
    assert ((along[values >= 0.01] > 0.7) & (along[values >= 0.01] < 1.3)).all()
    assert np.linalg.svd(found, compute_uv=False).max() < 1.3
    exact = np.asarray(orthogonalized(jnp.asarray(scale * matrix, jnp.float32), jnp.float32))
    wide = np.sqrt(max(1, shape[1] / shape[0]))
    np.testing.assert_allclose(exact, reference.orthogonalized(scale * matrix) / wide, atol=2e-3)


@pytest.mark.parametrize("entries", [2**28, 700, 180])
def test_a_stack_is_orthogonalised_matrix_by_matrix(monkeypatch, entries):
    """All four layers together, two and one at a time: 180 entries a layer."""
    monkeypatch.setattr(muonh, "ENTRIES", entries)
    bank = jnp.asarray(np.random.default_rng(1).standard_normal((4, 3, 6, 10)), jnp.float32)
    lowered = jax.jit(lambda u: muonh.orthogonalized(u, jnp.float32)).lower(bank)
    together = {2**28: 4, 700: 2, 180: 1}[entries]
    assert f"tensor<{together}x3x6x6xf32>" in lowered.as_text()
    whole = np.asarray(lowered.compile()(bank))
    for index in np.ndindex(4, 3):
        twin = reference.orthogonalized(np.asarray(bank[index], np.float64)) / np.sqrt(10 / 6)
        np.testing.assert_allclose(whole[index], twin, atol=1e-3)


def test_an_expert_without_gradient_keeps_its_direction_and_lends_or_takes_norm():
    start = drawn(0)
    gradient = drawn(1)
    gradient["exp_up"][:, 2] = 0
    (end,) = steps(CONSTANT, single(start), [single(gradient)])
    for before, after in zip(start["exp_up"][:, 2], np.asarray(end["exp_up"])[:, 2], strict=True):
        scale = np.linalg.norm(after) / np.linalg.norm(before)
        np.testing.assert_allclose(after, scale * before, rtol=1e-5)
        assert abs(scale - 1) < 0.01
    assert not np.asarray(orthogonalized(jnp.zeros((2, 3, 3)))).any()


def test_the_first_update_has_rate_zero_and_moves_nothing():
    params = single(drawn(0))
    (after,) = steps(RUN, params, [single(drawn(1))])
    for name in params:
        np.testing.assert_array_equal(after[name], params[name], err_msg=name)


@pytest.mark.parametrize("total", [60, 3930, 390_251])
def test_the_rate_turns_where_the_schedule_says(total):
    """At its joints and their neighbours, to single precision."""
    run = RUN.replace(steps=total, schedule=ScheduleSpec(warmup=0.01, final=0.05))
    warm = int(0.01 * total)
    assert warm == {60: 0, 3930: 39, 390_251: 3902}[total]
    rate = jax.jit(learning_rate(run, 0.00329))
    for t in sorted({0, 1, max(warm - 1, 0), warm, warm + 1, total // 2, total - 1, total}):
        expected = reference.rate(t, total, 0.00329, 0.01, 0.05)
        assert float(rate(jnp.int32(t))) == pytest.approx(expected, rel=4e-6, abs=1e-12), t


def test_the_norm_of_a_sphere_that_is_spread_over_devices_is_counted_once(monkeypatch):
    """Value as on one device, and of a bank spread over experts only sums of squares travel."""
    monkeypatch.setattr(muonh, "ENTRIES", 16 * 8 * 12)  # a layer at a time
    mesh = jax.make_mesh((8,), ("expert",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = NamedSharding(mesh, P(None, "expert"))
    rng = np.random.default_rng(2)
    p, u = (jnp.asarray(rng.standard_normal((3, 16, 8, 12)), jnp.float32) for _ in range(2))
    step = step_on_sphere(lambda _: jnp.float32(0.1))

    def move(p, u):
        updates, _ = step.update(orthogonalized(u), step.init(p), p)
        return updates

    there = jax.device_put((p, u), spread)
    compiled = jax.jit(move, in_shardings=(spread, spread), out_shardings=spread).lower(p, u).compile()
    np.testing.assert_allclose(compiled(*there), jax.jit(move)(p, u), atol=2e-3)
    text = compiled.as_text() or ""
    assert "all-reduce" in text
    for moving in ("all-gather", "all-to-all", "collective-permute", "reduce-scatter"):
        assert f" {moving}(" not in text and f" {moving}-start(" not in text


def test_the_spheres_need_the_parameters():
    step = step_on_sphere(lambda _: jnp.float32(0.1))
    with pytest.raises(ValueError, match="needs the parameters"):
        step.update(jnp.ones((2, 2)), step.init(jnp.ones((2, 2))))


def test_memory_is_one_buffer_for_muonh_and_two_for_adam():
    params = jax.eval_shape(lambda: single(drawn(0)))
    state = jax.eval_shape(optimizer(RUN).init, params)
    held = sum(leaf.size for leaf in jax.tree.leaves(state) if leaf.ndim)
    per = {"matrix": 1, "head": 2, "gate": 2, "embedding": 2, "vector": 2}
    assert held == sum(per[t.group] * t.size for t in tensors(MARIN).values() if t.trained)


def test_bytes_of_one_device_are_those_of_the_real_state():
    """The full model, over eight devices, from shapes alone; the optimizer also keeps a few counters."""
    run = marin(6144).replace(parallel=ParallelSpec(expert=8))
    state, laid_out = shapes(run), shardings(run, make_mesh(run.parallel))

    def held(part, where):
        pairs = zip(jax.tree.leaves(part), jax.tree.leaves(where), strict=True)
        return sum(math.prod(s.shard_shape(x.shape)) * x.dtype.itemsize for x, s in pairs)

    expected = device_bytes(run)
    assert held(state.params, laid_out.params) == expected.weights
    assert 0 <= held(state.optimizer, laid_out.optimizer) - expected.optimizer < 100
