"""The laptop recipe: small models of real text that train on processor cores in minutes.

"Trial" is our own measurement on two cores, the ladder d 32 / 40 / 48 / 56 -> 72 of real text whose table
tests/ladder/test_recipe.py repeats.
"""

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

LAPTOP_HEADS = 4
LAPTOP_MICRO_ROWS = (
    4  # trial: 42k instead of 22k tokens/s at d 40 on one core; a small working set stays in cache
)

# Weights are shares of tokens. The corpus has 4.7M, 4.9M and 1.1M tokens of docs, code and intl: at d 72
# (10.5M tokens) their text is seen .97, .92 and 1.2 times. The last fifth of the tokens turns towards what
# is rare, as the mid-training of large runs does.
LAPTOP_DATA = DataSpec(
    sources=tuple(Source(domain=name, uri=f"builtin:{name}") for name in ("docs", "code", "intl")),
    phases=(
        Phase(start=0.0, weights={"docs": 0.45, "code": 0.45, "intl": 0.10}),
        Phase(start=0.8, weights={"docs": 0.375, "code": 0.375, "intl": 0.25}),
    ),
    tokenizer="bpe",
)


def laptop(width: int, seed: int = 0, *, tokens_per_active: float = 50, steps: int = 2000) -> RunSpec:
    """Two layers of experts on the built-in corpus, on one processor core for minutes.

    width: a multiple of 8. tokens_per_active: tokens for each active parameter, output head counted (50 is
    past the fast first fall of the loss: trial). steps: aimed at; the batch takes whole micro-batches, so
    the real number differs by up to half a micro-batch's share.
    """
    if not isinstance(width, int) or width <= 0 or width % (2 * LAPTOP_HEADS):
        raise SpecError(
            f"width={width!r}: the laptop recipe has 4 heads of even size, use a positive multiple of 8"
        )
    for name, value in {"tokens_per_active": tokens_per_active, "steps": steps}.items():
        if value <= 0:
            raise SpecError(f"{name}={value}: use a positive number")
    model = ModelSpec(
        vocab_size=1024,  # trial: BPE of this size trains and encodes in 10 s
        context=128,  # trial: 256 was worse at d 40-48
        layers=2,  # trial: a third layer was worse at d 40-48
        width=width,
        heads=LAPTOP_HEADS,
        head_dim=width // LAPTOP_HEADS,
        kv_heads=LAPTOP_HEADS,
        experts=8,
        top_k=2,
        expert_width=width,
        shared_experts=1,
        shared_width=width,
        conv_taps=4,  # ShortConv, where the trial mixed in the previous token
    )
    counted = parameters(model)
    tokens = tokens_per_active * (counted.active + counted.lm_head)
    rows = max(1, round(tokens / (steps * model.context * LAPTOP_MICRO_ROWS))) * LAPTOP_MICRO_ROWS
    batch_tokens = rows * model.context
    # Learning rates: .010 at d 64, constant for what does not grow with width, 1 / width for matrices that
    # do (muP's rule for Adam: Yang et al. 2022, arXiv:2203.03466, table 3).
    return RunSpec(
        model=model,
        optimizer=OptimizerSpec(
            lr=0.010, matrix_lr=0.010 * 64 / width, beta1=0.9, beta2=0.95, weight_decay=0.1, clip_norm=1.0
        ),
        schedule=ScheduleSpec(warmup=0.1, final=0.0),
        data=LAPTOP_DATA,
        # 128 rows of each domain, 20 times a run: 11 % of the training FLOPs at d 32, 3 % at d 72
        evaluation=EvalSpec(every=0.05, rows=128, loss_per="byte", unit="other"),
        parallel=ParallelSpec(micro_batch_rows=LAPTOP_MICRO_ROWS),
        steps=max(1, round(tokens / batch_tokens)),
        batch_tokens=batch_tokens,
        seed=seed,
        count_lm_head=True,  # a third to a half of the active parameters at these widths
    )
