"""Next-token cross-entropy with the final-logit z-loss.

Axes: N tokens, D width, V vocabulary.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

LOGITS = 2**28  # entries at a time


def targets_of(tokens: Int[Array, "B S"]) -> tuple[Int[Array, "B S"], Float[Array, "B S"]]:
    """The token to predict at each position, and its weight, 1 or 0.

    The last position of a row has nothing to predict, and a negative token is padding that nobody predicts.
    """
    target = jnp.pad(tokens[:, 1:], ((0, 0), (0, 1)), constant_values=-1)
    return jnp.maximum(target, 0), (target >= 0).astype(jnp.float32)


def loss_sums(
    h: Float[Array, "N D"],
    lm_head: Float[Array, "D V"],
    target: Int[Array, " N"],
    weight: Float[Array, " N"],
    z_loss: float,
) -> tuple[Float[Array, ""], tuple[Float[Array, ""], Float[Array, ""]]]:
    """Sums over tokens: total, (cross-entropy, lse²), in nats; total = cross-entropy + z_loss * lse².

    lse is the log-sum-exp of the logits, so z_loss keeps the softmax's normaliser near 1. Only the total
    can be differentiated. Divide by the summed weights of the *global* batch for the mean.
    """
    sums: tuple = _loss_sums(h, lm_head, target, weight, z_loss)  # pyright: ignore[reportAssignmentType]
    return sums[0], jax.lax.stop_gradient(sums[1])


def _logits(h: Array, lm_head: Array, target: Array):
    """(exp(logits - max), its sum, lse, logit of the target), float32: all that value and gradient need."""
    logits = jnp.matmul(h, lm_head, preferred_element_type=jnp.float32)
    top = logits.max(axis=-1, keepdims=True)
    exp = jnp.exp(logits - top)
    total = exp.sum(axis=-1, keepdims=True)
    aimed = jnp.take_along_axis(logits, target[:, None], axis=1)[:, 0]
    return exp, total, (top + jnp.log(total))[:, 0], aimed


def _sums(lse: Array, aimed: Array, weight: Array, z_loss: float):
    ce, square = jnp.sum(weight * (lse - aimed)), jnp.sum(weight * lse * lse)
    return ce + z_loss * square, (ce, square)


def _pieces(h: Array, lm_head: Array, target: Array, weight: Array) -> tuple[Array, Array, Array]:
    """The tokens in the fewest equal parts whose logits stay under LOGITS, with a leading axis of parts."""
    N = len(target)
    least = min(N, math.ceil(N * lm_head.shape[1] / LOGITS))
    parts = next(n for n in range(least, N + 1) if N % n == 0)
    return h.reshape(parts, -1, h.shape[1]), target.reshape(parts, -1), weight.reshape(parts, -1)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _loss_sums(h: Array, lm_head: Array, target: Array, weight: Array, z_loss: float):
    def piece(h: Array, target: Array, weight: Array):
        _, _, lse, aimed = _logits(h, lm_head, target)
        return _sums(lse, aimed, weight, z_loss)

    pieces = _pieces(h, lm_head, target, weight)
    if len(pieces[0]) == 1:
        return piece(h, target, weight)
    return jax.tree.map(jnp.sum, jax.lax.map(lambda given: piece(*given), pieces))


def _forward(h: Array, lm_head: Array, target: Array, weight: Array, z_loss: float):
    # The gradient is made here, from the exponentials at hand: no logits are kept or computed again.
    def piece(h: Array, target: Array, weight: Array):
        exp, total, lse, aimed = _logits(h, lm_head, target)
        slope = (weight * (1 + 2 * z_loss * lse))[:, None] * exp / total
        hit = target[:, None] == jnp.arange(lm_head.shape[1])
        slope = jnp.where(hit, slope - weight[:, None], slope).astype(h.dtype)
        d_head = jnp.matmul(h.T, slope, preferred_element_type=jnp.float32)
        return (_sums(lse, aimed, weight, z_loss), d_head), slope @ lm_head.T

    pieces = _pieces(h, lm_head, target, weight)
    if len(pieces[0]) == 1:
        (sums, d_head), d_h = piece(h, target, weight)
    else:

        def add(total: tuple, given: tuple[Array, Array, Array]):
            more, d_h = piece(*given)
            return jax.tree.map(jnp.add, total, more), d_h

        first, d_first = piece(*(part[0] for part in pieces))
        (sums, d_head), d_rest = jax.lax.scan(add, first, tuple(part[1:] for part in pieces))
        d_h = jnp.concatenate([d_first[None], d_rest]).reshape(h.shape)
    return sums, (d_h, d_head.astype(lm_head.dtype))


def _backward(z_loss: float, gradients: tuple[Array, Array], cotangent):
    d_h, d_head = gradients
    scale = cotangent[0]
    return (scale * d_h).astype(d_h.dtype), (scale * d_head).astype(d_head.dtype), None, None


_loss_sums.defvjp(_forward, _backward)
