"""What a model IS: every size and switch of its architecture, checked when it is declared."""

import math
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from ladder.values import Count, CountOrZero, Value

MAX_SCORE = 60  # exp(60) times 10^12 keys still fits float32


class ModelSpec(Value):
    """A mixture-of-experts decoder: every size a field, nothing a special case of one width.

    Each layer holds attention, `experts` routed SwiGLU experts of which a token uses `top_k`, and
    `shared_experts` SwiGLU experts that every token uses. Input and output embeddings are untied. Defaults
    are features switched off. A *local* layer turns its queries and keys by RoPE and sees `window` tokens;
    a *global* one (each `global_every`-th and the last) sees the whole row and has no position encoding.
    """

    vocab_size: Count  # the last id begins a document
    context: Count  # tokens in one row
    layers: Count
    width: Count  # d, the residual stream
    heads: Count
    head_dim: Count
    kv_heads: Count
    global_kv_heads: Count | None = None  # of global layers; None = kv_heads
    window: Count | None = None  # keys that a position of a local layer sees, itself included; None = all
    global_every: CountOrZero = 0  # 0 = all layers are local
    rope_theta: PositiveFloat = 10_000.0
    rope_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0  # share of a head's channels that RoPE turns
    qk_mult: PositiveFloat = 1.0  # scores = qk_mult * q . k / sqrt(head_dim), of normed q and k
    exclusive_attention: bool = False  # XSA: a head's output loses its part along its own value
    head_gate: bool = False  # each head's output is scaled by a gate in (0, 2) that reads the layer's input
    isolate_documents: bool = False  # attention and ShortConv end where a document of the row begins
    gated_norm_rank: CountOrZero = 0  # GatedNorm behind each norm of the residual stream; 0 = off
    conv_taps: CountOrZero = 0  # ShortConv on keys, attention output and MLP output; 0 = off
    experts: Count
    top_k: Count
    expert_width: Count  # f, hidden width of one routed expert
    latent_width: Count | None = None  # l, what routed experts read and write; None = width
    shared_experts: CountOrZero = 0
    shared_width: CountOrZero = 0  # hidden width of one shared expert
    combine_sum: PositiveFloat = 2.5  # what a token's combine weights add up to
    z_loss: Annotated[float, Field(ge=0)] = 1e-4  # weight of the final-logit z-loss, training only
    init_scale: PositiveFloat = 0.5  # init std = init_scale / sqrt(width)
    compute_dtype: Literal["float32", "bfloat16"] = "float32"  # parameters are float32 in either case

    @model_validator(mode="after")
    def _can_work(self) -> Self:
        for name in ("kv_heads", "global_kv_heads"):
            if (kv_heads := getattr(self, name)) and self.heads % kv_heads:
                raise ValueError(f"heads={self.heads} is not a multiple of {name}={kv_heads}")
        if self.global_kv_heads and not self.global_every:
            raise ValueError(f"global_kv_heads={self.global_kv_heads} but global_every=0: no layer is global")
        if self.window and self.window > self.context:
            raise ValueError(
                f"window={self.window} is wider than context={self.context}: use at most the context, or None"
            )
        if (turned := self.head_dim * self.rope_fraction) % 2:
            share = (
                "" if self.rope_fraction == 1 else f" times rope_fraction={self.rope_fraction} is {turned:g}"
            )
            raise ValueError(f"head_dim={self.head_dim}{share or ' is odd'}: RoPE turns pairs of channels")
        if (score := self.qk_mult * math.sqrt(self.head_dim)) > MAX_SCORE:
            raise ValueError(
                f"qk_mult={self.qk_mult:g} lets scores reach qk_mult * sqrt(head_dim) = {score:.3g}, above "
                f"{MAX_SCORE}: their exponentials would not fit float32"
            )
        if self.top_k + 1 > self.experts:
            raise ValueError(
                f"top_k={self.top_k} needs at least {self.top_k + 1} experts (the router's margin is the "
                f"(top_k+1)-th score), experts={self.experts}"
            )
        if bool(self.shared_experts) != bool(self.shared_width):
            raise ValueError(
                f"shared_experts={self.shared_experts} and shared_width={self.shared_width}: "
                "both are zero or both are positive"
            )
        if self.conv_taps == 1:
            raise ValueError("conv_taps=1 would be a plain gain: use 0 (off) or at least 2")
        return self

    @property
    def is_global(self) -> tuple[bool, ...]:
        """For each layer: does it see the whole row, without a position encoding?"""
        every, last = self.global_every, self.layers - 1
        return tuple(bool(every) and ((i + 1) % every == 0 or i == last) for i in range(self.layers))

    @property
    def stored_kv_heads(self) -> int:
        """Every layer stores the larger number of key/value heads and uses the first ones that it needs."""
        return max(self.kv_heads, self.global_kv_heads or 0)

    @property
    def rope_channels(self) -> int:
        """Channels of a head, from the first on, that RoPE turns in a local layer."""
        return int(self.head_dim * self.rope_fraction)
