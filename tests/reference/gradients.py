"""Gradients of the slow twin in float64: python -m tests.reference.gradients IN.npz OUT.npz

IN holds the parameters by name, `tokens` and `model` (ModelSpec as JSON). A process of its own, because
64-bit jax is a setting of the whole process.
"""

import sys

import numpy as np


def main(given: str, out: str) -> None:
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", "cpu")
    import jax.numpy as jnp

    from ladder.spec import ModelSpec
    from tests.reference.decoder import hidden, mean_loss

    with np.load(given) as file:
        arrays = dict(file)
    model, tokens = ModelSpec.from_json(str(arrays.pop("model"))), arrays.pop("tokens")
    params = {name: jnp.asarray(value, jnp.float64) for name, value in arrays.items()}
    _, told, _ = hidden({name: np.float64(value) for name, value in arrays.items()}, tokens, model, np)
    gradients = jax.grad(lambda p: mean_loss(p, tokens, model, model.z_loss, jnp, told))(params)
    assert all(value.dtype == jnp.float64 for value in gradients.values())
    np.savez(out, **{f"d_{name}": value for name, value in gradients.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
