"""Text to tokens and back: bytes, or byte-level BPE. Every document begins with the mark BOS, the last id.

How many bytes each id stands for is known, so that bits per byte is exact: the mark counts 0, and the
other tokens of a document add up to its length in UTF-8.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ladder.corpus.cache import CorpusError
from ladder.corpus.sources import content_hash

SAMPLE_BYTES = 10_000_000  # of training text that a vocabulary is learned from


@dataclass(frozen=True)
class Tokenizer:
    """`bpe` is a tokenizers.Tokenizer, or None: then a token is a byte."""

    vocab_size: int
    bpe: Any = None

    @property
    def bos(self) -> int:
        return self.vocab_size - 1

    @property
    def dtype(self) -> np.dtype:
        """Little-endian type of the token files."""
        return np.dtype("<u2" if self.vocab_size <= 1 << 16 else "<u4")

    @property
    def token_bytes(self) -> np.ndarray:
        """uint16[vocab_size]: bytes of text that a token stands for."""
        counts = np.zeros(self.vocab_size, dtype=np.uint16)
        if self.bpe is None:
            counts[:256] = 1
        else:
            for token, index in self.bpe.get_vocab().items():
                counts[index] = len(token)  # the byte-level alphabet writes each byte as one character
        return counts

    def encode(self, documents: list[str]) -> np.ndarray:
        """Token ids of whole documents in order, each begun with BOS."""
        if self.bpe is None:
            parts = [np.frombuffer(text.encode(), dtype=np.uint8) for text in documents]
        else:
            found = self.bpe.encode_batch_fast(documents, add_special_tokens=False)
            parts = [np.array(each.ids, dtype=self.dtype) for each in found]
        mark = np.array([self.bos], dtype=self.dtype)
        return np.concatenate([piece for part in parts for piece in (mark, part)], dtype=self.dtype)

    def decode(self, tokens: np.ndarray) -> str:
        """The text of tokens; marks vanish, and UTF-8 that is cut reads as U+FFFD."""
        ids = [int(token) for token in tokens if token != self.bos]
        return bytes(ids).decode(errors="replace") if self.bpe is None else self.bpe.decode(ids)

    def to_json(self) -> str:
        return "null" if self.bpe is None else self.bpe.to_str()

    @classmethod
    def from_json(cls, text: str, vocab_size: int) -> "Tokenizer":
        if text == "null":
            return cls(vocab_size)
        import tokenizers

        return cls(vocab_size, tokenizers.Tokenizer.from_str(text))


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE: 256 bytes, merges by frequency, BOS last. The same texts give the same vocabulary.

    Raises CorpusError when the text yields fewer merges than the vocabulary has room for.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1, initial_alphabet=alphabet, show_progress=False, special_tokens=[]
    )
    bpe.train_from_iterator(texts, trainer)
    if bpe.get_vocab_size() < vocab_size - 1:
        raise CorpusError(
            f"the training text yields a BPE vocabulary of {bpe.get_vocab_size() + 1}, "
            f"model.vocab_size={vocab_size}: lower it or give more text"
        )
    return Tokenizer(vocab_size, bpe)


def sample(documents: Iterable[str], size: int) -> list[str]:
    """Documents of about `size` bytes in all: those with the smallest hashes, whatever the order given."""
    kept: list[tuple[int, str]] = []
    total = 0
    for text in documents:
        heapq.heappush(kept, (-int.from_bytes(content_hash(text)), text))
        total += len(text.encode())
        while total > size and len(kept) > 1:
            total -= len(heapq.heappop(kept)[1].encode())
    return [text for _, text in sorted(kept)]
