"""MuonH and AdamH: steps that keep the norm of what they train, as optax transformations.

Axes: L layers, E experts, A and B rows and columns of a matrix. A tensor of rank 3 or more is a stack over
layers and each layer has a norm of its own, which the experts of a bank [L, E, A, B] share; a tensor of rank
2 has one norm. No axis is ever merged with another, so that each array keeps its parameter's sharding: of an
expert bank that is spread over devices, only the L sums of squares travel.
"""

from collections.abc import Callable
from typing import cast

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

# Odd quintics a X + b (X X') X + c (X X')² X whose composition takes singular values in [.01, 1] towards 1:
# the public coefficients of Dion (Ahn et al. 2025, arXiv:2504.05295), used in this order.
QUINTICS = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)
ENTRIES = 2**28  # of the layers orthogonalised together: 7 of wq at width 6144, 1 of its expert banks
TINY = 1e-10  # a norm below this divides as this


def orthogonalized(u: Float[Array, "*stack A B"], dtype: DTypeLike = jnp.bfloat16) -> Array:
    """Every trailing matrix of `u` with its singular values moved to about 1, by Newton-Schulz.

    Products run in `dtype`, which the result has too. A zero matrix stays zero. Of a stack, as many layers
    are worked on together as have `ENTRIES` entries, so that products several times their size stay small.
    """
    if u.ndim == 2 or u.size <= ENTRIES:
        return _newton_schulz(u, dtype)
    L, layer = u.shape[0], u[0].size
    together = max(n for n in range(1, L + 1) if L % n == 0 and (n == 1 or n * layer <= ENTRIES))
    groups = u.reshape(L // together, together, *u.shape[1:])
    return jax.lax.map(lambda group: _newton_schulz(group, dtype), groups).reshape(u.shape)


def _newton_schulz(u: Float[Array, "*stack A B"], dtype: DTypeLike) -> Array:
    norm = jnp.sqrt(jnp.sum(jnp.square(u), axis=(-2, -1), keepdims=True))
    x = (u / (norm + 1e-8)).astype(dtype)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x

    def quintic(x: Array, factors: Array) -> tuple[Array, None]:
        a, b, c = factors
        square = x @ x.mT
        return a * x + (b * square + c * (square @ square)) @ x, None

    x, _ = jax.lax.scan(quintic, x, jnp.array(QUINTICS, dtype))  # a loop: a fifth of the program to compile
    return x.mT if tall else x


def sphere_norm(x: Array) -> Array:
    """Frobenius norm of each layer of a stack (rank 3 or more) or of the one matrix; it broadcasts."""
    axes = tuple(range(1, x.ndim)) if x.ndim > 2 else None
    return jnp.sqrt(jnp.sum(jnp.square(x), axis=axes, keepdims=True))


def scale_by_orthogonalization() -> optax.GradientTransformation:
    """Replace every update by `orthogonalized`. Jordan et al. 2024 (Muon); the factor sqrt(max(1, B / A))
    of other versions cancels in `step_on_sphere`."""
    return optax.stateless(lambda updates, _: jax.tree.map(orthogonalized, updates))


def step_on_sphere(learning_rate: Callable[[Array], Array]) -> optax.GradientTransformation:
    """Move each layer along its direction u by `learning_rate` times its own norm R, then back to that norm:

        q = p - lr R u / |u|,    p <- R q / |q|,    R = |p|  (see `sphere_norm`)

    R is that of the parameters given, so the initial norm stays to rounding.
    """

    def init(params: optax.Params) -> optax.ScaleByScheduleState:
        return optax.ScaleByScheduleState(jnp.zeros((), jnp.int32))

    def update(updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None):
        if params is None:
            raise ValueError("step_on_sphere needs the parameters: update(gradients, state, params)")
        (count,) = cast(optax.ScaleByScheduleState, state)
        lr = learning_rate(jnp.asarray(count))

        def step(u: Array, p: Array) -> Array:
            u, radius = u.astype(jnp.float32), sphere_norm(p)
            q = p - lr * u * (radius / jnp.maximum(sphere_norm(u), TINY))
            return q * (radius / jnp.maximum(sphere_norm(q), TINY)) - p

        return jax.tree.map(step, updates, params), optax.ScaleByScheduleState(count + 1)

    return optax.GradientTransformation(init, update)
