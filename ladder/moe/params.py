"""Parameters as one flat dict of name -> array, made from the table in ladder.tensors."""

import zlib

import jax
import jax.numpy as jnp
from jax import Array

from ladder.spec import ModelSpec
from ladder.tensors import Tensor, init_std, tensors

Params = dict[str, Array]
LARGE = 2**22  # entries


def init(model: ModelSpec, key: Array) -> Params:
    """Fresh float32 parameters. Each random tensor has a key of its own, made from its name."""
    table = tensors(model)
    constant = {name: _constant(tensor) for name, tensor in table.items() if tensor.init != "normal"}
    drawn = _normals({name: tensor for name, tensor in table.items() if tensor.init == "normal"}, key)
    std = init_std(model)
    return {name: constant[name] if name in constant else std * drawn[name] for name in table}


def _constant(tensor: Tensor) -> Array:
    if tensor.init == "first_tap":
        return jnp.zeros(tensor.shape, jnp.float32).at[..., 0, :].set(1.0)
    return jnp.full(tensor.shape, 1.0 if tensor.init == "ones" else 0.0, jnp.float32)


def _normals(table: dict[str, Tensor], key: Array) -> Params:
    """Normals truncated at 3. Small tensors of one size are drawn by one vmapped call: compiling the draw,
    not running it, is what takes time. Large ones are drawn one by one in their own shape, so that each
    device of a mesh draws its shard of one tensor at a time."""
    drawn: Params = {}
    alike: dict[tuple[int, str], list[str]] = {}
    for name, tensor in table.items():
        alike.setdefault((tensor.size, name if tensor.size > LARGE else ""), []).append(name)
    for (size, alone), names in sorted(alike.items()):
        shape = table[alone].shape if alone else (size,)
        keys = jnp.stack([jax.random.fold_in(key, zlib.crc32(name.encode())) for name in names])
        draw = jax.vmap(lambda k, s=shape: jax.random.truncated_normal(k, -3.0, 3.0, s, jnp.float32))
        for name, values in zip(names, draw(keys), strict=True):
            drawn[name] = values.reshape(table[name].shape)
    return drawn


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
