"""The optimizer of a run, as an optax transformation over the flat parameter dict."""

from collections.abc import Callable, Hashable

import jax.numpy as jnp
import optax

from ladder import schedule
from ladder.spec import RunSpec
from ladder.tensors import tensors
from ladder.train.muonh import scale_by_orthogonalization, step_on_sphere

Rules = dict[Hashable, optax.GradientTransformation]

_RULE_OF_GROUP = {
    "adamw": {"matrix": "matrix", "gate": "matrix", "head": "matrix", "embedding": "rest", "vector": "rest"},
    "muonh": {"matrix": "matrix", "gate": "gate", "head": "head", "embedding": "rest", "vector": "rest"},
}


def learning_rate(run: RunSpec, peak: float) -> Callable:
    """peak * schedule as a function of completed updates: the first update has learning rate 0."""
    return lambda count: peak * schedule.shape(run.schedule, count, run.steps, jnp)


def optimizer(run: RunSpec) -> optax.GradientTransformation:
    """`_adamw` or `_muonh`, as declared, behind a clip of the global gradient norm where one is declared.

    A tensor that the table calls untrained is left alone and has no state.
    """
    spec = run.optimizer
    groups = _RULE_OF_GROUP[spec.kind]
    labels = {
        name: groups[tensor.group] if tensor.trained else "untrained"
        for name, tensor in tensors(run.model).items()
    }
    rules = (_adamw if spec.kind == "adamw" else _muonh)(run)
    rules["untrained"] = optax.set_to_zero()
    clip = [optax.clip_by_global_norm(spec.clip_norm)] if spec.clip_norm else []
    return optax.chain(*clip, optax.partition(rules, labels))


def _adamw(run: RunSpec) -> Rules:
    """AdamW (Loshchilov & Hutter 2019): matrices, gates and the output head train at `matrix_lr` with
    decoupled weight decay, embeddings, gains and ShortConv taps at `lr` without."""
    spec = run.optimizer

    def adamw(peak: float, weight_decay: float) -> optax.GradientTransformation:
        return optax.adamw(
            learning_rate(run, peak), spec.beta1, spec.beta2, spec.eps, weight_decay=weight_decay
        )

    return {"matrix": adamw(spec.matrix_lr, spec.weight_decay), "rest": adamw(spec.lr, 0.0)}


def _muonh(run: RunSpec) -> Rules:
    """The rule of the public marin-community MoE ladder.

    MuonH (Nesterov momentum, orthogonalised, on spheres) for matrices and AdamH (Adam's direction, on a
    sphere) for the output head, both at `matrix_lr`; Adam at `lr` for the rest, with a weight decay of the
    gates that falls linearly to 0 at the last step.
    """
    spec = run.optimizer
    to_peak, on_sphere = learning_rate(run, spec.lr), step_on_sphere(learning_rate(run, spec.matrix_lr))
    momentum = optax.trace(spec.momentum, nesterov=True)
    direction = optax.scale_by_adam(spec.beta1, spec.beta2, spec.eps)
    decay = optax.add_decayed_weights(lambda count: spec.weight_decay * (1 - count / run.steps))
    return {
        "matrix": optax.chain(momentum, scale_by_orthogonalization(), on_sphere),
        "head": optax.chain(direction, on_sphere),
        "gate": optax.chain(direction, decay, optax.scale_by_learning_rate(to_peak)),
        "rest": optax.chain(direction, optax.scale_by_learning_rate(to_peak)),
    }
