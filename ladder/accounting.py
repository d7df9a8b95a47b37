"""Parameters, FLOPs and bytes of a spec: exact integers, by group.

FLOPs count a multiply-add as 2, score every query against the whole context (causality is not halved) and
leave out embedding look-up, norms, ShortConv, softmax, top-k, the optimizer and recomputation. The formulas
are those of the public marin-community MoE ladder, whose published counts they reproduce (its latent experts,
windows and gates are features of a later version).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ladder.spec import ModelSpec, RunSpec
from ladder.tensors import tensors


@dataclass(frozen=True)
class Parameters:
    """Exact counts. `active`: what one token multiplies, without embeddings, gains and the output head;
    `lm_head`: the output head; `groups`: family of tensors -> count; they add up to `total`."""

    total: int
    active: int
    lm_head: int
    groups: Mapping[str, int]


def parameters(model: ModelSpec) -> Parameters:
    table = tensors(model)
    groups: dict[str, int] = {}
    for tensor in table.values():
        groups[tensor.family] = groups.get(tensor.family, 0) + tensor.size
    active = sum(tensor.active * tensor.size for tensor in table.values())
    return Parameters(sum(groups.values()), int(active), table["lm_head"].size, groups)


def active_parameters(run: RunSpec) -> int:
    """Active parameters on the scaling axis: with the output head where the run counts it."""
    counted = parameters(run.model)
    return counted.active + (counted.lm_head if run.count_lm_head else 0)


def shared_fraction(model: ModelSpec) -> float:
    """Share of the expert compute of a token that the shared experts do."""
    shared = model.shared_experts * model.shared_width
    return shared / (shared + model.top_k * model.expert_width)


def forward_flops(model: ModelSpec, lm_head: bool = False) -> int:
    """FLOPs of one token's forward pass."""
    d, H, hd = model.width, model.heads, model.head_dim
    experts = 6 * d * (model.top_k * model.expert_width + model.shared_experts * model.shared_width)
    dense = experts + 2 * d * model.experts + 2 * d * H * hd  # experts, router, attention output
    attention = 2 * d * (H + 2 * model.kv_heads) * hd + model.context * H * (4 * hd + 3)
    return model.layers * (dense + attention) + (2 * d * model.vocab_size if lm_head else 0)


def train_flops(run: RunSpec, lm_head: bool = False) -> int:
    """FLOPs of the whole run, forward and backward (3 x forward)."""
    return 3 * forward_flops(run.model, lm_head) * run.tokens


def scaling_flops(run: RunSpec) -> int:
    """Training FLOPs on the scaling axis: with the output head where the run counts it."""
    return train_flops(run, run.count_lm_head)


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
