"""From documents to a clean split: duplicates out, near-duplicates out, nothing held out that was seen.

All of it works on bytes (ASCII lower case, ASCII digits) and on hashes of content, so the result depends
neither on the order of the input nor on the version of Python.
"""

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np

WINDOW = 32  # bytes; shorter agreements are ordinary phrases
SAMPLE = 8  # one window in 8 is looked at, chosen by its hash, so equal texts choose equal windows
_BATCH = 1 << 22  # bytes hashed at a time
_TO_ZERO = bytes.maketrans(b"0123456789", b"0" * 10)


def clean(
    documents: Iterable[tuple[str, str]], held_out: float, train_bytes: int, held_out_bytes: int
) -> tuple[list[str], list[str]]:
    """(train, held out) of (group, text) pairs, each ordered by content hash and cut to a size in bytes.

    - Documents that agree up to case and digits are kept once; one with over half of its windows in
      earlier documents is dropped.
    - The split is by group: a share `held_out` of the groups, chosen by hash, goes to evaluation.
    - A held-out document with over a fifth of its windows in the training text is dropped.
    """
    groups: dict[str, str] = {}
    for group, text in documents:
        groups[text] = min(group, groups.get(text, group))
    ordered = sorted(groups, key=_sha)
    folded = [fold(text) for text in ordered]
    seen: set[int] = set()
    exact: set[bytes] = set()
    sides: dict[bool, list[str]] = {True: [], False: []}
    for text, plain, windows in zip(ordered, folded, window_hashes(folded), strict=True):
        if plain in exact or share_seen(windows, seen) > 0.5:
            continue
        exact.add(plain)
        seen.update(windows)
        sides[unit_hash(groups[text]) < held_out].append(text)

    train = list(_up_to(sides[False], train_bytes))
    overlap = shares_found(map(fold, sides[True]), map(fold, train))
    kept = [text for text, share in zip(sides[True], overlap, strict=True) if share <= 0.2]
    return train, list(_up_to(kept, held_out_bytes))


def fold(text: str) -> bytes:
    """What counts as the same text: ASCII lower case, every digit a 0."""
    return text.encode().lower().translate(_TO_ZERO)


def share_seen(windows: set[int], seen: set[int]) -> float:
    return len(windows & seen) / len(windows) if windows else 0.0


def unit_hash(text: str) -> float:
    """A number in [0, 1) that depends on the text alone."""
    return int.from_bytes(_sha(text)[:6]) / 2**48


def window_hashes(documents: Iterable[bytes]) -> Iterator[set[int]]:
    """For each document the hashes of its sampled windows of 32 bytes; none for a shorter document."""
    for hashes, starts, ends in _hashed(documents):
        chosen = np.flatnonzero(hashes % np.uint64(SAMPLE) == 0)
        values = hashes[chosen].tolist()
        for first, last in zip(np.searchsorted(chosen, starts), np.searchsorted(chosen, ends), strict=True):
            yield set(values[first:last])


def shares_found(documents: Iterable[bytes], others: Iterable[bytes]) -> list[float]:
    """For each document the share of all its windows that stand anywhere in `others`."""
    windows = [
        hashes[a:b] for hashes, starts, ends in _hashed(documents) for a, b in zip(starts, ends, strict=True)
    ]
    every = np.unique(np.concatenate([np.zeros(0, np.uint64), *windows]))
    found = np.zeros(len(every), dtype=bool)
    maybe = np.zeros(1 << 22, dtype=bool)  # by the last 22 bits: few of the others pass, which saves sorting
    maybe[every % np.uint64(len(maybe))] = True
    for hashes, starts, ends in _hashed(others):
        own = np.arange(len(hashes)) < np.repeat(ends, np.diff(starts, append=len(hashes)))
        found |= np.isin(every, hashes[own & maybe[hashes % np.uint64(len(maybe))]])
    return [float(found[np.searchsorted(every, each)].mean()) if len(each) else 0.0 for each in windows]


def _hashed(documents: Iterable[bytes]) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Batches of documents: a hash at each position of the joined text, uint64, and for each document the
    positions [start, end) at which a window of its own begins."""
    for batch in _batches(documents):
        joined = np.frombuffer(b"".join(batch) + bytes(WINDOW), dtype=np.uint8).astype(np.uint64)
        hashes, base, width = joined, 0x9E3779B97F4A7C15, 1
        while width < WINDOW:  # a window of 2w bytes is two windows of w: polynomial hashing modulo 2^64
            hashes = hashes[:-width] * np.uint64(base) + hashes[width:]
            base, width = base * base % 2**64, 2 * width
        hashes ^= hashes >> np.uint64(29)
        hashes *= np.uint64(0xBF58476D1CE4E5B9)
        hashes ^= hashes >> np.uint64(32)
        lengths = np.array([len(document) for document in batch], dtype=np.int64)
        starts = np.cumsum(lengths) - lengths
        yield hashes, starts, starts + np.maximum(lengths - WINDOW + 1, 0)


def _batches(documents: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document)
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _sha(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _up_to(texts: list[str], size: int) -> Iterator[str]:
    for text in texts:
        size -= len(text.encode())
        if size < 0:
            return
        yield text
