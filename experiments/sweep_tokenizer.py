"""Which vocabulary suits the laptop recipe? Bytes and BPE of three sizes, at the same number of tokens.

A larger vocabulary reads more text in as many tokens, and spends more of a small model on its output head:
FLOPs, which count the head, stand beside each loss.
"""

from ladder import Ladder, Rung, RunSpec
from ladder.recipe import LAPTOP_DATA, laptop


def with_vocabulary(size: int) -> RunSpec:
    run = laptop(32)
    data = LAPTOP_DATA.replace(tokenizer="bytes" if size == 257 else "bpe")
    return run.replace(model=run.model.replace(vocab_size=size), data=data)


LADDER = Ladder(
    name="sweep-tokenizer",
    rungs=tuple(Rung(name=f"d32-{size}", run=with_vocabulary(size)) for size in (257, 512, 1024, 2048)),
)
