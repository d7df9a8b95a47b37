"""The ladder of the fault injection: four runs of some seconds each, on text made here."""

import os
from pathlib import Path

import numpy as np

from ladder import (
    DataSpec,
    EvalSpec,
    Ladder,
    ModelSpec,
    OptimizerSpec,
    Phase,
    Resources,
    Rung,
    RunSpec,
    ScheduleSpec,
    Source,
)
from ladder.accounting import parameters

TEXT = "FAULTS_TEXT"  # the variable that names the text, as `ladder run` passes no arguments to a file
CHECKPOINT_S = 1.0
BATCH_ROWS = {
    8: 2,
    16: 5,
    24: 8,
    32: 12,
}  # grows as the active parameters do: about as many steps in each run
TOKENS_PER_ACTIVE = 300


def make_text(path: Path) -> None:
    """1 MB of made-up sentences, a document a line of JSON: each word has eight that may follow it."""
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = ["".join(rng.choice(letters, rng.integers(2, 9))) for _ in range(400)]
    follows = rng.integers(len(words), size=(len(words), 8))
    lines = []
    for _ in range(4000):
        at, said = rng.integers(len(words)), []
        for turn in rng.integers(8, size=40):
            said.append(words[at])
            at = follows[at, turn]
        lines.append(f'{{"text": "{" ".join(said)}"}}')
    path.write_text("\n".join(lines))


def run(text: Path, width: int) -> RunSpec:
    model = ModelSpec(
        vocab_size=257,
        context=64,
        layers=1,
        width=width,
        heads=2,
        head_dim=width // 2,
        kv_heads=1,
        experts=4,
        top_k=1,
        expert_width=width,
    )
    counted = parameters(model)
    batch_tokens = BATCH_ROWS[width] * model.context
    return RunSpec(
        model=model,
        optimizer=OptimizerSpec(lr=0.01, matrix_lr=0.01),
        schedule=ScheduleSpec(warmup=0.1),
        data=DataSpec(
            sources=(Source(domain="words", uri=str(text)),), phases=(Phase(start=0, weights={"words": 1}),)
        ),
        evaluation=EvalSpec(every=0.05, rows=32, loss_per="byte", unit="other"),
        steps=round(TOKENS_PER_ACTIVE * (counted.active + counted.lm_head) / batch_tokens),
        batch_tokens=batch_tokens,
        count_lm_head=True,
    )


def ladder(text: Path) -> Ladder:
    """Two rungs side by side on two processors, a third, and the target."""
    often = Resources(checkpoint_s=CHECKPOINT_S)
    *rungs, target = (Rung(name=f"w{width}", run=run(text, width), resources=often) for width in BATCH_ROWS)
    return Ladder(name="faults", rungs=tuple(rungs), target=target)


if TEXT in os.environ:
    LADDER = ladder(Path(os.environ[TEXT]))
