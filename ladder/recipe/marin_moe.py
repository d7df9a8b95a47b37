"""The recipe of the public marin-community mixture-of-experts ladder (2026), d 768 to 2048 -> 6144.

Rules and figures are read from that project's public sources and reports; tests repeat its published counts.
"""

import math

from ladder.accounting import parameters
from ladder.spec import (
    DataSpec,
    EvalSpec,
    ModelSpec,
    OptimizerSpec,
    ParallelSpec,
    Phase,
    RunSpec,
    ScheduleSpec,
    Source,
)
from ladder.values import SpecError

CONTEXT = 4096
TOKENS_PER_ACTIVE = 791
DEVICE_ROWS = 16  # of a batch; 1024 rows are a replica of 64 devices
EXPERT_DEVICES = 64  # of one NVLink domain of 72
MICRO_ROWS = 4

# width -> (layers, rows of a batch): the published rungs. The rows follow the racks that a rung was given
# (1, 2, 6 and 11 of 1024 rows), not a rule in width; neither do the layers.
PUBLISHED = {
    384: (4, 128),
    512: (6, 1024),
    768: (8, 1024),
    1024: (12, 2048),
    1536: (16, 6144),
    2048: (22, 11264),
    6144: (48, 11264),
}

# A stand-in for the project's mixture and tokenizer: open web text, code and papers, in the last fifth of the
# tokens (mid-training) more of what is rare, and a tokenizer trained on it.
DATA = DataSpec(
    sources=(
        Source(domain="web", uri="hf:HuggingFaceFW/fineweb-edu:default:train"),
        Source(domain="code", uri="hf:bigcode/starcoderdata:default:train", text_field="content"),
        Source(domain="papers", uri="hf:EleutherAI/proof-pile-2:arxiv:train"),
        Source(domain="maths", uri="hf:HuggingFaceTB/finemath:finemath-4plus:train"),
    ),
    phases=(
        Phase(start=0.0, weights={"web": 0.75, "code": 0.17, "papers": 0.06, "maths": 0.02}),
        Phase(start=0.8, weights={"web": 0.45, "code": 0.25, "papers": 0.10, "maths": 0.20}),
    ),
    tokenizer="bpe",
    held_out=0.001,
)


def marin(
    width: int,
    seed: int = 0,
    *,
    layers: int | None = None,
    rows: int | None = None,
    context: int = CONTEXT,
    data: DataSpec = DATA,
) -> RunSpec:
    """A run of 791 tokens for each active parameter, output head not counted.

    width: a multiple of 128. layers, rows (of `CONTEXT` tokens, a batch): the published ones where None, and
    needed at other widths. context: of a phase with longer rows, which a run is forked into; the tokens of a
    batch stay, and so does all else.
    """
    if not isinstance(width, int) or width <= 0 or width % 128:
        raise SpecError(f"width={width!r}: this recipe's heads have 128 channels, use a positive multiple")
    if width not in PUBLISHED and (layers is None or rows is None):
        raise SpecError(
            f"width={width} is no published rung ({', '.join(map(str, PUBLISHED))}): give layers= and rows="
        )
    published = PUBLISHED.get(width, (0, 0))
    layers, rows = layers or published[0], rows or published[1]
    model, batch_tokens = architecture(width, layers, context), rows * CONTEXT
    steps = round(TOKENS_PER_ACTIVE * parameters(model).active / batch_tokens)
    return RunSpec(
        model=model,
        optimizer=optimizer(width, steps, batch_tokens),
        schedule=ScheduleSpec(warmup=0.01, final=0.05),
        data=data,
        evaluation=EvalSpec(every=0.02, rows=1024),
        parallel=layout(rows, batch_tokens // context),
        steps=steps,
        batch_tokens=batch_tokens,
        seed=seed,
    )


def architecture(width: int, layers: int, context: int = CONTEXT) -> ModelSpec:
    heads = width // 128
    return ModelSpec(
        vocab_size=128_256,
        context=context,
        layers=layers,
        width=width,
        heads=heads,
        head_dim=128,
        kv_heads=max(1, heads // 4),
        global_kv_heads=max(1, heads // 8),
        window=min(2048, context),
        global_every=4,
        rope_fraction=0.5,
        qk_mult=1.3,
        exclusive_attention=True,
        head_gate=True,
        isolate_documents=True,
        gated_norm_rank=128,
        conv_taps=4,
        experts=384,
        top_k=8,
        expert_width=width // 2,
        latent_width=width // 2,
        shared_experts=2,
        shared_width=width // 2,
        compute_dtype="bfloat16",
    )


def optimizer(width: int, steps: int, batch_tokens: int) -> OptimizerSpec:
    """MuonH with the project's heuristic; the constants are its fit to its own sweeps.

    Adam's rate falls with tokens and width and grows with the root of the batch; MuonH's is 13/3 of it. Half
    a batch's weight in the second moment stays for the same number of tokens.
    """
    lr = min(0.05, 0.087571 * (steps * batch_tokens) ** -0.3461 * width**-0.3448 * math.sqrt(batch_tokens))
    return OptimizerSpec(
        kind="muonh",
        lr=lr,
        matrix_lr=min(0.05, 13 / 3 * lr),
        momentum=0.95,
        beta1=0.9,
        beta2=min(max(0.999 ** (batch_tokens / 131_072), 0.95), 0.9999),
        eps=9.676e-18 * math.sqrt(steps),
        weight_decay=0.0,  # the full run decayed router and head gates by 0.02 from step 58,014 on: a fork
        clip_norm=None,
    )


def layout(rows: int, packed: int) -> ParallelSpec:
    """Sixteen rows of `CONTEXT` tokens a device, replicas of up to 64 devices that share the experts.

    packed: the number of rows that the same tokens make at the run's own context."""
    devices = max(1, rows // DEVICE_ROWS)
    expert = min(EXPERT_DEVICES, devices)
    each = packed // devices
    return ParallelSpec(
        data=devices // expert,
        expert=expert,
        micro_batch_rows=min(MICRO_ROWS, each) if each else None,
        capacity=1.15,
        remat="layer",
    )
