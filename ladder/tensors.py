"""The table of parameters: name -> shape, init, axes, optimizer group, share that one token uses.

One table that initialisation, sharding, the optimizer and accounting all read, in plain Python, so that
counting parameters needs no jax. Layer tensors are stacked with a leading axis of `layers`.

Where global layers need fewer key/value heads than local ones, the columns of wk, wv and conv_k that they do
not read are stored and counted all the same, and get no gradient.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from ladder.spec import ModelSpec

Init = Literal["normal", "zeros", "ones", "first_tap"]
Group = Literal["matrix", "gate", "head", "embedding", "vector"]


@dataclass(frozen=True)
class Tensor:
    """One stored parameter.

    init: `normal` is std * a normal truncated at 3 std (not renormalised); `first_tap` is a convolution
    that passes its input through. active: the share of its entries that one token multiplies; 0 for what
    the field does not count as active (embeddings, norms and their gates, biases; the output head is counted
    apart). group: matrices that score something are a `gate`, which not every optimizer treats as a `matrix`.
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


def shard_axis(tensor: Tensor, devices: int) -> int | None:
    """The axis along which `devices` of the expert axis share a tensor: its experts, else its width.
    None where each keeps all of it: gains, biases and ShortConv, and what does not divide."""
    name = "expert" if "expert" in tensor.axes else "width"
    if tensor.group == "vector" or name not in tensor.axes:
        return None
    axis = tensor.axes.index(name)
    return axis if tensor.shape[axis] % devices == 0 else None


def tensors(model: ModelSpec) -> dict[str, Tensor]:
    """Every parameter of `model`, in the order of the forward pass."""
    L, d, V = model.layers, model.width, model.vocab_size
    q, kv = model.heads * model.head_dim, model.stored_kv_heads * model.head_dim
    E, f, fs, taps = model.experts, model.expert_width, model.shared_width, model.conv_taps
    l, r = model.latent_width or d, model.gated_norm_rank
    read = "latent" if model.latent_width else "width"  # by routed experts
    routed = Fraction(model.top_k, E)
    table: dict[str, Tensor] = {}

    def matrix(name: str, family: str, shape: tuple[int, ...], axes: tuple[str, ...], active=Fraction(1)):
        table[name] = Tensor((L, *shape), ("layer", *axes), "normal", "matrix", family, active)

    def norm(name: str, stacked: bool = True):
        """A gain, and the two matrices of its GatedNorm."""
        layers, axis = ((L,), ("layer",)) if stacked else ((), ())
        table[f"{name}_norm"] = Tensor((*layers, d), (*axis, "width"), "ones", "vector", "norm")
        if r:
            down, up = ((d, r), ("width", "rank")), ((r, d), ("rank", "width"))
            for part, (shape, axes) in {"down": down, "up": up}.items():
                table[f"{name}_norm_{part}"] = Tensor(
                    (*layers, *shape), (*axis, *axes), "normal", "matrix", "norm_gate"
                )

    def conv(name: str, channels: int, axis: str):
        if taps:
            table[name] = Tensor((L, taps, channels), ("layer", "tap", axis), "first_tap", "vector", "conv")

    table["embed"] = Tensor((V, d), ("vocab", "width"), "normal", "embedding", "embedding")
    norm("embed", stacked=False)
    norm("attn")
    matrix("wq", "attention", (d, q), ("width", "heads"))
    matrix("wk", "attention", (d, kv), ("width", "kv_heads"))
    matrix("wv", "attention", (d, kv), ("width", "kv_heads"))
    conv("conv_k", kv, "kv_heads")
    if model.head_gate:
        axes = ("layer", "width", "heads")
        table["attn_gate"] = Tensor((L, d, model.heads), axes, "zeros", "gate", "attention")
    matrix("wo", "attention", (q, d), ("heads", "width"))
    conv("conv_attn", d, "width")
    norm("mlp")
    table["router"] = Tensor(
        (L, d, E), ("layer", "width", "choice"), "normal", "gate", "router", active=Fraction(1)
    )
    table["router_bias"] = Tensor((L, E), ("layer", "choice"), "zeros", "vector", "router", trained=False)
    if model.latent_width:
        matrix("lat_down", "latent", (d, l), ("width", "latent"))
        table["lat_norm"] = Tensor((L, l), ("layer", "latent"), "ones", "vector", "norm")
        matrix("lat_up", "latent", (l, d), ("latent", "width"))
    matrix("exp_gate", "experts", (E, l, f), ("expert", read, "hidden"), routed)
    matrix("exp_up", "experts", (E, l, f), ("expert", read, "hidden"), routed)
    matrix("exp_down", "experts", (E, f, l), ("expert", "hidden", read), routed)
    for i in range(model.shared_experts):
        matrix(f"sh{i}_gate", "shared", (d, fs), ("width", "hidden"))
        matrix(f"sh{i}_up", "shared", (d, fs), ("width", "hidden"))
        matrix(f"sh{i}_down", "shared", (fs, d), ("hidden", "width"))
    conv("conv_mlp", d, "width")
    norm("final", stacked=False)
    table["lm_head"] = Tensor((d, V), ("width", "vocab"), "normal", "head", "lm_head")
    return table
