"""Which experts a token uses, with which weights, and how the load is kept even.

Axes: N tokens, E experts, K chosen experts, L layers. A margin of +inf marks a token that is padding.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

BINS = 10_000  # of the margin histogram


class Routing(NamedTuple):
    expert: Int[Array, "N K"]  # int32, best biased score first
    weight: Float[Array, "N K"]  # combine weights; a token's add up to combine_sum
    margin: Float[Array, "N E"]  # unbiased score minus the token's (K + 1)-th biased score; no gradient


def route(scores: Float[Array, "N E"], bias: Float[Array, " E"], top_k: int, combine_sum: float) -> Routing:
    """Select on biased scores, weigh by unbiased ones.

    The first K of the K + 1 largest of score + bias are chosen (the lowest index wins a tie); the last is
    alpha, the bar that an expert has to pass for this token. Weights are sigmoids of the *unbiased* scores
    of the chosen experts, scaled to `combine_sum`. The router learns through the weights alone: selection
    has no derivative and the bias gets none.
    """
    free = jax.lax.stop_gradient(scores)
    biased, expert = jax.lax.top_k(free + jax.lax.stop_gradient(bias), top_k + 1)
    expert = expert[:, :top_k]
    gate = jax.nn.sigmoid(jnp.take_along_axis(scores, expert, axis=1))
    weight = combine_sum * gate / (gate.sum(axis=1, keepdims=True) + 1e-9)
    return Routing(expert, weight, free - biased[:, top_k:])


def balancing_bias(beta: Float[Array, "L E"]) -> Float[Array, "L E"]:
    """The router bias that a measured `beta` asks for: its negative, with zero mean in each layer."""
    return jnp.mean(beta, axis=-1, keepdims=True) - beta


def margin_range(margin: Float[Array, "N E"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """(lowest, highest) margin."""
    return margin.min(), jnp.where(margin < jnp.inf, margin, -jnp.inf).max()


def margin_counts(margin: Float[Array, "N E"], lo: Array, hi: Array) -> Int[Array, "E BINS"]:
    """Histogram of each expert's margins over [lo, hi]. Integers, so that sums over devices are exact."""
    E = margin.shape[1]
    width = (jnp.maximum(hi, lo + 1e-6) - lo) / BINS
    bins = jnp.clip(jnp.floor((margin - lo) / width).astype(jnp.int32), 0, BINS - 1)
    counted = (margin < jnp.inf).astype(jnp.int32)
    flat = jnp.zeros(E * BINS, jnp.int32).at[jnp.arange(E) * BINS + bins].add(counted)
    return flat.reshape(E, BINS)


def measured_beta(counts: Int[Array, "E BINS"], lo: Array, hi: Array, top_k: int) -> Float[Array, " E"]:
    """Quantile balancing: the margin that a K / E share of all tokens exceeds, per expert; 0 without tokens.

    Raising every expert's bar to its own beta would give each the same load. Within the bin that holds
    the quantile it is placed by linear interpolation.
    """
    width = (jnp.maximum(hi, lo + 1e-6) - lo) / BINS
    total = counts.sum(axis=-1, keepdims=True)
    target = total[..., 0] * (top_k / counts.shape[0])  # every token is counted once for each expert
    above = total - (jnp.cumsum(counts, axis=-1) - counts)  # tokens in this bin or a higher one
    bin_ = jnp.clip(jnp.sum(above >= target[..., None], axis=-1) - 1, 0, BINS - 1)
    at = jnp.take_along_axis(above, bin_[..., None], -1)[..., 0]
    inside = jnp.take_along_axis(counts, bin_[..., None], -1)[..., 0]
    return jnp.where(total[:, 0] > 0, lo + width * (bin_ + (at - target) / jnp.maximum(inside, 1)), 0)
