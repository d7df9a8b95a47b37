"""Parameters as one flat dict of name -> array, made from the table in ladder.tensors."""

import zlib

import jax
import jax.numpy as jnp
from jax import Array

from ladder.spec import ModelSpec
from ladder.tensors import Tensor, init_std, tensors

Params = dict[str, Array]


def init(model: ModelSpec, key: Array) -> Params:
    """Fresh float32 parameters. Each tensor has a key of its own, made from its name, so a feature that
    adds a tensor leaves the values of all others as they were."""
    std = init_std(model)
    return {
        name: _values(tensor, jax.random.fold_in(key, zlib.crc32(name.encode())), std)
        for name, tensor in tensors(model).items()
    }


def _values(tensor: Tensor, key: Array, std: float) -> Array:
    if tensor.init == "normal":
        return std * jax.random.truncated_normal(key, -3.0, 3.0, tensor.shape, jnp.float32)
    if tensor.init == "first_tap":
        return jnp.zeros(tensor.shape, jnp.float32).at[..., 0, :].set(1.0)
    return jnp.full(tensor.shape, 1.0 if tensor.init == "ones" else 0.0, jnp.float32)


def abstract(model: ModelSpec) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and dtypes of `init` without computing anything."""
    return jax.eval_shape(lambda: init(model, jax.random.key(0)))


def split(params: Params, model: ModelSpec) -> tuple[Params, Params]:
    """(tensors of the ends, tensors stacked over layers)."""
    stacked = {name for name, tensor in tensors(model).items() if tensor.axes[0] == "layer"}
    return (
        {name: value for name, value in params.items() if name not in stacked},
        {name: value for name, value in params.items() if name in stacked},
    )
