"""A tiny, valid declaration that the tests of this folder change in one place each."""

from pathlib import Path

from ladder import DataSpec, Ladder, ModelSpec, OptimizerSpec, Phase, Rung, RunSpec, Source

ROOT = Path(__file__).parents[2]  # of the checkout
MODEL = ModelSpec(
    vocab_size=257,
    context=8,
    layers=2,
    width=8,
    heads=2,
    head_dim=4,
    kv_heads=1,
    experts=4,
    top_k=2,
    expert_width=6,
    shared_experts=1,
    shared_width=10,
)
RUN = RunSpec(
    model=MODEL,
    optimizer=OptimizerSpec(lr=0.01, matrix_lr=0.02),
    data=DataSpec(
        sources=(Source(domain="text", uri="text.txt"), Source(domain="code", uri="code.jsonl")),
        phases=(
            Phase(start=0.0, weights={"text": 3.0, "code": 1.0}),
            Phase(start=0.8, weights={"code": 1.0}),
        ),
    ),
    steps=100,
    batch_tokens=32,
)
LADDER = Ladder(
    name="tiny",
    rungs=(Rung(name="d8", run=RUN, seeds=2), Rung(name="d8-long", run=RUN.replace(steps=200))),
    target=Rung(name="target", run=RUN.replace(steps=400)),
)


def trained(run, start, end, **more):
    """An attempt that went from update `start` to `end`; left open."""
    life = run.begin(run.spec, {})
    life.resumed(start)
    for step in range(start + 1, end + 1):
        life.row({"step": step, "tokens": 32 * step, "train_ce": 1 / step, **more})
    life.flush()
    return life
