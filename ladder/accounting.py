"""Parameters, FLOPs and bytes of a spec: exact integers, by group; bytes of activations are an estimate.

FLOPs count a multiply-add as 2, score every query against all keys of its layer's span (causality is not
halved) and leave out embedding look-up, norms and their gates, ShortConv, head gates, softmax, top-k, the
optimizer and recomputation. The formulas are those of the public marin-community MoE ladder, whose published
counts they reproduce.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ladder.spec import ModelSpec, RunSpec
from ladder.tensors import Group, Tensor, shard_axis, tensors

MASTER_BYTES = 4  # of a parameter or a gradient: float32
STATE_BYTES: Mapping[
    str, Mapping[Group, int]
] = {  # of the optimizer, a parameter: one or two float32 moments
    "adamw": {"matrix": 8, "gate": 8, "head": 8, "embedding": 8, "vector": 8},
    "muonh": {"matrix": 4, "gate": 8, "head": 8, "embedding": 8, "vector": 8},
}
QUERY_BLOCK = 512  # queries whose scores exist at a time in longer rows: ladder.moe.attention.BLOCK
LOGITS = 2**28  # logits that exist at a time: ladder.moe.loss.LOGITS


@dataclass(frozen=True)
class Parameters:
    """Exact counts. `active`: what one token multiplies, without embeddings, gains and the output head;
    `lm_head`: the output head; `groups`: family of tensors -> count, and they add up to `total`;
    `active_groups`: the same of `active`; `trained_as`: optimizer group -> count, adding up to `total`."""

    total: int
    active: int
    lm_head: int
    groups: Mapping[str, int]
    active_groups: Mapping[str, int]
    trained_as: Mapping[Group, int]


def parameters(model: ModelSpec) -> Parameters:
    table = tensors(model)
    groups: dict[str, int] = {}
    active: dict[str, int] = {}
    trained_as: dict[Group, int] = {}
    for tensor in table.values():
        groups[tensor.family] = groups.get(tensor.family, 0) + tensor.size
        trained_as[tensor.group] = trained_as.get(tensor.group, 0) + tensor.size
        if tensor.active:
            active[tensor.family] = active.get(tensor.family, 0) + int(tensor.active * tensor.size)
    total = sum(groups.values())
    return Parameters(total, sum(active.values()), table["lm_head"].size, groups, active, trained_as)


def active_parameters(run: RunSpec) -> int:
    """Active parameters on the scaling axis: with the output head where the run counts it."""
    counted = parameters(run.model)
    return counted.active + (counted.lm_head if run.count_lm_head else 0)


def shared_fraction(model: ModelSpec) -> float:
    """Share of the expert compute of a token that the shared experts do."""
    shared = model.width * model.shared_experts * model.shared_width
    return shared / (shared + (model.latent_width or model.width) * model.top_k * model.expert_width)


def forward_flops(model: ModelSpec, lm_head: bool = False, *, true_globals: bool = False) -> int:
    """FLOPs of one token's forward pass.

    The published counts price `layers // global_every` layers as global, although the last layer is always
    global too; `true_globals` prices each layer as it is. Both agree where global_every divides layers.
    """
    d, H, hd = model.width, model.heads, model.head_dim
    inside = model.latent_width or d  # what routed experts read and write
    experts = 6 * model.top_k * inside * model.expert_width
    experts += 6 * model.shared_experts * d * model.shared_width
    latent = 4 * d * model.latent_width if model.latent_width else 0
    dense = (
        experts + latent + 2 * d * model.experts + 2 * d * H * hd
    )  # the last two: router, attention output

    def attention(kv_heads: int, span: int) -> int:
        """Products of queries, keys and values; scores, weighted values and softmax over `span` keys."""
        return 2 * d * (H + 2 * kv_heads) * hd + span * H * (4 * hd + 3)

    published = model.layers // model.global_every if model.global_every else 0
    n_global = sum(model.is_global) if true_globals else published
    whole_row = attention(model.global_kv_heads or model.kv_heads, model.context)
    local = attention(model.kv_heads, model.window or model.context)
    layers = model.layers * dense + n_global * whole_row + (model.layers - n_global) * local
    return layers + (2 * d * model.vocab_size if lm_head else 0)


def train_flops(run: RunSpec, lm_head: bool = False) -> int:
    """FLOPs of the whole run, forward and backward (3 x forward)."""
    return 3 * forward_flops(run.model, lm_head) * run.tokens


def scaling_flops(run: RunSpec) -> int:
    """Training FLOPs on the scaling axis: with the output head where the run counts it."""
    return train_flops(run, run.count_lm_head)


@dataclass(frozen=True)
class DeviceBytes:
    """What one device holds. Weights, gradients and optimizer state are exact; activations are an estimate
    of the largest of what the backward pass keeps and works on."""

    weights: int
    optimizer: int
    gradients: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.optimizer + self.gradients + self.activations


def device_bytes(run: RunSpec) -> DeviceBytes:
    """Bytes on each of `run.parallel.devices`. A second copy of the gradients is of micro-batches, which add
    to the first."""
    per_state = STATE_BYTES[run.optimizer.kind]
    weights = optimizer = trained = 0
    for tensor in tensors(run.model).values():
        held = _held(tensor, run.parallel.expert)
        weights += MASTER_BYTES * held
        if tensor.trained:
            trained += held
            optimizer += per_state[tensor.group] * held
    rows = run.rows // run.parallel.devices
    micro = run.parallel.micro_batch_rows or rows
    gradients = MASTER_BYTES * trained * (1 if micro == rows else 2)
    return DeviceBytes(weights, optimizer, gradients, _activations(run, micro))


def _held(tensor: Tensor, devices: int) -> int:
    """Entries of a tensor on each of `devices` along the expert axis."""
    return tensor.size if shard_axis(tensor, devices) is None else tensor.size // devices


def _activations(run: RunSpec, rows: int) -> int:
    """Of one device and `rows` rows: what every layer keeps (with remat its input, else all that its backward
    pass reads), what one layer and the logits work on, and one layer's gathered weights."""
    model, layout = run.model, run.parallel
    width = 2 if model.compute_dtype == "bfloat16" else 4  # bytes of an activation
    tokens, inside = rows * model.context, model.latent_width or model.width
    routed = model.top_k * (layout.capacity or 1) * (2 * inside + 4 * model.expert_width)
    shared = 4 * model.shared_experts * model.shared_width
    heads = 4 * (model.heads + model.stored_kv_heads) * model.head_dim
    layer = int(width * tokens * (8 * model.width + routed + shared + heads))
    scores = 4 * 3 * model.heads * model.context
    scores *= tokens if model.context <= QUERY_BLOCK else QUERY_BLOCK  # those of a block are computed again
    logits = 4 * 3 * min(tokens * model.vocab_size, LOGITS)
    gathered = 0
    if layout.expert > 1:
        stacks = [t for t in tensors(model).values() if t.axes[0] == "layer" and "expert" not in t.axes]
        gathered = width * sum(t.size for t in stacks) // model.layers
    if layout.remat == "layer":
        return width * tokens * model.width * model.layers + layer + scores + logits + gathered
    kept = scores if model.context <= QUERY_BLOCK else 0
    return model.layers * (layer + kept) + (scores - kept) + logits + gathered


def eval_points(run: RunSpec, name: str = "target") -> list[dict]:
    """One row an evaluation of `run`, in the columns of an evals table, without the loss.

    flops and tokens are spent so far (float: FLOPs pass int64); progress is the share of planned tokens.
    """
    flops_per_step = 3 * forward_flops(run.model, run.count_lm_head) * run.batch_tokens
    return [
        {
            "run": name,
            "step": step,
            "tokens": step * run.batch_tokens,
            "flops": float(step * flops_per_step),
            "params_active": active_parameters(run),
            "progress": step / run.steps,
            "peak_lr": run.optimizer.matrix_lr,
        }
        for step in run.eval_steps
    ]
