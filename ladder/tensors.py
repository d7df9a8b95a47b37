"""The table of parameters: name -> shape, init, axes, optimizer group, share that one token uses.

One table that initialisation, sharding, the optimizer and accounting all read, in plain Python, so that
counting parameters needs no jax. Layer tensors are stacked with a leading axis of `layers`.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from ladder.spec import ModelSpec

Init = Literal["normal", "zeros", "ones", "first_tap"]
Group = Literal["matrix", "head", "embedding", "vector"]


@dataclass(frozen=True)
class Tensor:
    """One stored parameter.

    init: `normal` is std * a normal truncated at 3 std (not renormalised); `first_tap` is a convolution
    that passes its input through. active: the share of its entries that one token multiplies; 0 for what
    the field does not count as active (embeddings, gains, biases; the output head is counted apart).
    trained: False for state that the step overwrites by a rule of its own and no gradient reaches.
    """

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    init: Init
    group: Group
    family: str
    active: Fraction = Fraction(0)
    trained: bool = True

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def init_std(model: ModelSpec) -> float:
    return model.init_scale / math.sqrt(model.width)


def tensors(model: ModelSpec) -> dict[str, Tensor]:
    """Every parameter of `model`, in the order of the forward pass."""
    L, d, V = model.layers, model.width, model.vocab_size
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    E, f, fs, taps = model.experts, model.expert_width, model.shared_width, model.conv_taps
    routed = Fraction(model.top_k, E)
    table: dict[str, Tensor] = {}

    def matrix(name: str, family: str, shape: tuple[int, ...], axes: tuple[str, ...], active=Fraction(1)):
        table[name] = Tensor((L, *shape), ("layer", *axes), "normal", "matrix", family, active)

    def gain(name: str):
        table[name] = Tensor((L, d), ("layer", "width"), "ones", "vector", "norm")

    def conv(name: str, channels: int, axis: str):
        table[name] = Tensor((L, taps, channels), ("layer", "tap", axis), "first_tap", "vector", "conv")

    table["embed"] = Tensor((V, d), ("vocab", "width"), "normal", "embedding", "embedding")
    table["embed_norm"] = Tensor((d,), ("width",), "ones", "vector", "norm")
    gain("attn_norm")
    matrix("wq", "attention", (d, q), ("width", "heads"))
    matrix("wk", "attention", (d, kv), ("width", "kv_heads"))
    matrix("wv", "attention", (d, kv), ("width", "kv_heads"))
    matrix("wo", "attention", (q, d), ("heads", "width"))
    if taps:
        conv("conv_k", kv, "kv_heads")
        conv("conv_attn", d, "width")
        conv("conv_mlp", d, "width")
    gain("mlp_norm")
    matrix("router", "router", (d, E), ("width", "expert"))
    table["router_bias"] = Tensor((L, E), ("layer", "expert"), "zeros", "vector", "router", trained=False)
    matrix("exp_gate", "experts", (E, d, f), ("expert", "width", "hidden"), routed)
    matrix("exp_up", "experts", (E, d, f), ("expert", "width", "hidden"), routed)
    matrix("exp_down", "experts", (E, f, d), ("expert", "hidden", "width"), routed)
    for i in range(model.shared_experts):
        matrix(f"sh{i}_gate", "shared", (d, fs), ("width", "hidden"))
        matrix(f"sh{i}_up", "shared", (d, fs), ("width", "hidden"))
        matrix(f"sh{i}_down", "shared", (fs, d), ("hidden", "width"))
    table["final_norm"] = Tensor((d,), ("width",), "ones", "vector", "norm")
    table["lm_head"] = Tensor((d, V), ("width", "vocab"), "normal", "head", "lm_head")
    return table
