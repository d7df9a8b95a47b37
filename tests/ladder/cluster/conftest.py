"""A ladder that trains in seconds on text made here: no network, no Ray."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ladder import (
    DataSpec,
    EvalSpec,
    Ladder,
    ModelSpec,
    OptimizerSpec,
    Phase,
    Rung,
    RunSpec,
    ScheduleSpec,
    Source,
)
from ladder.accounting import parameters

WORDS = "rung loss expert token router batch step law band fit forecast target monitor".split()  # noqa: SIM905


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 kB of made-up sentences, a document a line of JSON."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("text") / "words.jsonl"
    lines = [f'{{"text": "{" ".join(rng.choice(WORDS, 40))}"}}' for _ in range(250)]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LADDER_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


def micro_run(text: Path, width: int) -> RunSpec:
    """One token for each active parameter, in steps of 128 tokens."""
    model = ModelSpec(
        vocab_size=257,
        context=32,
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
    return RunSpec(
        model=model,
        optimizer=OptimizerSpec(lr=0.01, matrix_lr=0.01),
        schedule=ScheduleSpec(warmup=0.1),
        data=DataSpec(
            sources=(Source(domain="words", uri=str(text)),), phases=(Phase(start=0, weights={"words": 1}),)
        ),
        evaluation=EvalSpec(every=0.25, rows=8, loss_per="byte", unit="other"),
        steps=round((counted.active + counted.lm_head) / 128),
        batch_tokens=128,
        count_lm_head=True,
    )


@pytest.fixture(scope="session")
def micro(text: Path) -> Ladder:
    """Two rungs and a target: the least that a law is fitted to."""
    return Ladder(
        name="micro",
        rungs=tuple(Rung(name=f"w{width}", run=micro_run(text, width)) for width in (8, 16)),
        target=Rung(name="w24", run=micro_run(text, 24)),
    )
