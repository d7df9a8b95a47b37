"""Text to tokens and back, with an exact count of bytes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladder.corpus import CorpusError
from ladder.corpus.tokenize import Tokenizer, sample, train_bpe

LINES = [
    f"Zeile {k}: Größe {k * k % 97}, naïve café, 漢字 {k % 13}, def f{k % 5}(x): return x" for k in range(400)
]
BPE = train_bpe(LINES, 400)
TOKENIZERS = pytest.mark.parametrize("tokenizer", [Tokenizer(257), BPE], ids=["bytes", "bpe"])


@TOKENIZERS
@settings(max_examples=100, deadline=None, derandomize=True)
@given(text=st.text())
def test_text_comes_back_and_its_bytes_are_counted(tokenizer, text):
    tokens = tokenizer.encode([text])
    assert tokenizer.decode(tokens) == text
    assert tokens[0] == tokenizer.bos == tokenizer.vocab_size - 1 and (tokens[1:] != tokenizer.bos).all()
    assert tokenizer.token_bytes[tokens].sum() == len(text.encode())


@TOKENIZERS
def test_documents_are_encoded_one_by_one(tokenizer):
    apart = [tokenizer.encode([text]) for text in LINES[:20]]
    together = tokenizer.encode(LINES[:20])
    np.testing.assert_array_equal(together, np.concatenate(apart))
    assert together.dtype == np.uint16 and (together == tokenizer.bos).sum() == 20


@TOKENIZERS
def test_a_tokenizer_survives_its_file(tokenizer):
    again = Tokenizer.from_json(tokenizer.to_json(), tokenizer.vocab_size)
    np.testing.assert_array_equal(again.encode(LINES), tokenizer.encode(LINES))
    np.testing.assert_array_equal(again.token_bytes, tokenizer.token_bytes)


def test_bpe_needs_fewer_tokens_than_bytes_and_fills_its_vocabulary():
    tokens = BPE.encode(LINES)
    assert len(tokens) < 0.6 * sum(len(text.encode()) for text in LINES)
    assert (BPE.token_bytes[:-1] > 0).all() and BPE.token_bytes[-1] == 0


def test_the_same_text_gives_the_same_vocabulary():
    assert train_bpe(LINES, 400).to_json() == BPE.to_json()


def test_a_cut_in_the_middle_of_a_character_shows():
    tokens = Tokenizer(257).encode(["é"])
    assert Tokenizer(257).decode(tokens[:2]) == "\N{REPLACEMENT CHARACTER}"


def test_a_vocabulary_larger_than_the_text_can_fill_is_refused():
    with pytest.raises(CorpusError, match="vocab_size=5000"):
        train_bpe(["too little text"], 5000)


def test_large_vocabularies_take_four_bytes_a_token():
    assert Tokenizer(1 << 16).dtype.itemsize == 2 and Tokenizer((1 << 16) + 1).dtype.itemsize == 4


def test_a_sample_is_the_same_whatever_the_order():
    chosen = sample(LINES, 5000)
    assert chosen == sample(reversed(LINES), 5000)
    assert chosen != sorted(chosen) and chosen != sorted(chosen, reverse=True)
    numbers = [int(text.split()[1].rstrip(":")) for text in chosen]
    assert min(numbers) < 50 and max(numbers) > 350  # from all of the text, not its beginning or end
    assert 4800 < sum(len(text.encode()) for text in chosen) <= 5000
    assert len(sample(LINES[:1], 1)) == 1
