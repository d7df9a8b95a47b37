"""The decoder: tokens -> hidden states and what the router did.

Axes: B rows, S positions, N = B * S tokens, D width, E experts, K experts of a token, L layers.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from ladder.moe.attention import attention
from ladder.moe.ep.grouped import Experts
from ladder.moe.ep.layer import Stats, moe
from ladder.moe.loss import loss_sums, targets_of
from ladder.moe.norms import gated_norm, rms_norm, short_conv
from ladder.moe.params import Params, split
from ladder.moe.router import route
from ladder.moe.sharding import whole
from ladder.spec import ModelSpec, ParallelSpec

UNROLLED_LAYERS = 4  # up to here layers are unrolled (faster on a CPU), beyond it scanned (compiles once)
ONE_DEVICE = ParallelSpec()


class Routed(NamedTuple):
    """What the routers did, for tokens that are no padding. Counts are selections."""

    margin: Float[Array, "L N E"]  # +inf where the token is padding
    score_square: Float[Array, " L"]  # sum over tokens and experts
    stats: Stats  # stacked over layers


def hidden(
    params: Params, tokens: Int[Array, "B S"], model: ModelSpec, layout: ParallelSpec = ONE_DEVICE
) -> tuple[Float[Array, "B S D"], Routed]:
    """The normed final hidden states, in the compute dtype; `hidden @ lm_head` are the logits.

    A negative token is padding. On several devices of the expert axis (`layout`) `params` are this device's
    shards and `tokens` its rows.
    """
    ends, layers = split(params, model)
    ends = whole(_cast(ends, model), model, layout)
    valid = tokens >= 0
    documents = documents_of(tokens, model) if model.isolate_documents else None

    def block(x: Array, given: tuple[Params, Bool[Array, ""]]) -> tuple[Array, Routed]:
        layer = whole(_cast(given[0], model), model, layout)
        x = x + attention(layer, gated_norm(layer, "attn", x), model, documents, given[1])
        y, routed = mlp(layer, gated_norm(layer, "mlp", x), valid, model, layout)
        if model.conv_taps:
            y = short_conv(y, layer["conv_mlp"], documents)
        return x + y, routed

    if layout.remat == "layer":
        block = jax.checkpoint(block)
    unroll = model.layers if model.layers <= UNROLLED_LAYERS else 1
    x = gated_norm(ends, "embed", ends["embed"][tokens])
    x, routed = jax.lax.scan(block, x, (layers, jnp.array(model.is_global)), unroll=unroll)
    return gated_norm(ends, "final", x), routed


def documents_of(tokens: Int[Array, "B S"], model: ModelSpec) -> Int[Array, "B S"]:
    """A number for each position's document, -1 for padding: the last id of the vocabulary begins one."""
    begun = jnp.cumsum(tokens == model.vocab_size - 1, axis=1)
    return jnp.where(tokens < 0, -1, begun)


def _cast(params: Params, model: ModelSpec) -> Params:
    """Parameters as the forward pass multiplies them; gains and the router's bias stay float32."""
    wide = lambda name: name.endswith("_norm") or name == "router_bias"  # noqa: E731
    return {name: x if wide(name) else x.astype(model.compute_dtype) for name, x in params.items()}


def mlp(
    layer: Params,
    m: Float[Array, "B S D"],
    valid: Bool[Array, "B S"],
    model: ModelSpec,
    layout: ParallelSpec = ONE_DEVICE,
) -> tuple[Float[Array, "B S D"], Routed]:
    """Routed and shared experts side by side, for the normed input `m`."""
    tokens = m.reshape(-1, model.width)
    scores = jnp.matmul(tokens, layer["router"], preferred_element_type=jnp.float32)
    routing = route(scores, layer["router_bias"], model.top_k, model.combine_sum)
    experts = Experts(layer["exp_gate"], layer["exp_up"], layer["exp_down"])
    x = rms_norm(tokens @ layer["lat_down"], layer["lat_norm"]) if model.latent_width else tokens
    expert = jnp.where(valid.ravel()[:, None], routing.expert, model.experts)  # padding goes nowhere
    y, stats = moe(x, expert, routing.weight, experts, layout)
    if model.latent_width:
        y = y @ layer["lat_up"]
    for i in range(model.shared_experts):
        y = y + swiglu(tokens, layer[f"sh{i}_gate"], layer[f"sh{i}_up"], layer[f"sh{i}_down"])
    counted = valid.ravel()[:, None]
    square = jax.lax.stop_gradient(jnp.sum(jnp.where(counted, scores * scores, 0)))
    margin = jnp.where(counted, routing.margin, jnp.inf)
    return y.reshape(m.shape), Routed(margin, square, stats)


def swiglu(x: Float[Array, "N D"], gate: Array, up: Array, down: Array) -> Float[Array, "N D"]:
    """(silu(x gate) * (x up)) down. Shazeer 2020."""
    return (jax.nn.silu(x @ gate) * (x @ up)) @ down


class Sums(NamedTuple):
    """Sums over a batch; each over `weight` is a mean over predicted tokens."""

    loss: Float[Array, ""]  # what is minimised: cross-entropy + z-loss
    ce: Float[Array, ""]  # nats
    lse_square: Float[Array, ""]
    weight: Float[Array, ""]


def loss(
    params: Params,
    tokens: Int[Array, "B S"],
    model: ModelSpec,
    z_loss: float,
    layout: ParallelSpec = ONE_DEVICE,
) -> tuple[Float[Array, ""], tuple[Sums, Routed]]:
    """Summed training loss of a batch, for differentiation, with all sums and the routing beside it."""
    h, routed = hidden(params, tokens, model, layout)
    target, weight = targets_of(tokens)
    head = whole(_cast({"lm_head": params["lm_head"]}, model), model, layout)["lm_head"]
    total, (ce, square) = loss_sums(h.reshape(-1, model.width), head, target.ravel(), weight.ravel(), z_loss)
    return total, (Sums(total, ce, square, weight.sum()), routed)
