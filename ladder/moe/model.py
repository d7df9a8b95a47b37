"""The decoder: tokens -> hidden states and what the router did.

Axes: B rows, S positions, N = B * S tokens, D width, E experts, K experts of a token, L layers.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from ladder.moe.attention import attention, rms_norm, short_conv
from ladder.moe.ep.grouped import Experts
from ladder.moe.ep.layer import moe
from ladder.moe.loss import loss_sums, targets_of
from ladder.moe.params import Params, split
from ladder.moe.router import route
from ladder.spec import ModelSpec

UNROLLED_LAYERS = 4  # up to here layers are unrolled (faster on a CPU), beyond it scanned (compiles once)


class Routed(NamedTuple):
    """What the routers did. Counts are selections."""

    margin: Float[Array, "L N E"]
    load: Int[Array, "L E"]  # tokens that chose the expert
    score_square: Float[Array, " L"]  # sum over tokens and experts


def hidden(
    params: Params, tokens: Int[Array, "B S"], model: ModelSpec
) -> tuple[Float[Array, "B S D"], Routed]:
    """The normed final hidden states; `hidden @ lm_head` are the logits."""
    _, layers = split(params, model)
    x = rms_norm(params["embed"][tokens], params["embed_norm"])

    def block(x: Array, layer: Params) -> tuple[Array, Routed]:
        x = x + attention(layer, rms_norm(x, layer["attn_norm"]), model)
        y, routed = mlp(layer, rms_norm(x, layer["mlp_norm"]), model)
        return x + y, routed

    unroll = model.layers if model.layers <= UNROLLED_LAYERS else 1
    x, routed = jax.lax.scan(block, x, layers, unroll=unroll)
    return rms_norm(x, params["final_norm"]), routed


def mlp(layer: Params, m: Float[Array, "B S D"], model: ModelSpec) -> tuple[Float[Array, "B S D"], Routed]:
    """Routed and shared experts side by side, for the normed input `m`."""
    tokens = m.reshape(-1, model.width)
    scores = tokens @ layer["router"]
    routing = route(scores, layer["router_bias"], model.top_k, model.combine_sum)
    experts = Experts(layer["exp_gate"], layer["exp_up"], layer["exp_down"])
    y, load = moe(tokens, routing.expert, routing.weight, experts)
    for i in range(model.shared_experts):
        y = y + swiglu(tokens, layer[f"sh{i}_gate"], layer[f"sh{i}_up"], layer[f"sh{i}_down"])
    y = y.reshape(m.shape)
    if model.conv_taps:
        y = short_conv(y, layer["conv_mlp"])
    square = jax.lax.stop_gradient(jnp.sum(scores * scores))
    return y, Routed(routing.margin, load, square)


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
    params: Params, tokens: Int[Array, "B S"], model: ModelSpec, z_loss: float
) -> tuple[Float[Array, ""], tuple[Sums, Routed]]:
    """Summed training loss of a batch, for differentiation, with all sums and the routing beside it."""
    h, routed = hidden(params, tokens, model)
    target, weight = targets_of(tokens)
    total, (ce, square) = loss_sums(
        h.reshape(-1, model.width), params["lm_head"], target.ravel(), weight.ravel(), z_loss
    )
    return total, (Sums(total, ce, square, weight.sum()), routed)
