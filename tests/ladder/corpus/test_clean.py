"""Duplicates out, near-duplicates out, nothing held out that was seen."""

import random

import pytest

from ladder.corpus.clean import SAMPLE, WINDOW, clean, fold, shares_found, window_hashes

EVERYTHING = 10**9


def prose(seed: int, words: int = 120) -> str:
    """Random words: two seeds share no window of 32 bytes."""
    draw = random.Random(seed)
    return " ".join("".join(draw.choices("abcdefghij", k=draw.randint(3, 9))) for _ in range(words))


def test_documents_that_agree_up_to_case_and_digits_are_kept_once():
    documents = [("a", "Error 404 in part 7"), ("b", "error 500 IN part 9"), ("c", "another message")]
    train, held_out = clean(documents, 0.0, EVERYTHING, EVERYTHING)
    assert len(train) == 2 and held_out == []


def test_a_document_mostly_seen_before_is_dropped_and_one_mostly_new_is_kept():
    shared, little = prose(1), prose(2, words=40)
    nearly = [shared + " " + prose(seed, words=40) for seed in (3, 4)]
    related = [little + " " + prose(seed) for seed in (5, 6)]
    documents = [(str(k), text) for k, text in enumerate(nearly + related)]
    train, _ = clean(documents, 0.0, EVERYTHING, EVERYTHING)
    assert len(set(train) & set(nearly)) == 1 and set(related) <= set(train)


def test_a_group_is_held_out_as_a_whole():
    documents = [(f"group {k // 5}", prose(k, words=20)) for k in range(500)]
    train, held_out = clean(documents, 0.2, EVERYTHING, EVERYTHING)
    assert len(train) + len(held_out) == 500 and 50 < len(held_out) < 150
    group = {text: name for name, text in documents}
    assert not {group[text] for text in train} & {group[text] for text in held_out}


def test_a_held_out_document_with_a_third_of_it_in_the_training_text_is_dropped():
    documents = [(f"g{k}", prose(k)) for k in range(200)]
    _, held_out = clean(documents, 0.1, EVERYTHING, EVERYTHING)
    victim = held_out[0]
    group = next(name for name, text in documents if text == victim)
    donor = next(text for text in clean(documents, 0.1, EVERYTHING, EVERYTHING)[0])
    spoiled = victim + " " + donor[: len(victim) // 2]
    again = [(name, spoiled if name == group else text) for name, text in documents]
    assert spoiled not in clean(again, 0.1, EVERYTHING, EVERYTHING)[1]


def test_the_order_of_the_input_does_not_matter():
    documents = [(f"g{k}", prose(k % 60, words=30)) for k in range(100)]
    shuffled = random.Random(0).sample(documents, len(documents))
    assert clean(documents, 0.1, EVERYTHING, EVERYTHING) == clean(shuffled, 0.1, EVERYTHING, EVERYTHING)


def test_both_sides_are_cut_to_their_size_in_bytes():
    documents = [(f"g{k}", prose(k)) for k in range(100)]
    train, held_out = clean(documents, 0.3, 20_000, 5_000)
    assert 19_000 < sum(map(len, train)) <= 20_000 and 4_000 < sum(map(len, held_out)) <= 5_000


@pytest.mark.parametrize("length", [0, WINDOW - 1, WINDOW, 5_000])
def test_windows_are_those_of_the_document_alone(length):
    """Hashing many documents at a time gives each what it has by itself, and only equal windows agree."""
    document = fold(prose(5, words=2000))[:length]
    alone = next(window_hashes([document]))
    crowd = list(window_hashes([b"x" * 50, document, fold(prose(6))]))
    assert crowd[1] == alone
    places = max(0, length - WINDOW + 1)
    assert len(alone) <= places and (places < 1000 or 0.8 < len(alone) * SAMPLE / places < 1.2)
    assert not alone & crowd[2]


def test_the_share_of_a_document_found_elsewhere_is_exact():
    others = [fold(prose(k, words=10 + k)) for k in range(40)] + [b"", b"short"]
    mixed = [others[7][20:90] + fold(prose(50)), others[30], b"tiny", fold(prose(51)), others[8] + others[9]]
    windows = {text[k : k + WINDOW] for text in others for k in range(len(text) - WINDOW + 1)}
    for text, share in zip(mixed, shares_found(mixed, others), strict=True):
        places = [text[k : k + WINDOW] in windows for k in range(len(text) - WINDOW + 1)]
        assert share == (pytest.approx(sum(places) / len(places)) if places else 0.0)
    assert shares_found(mixed, []) == [0.0] * 5 and shares_found([], others) == []
