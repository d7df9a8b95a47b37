"""The optimizer of a run, as an optax transformation over the flat parameter dict."""

from collections.abc import Callable, Hashable

import jax.numpy as jnp
import optax

from ladder import schedule
from ladder.spec import RunSpec
from ladder.tensors import tensors

_RULE = {"matrix": "matrix", "gate": "matrix", "head": "matrix", "embedding": "rest", "vector": "rest"}


def learning_rate(run: RunSpec, peak: float) -> Callable:
    """peak * schedule as a function of completed updates: the first update has learning rate 0."""
    return lambda count: peak * schedule.shape(run.schedule, count, run.steps, jnp)


def optimizer(run: RunSpec) -> optax.GradientTransformation:
    """AdamW (Loshchilov & Hutter 2019) behind a clip of the global gradient norm.

    Matrices and the output head train at `matrix_lr` with decoupled weight decay, embeddings, gains and
    ShortConv taps at `lr` without. A tensor that the table calls untrained is left alone and has no state.
    """
    spec = run.optimizer

    def adamw(peak: float, weight_decay: float) -> optax.GradientTransformation:
        return optax.adamw(
            learning_rate(run, peak), spec.beta1, spec.beta2, spec.eps, weight_decay=weight_decay
        )

    labels = {
        name: _RULE[tensor.group] if tensor.trained else "untrained"
        for name, tensor in tensors(run.model).items()
    }
    rules: dict[Hashable, optax.GradientTransformation] = {
        "matrix": adamw(spec.matrix_lr, spec.weight_decay),
        "rest": adamw(spec.lr, 0.0),
        "untrained": optax.set_to_zero(),
    }
    clip = [optax.clip_by_global_norm(spec.clip_norm)] if spec.clip_norm else []
    return optax.chain(*clip, optax.partition(rules, labels))
