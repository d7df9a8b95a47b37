"""Token batches as a pure function of (seed, step): any step at once, on any host, without a state to save.

A row is a window of `context` tokens of one domain's stream. Which domain follows from the phase weights
alone; which window from a seeded permutation of the domain's windows, a new one each epoch, so no window
comes back before all have been seen. Letters: R rows of a phase, D domains, n windows of a domain.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ladder.corpus import Corpus, CorpusError, check_declared
from ladder.schedule import phase_weights
from ladder.spec import RunSpec

MAX_EPOCHS = 4  # repeated text is worth nearly as much as new text up to here (Muennighoff et al. 2023)


@dataclass(frozen=True)
class EvalRows:
    """Held-out rows of one domain. A model predicts tokens[:, 1:], which stand for `bytes` bytes of text."""

    tokens: np.ndarray  # int32[n, context]
    bytes: int


@dataclass(frozen=True)
class _Stretch:
    """A phase in whole steps: `rows` rows from row `start` of the run on, shared out exactly by `quotas`."""

    start: int
    rows: int
    quotas: np.ndarray  # int64[D], adds up to rows
    before: np.ndarray  # int64[D], rows of each domain in earlier phases


class Batches:
    """The training batches of a run. Raises CorpusError when the corpus is another one or too small."""

    def __init__(self, corpus: Corpus, run: RunSpec):
        check_declared(corpus, run.data, run.model.vocab_size)
        self.corpus, self.run = corpus, run
        self._streams = [corpus.train(domain) for domain in corpus.domains]
        self._sizes = [len(stream) // run.model.context for stream in self._streams]
        for domain, stream, windows in zip(corpus.domains, self._streams, self._sizes, strict=True):
            if not windows:
                raise CorpusError(_too_small(domain, "training", len(stream), run))
        self._stretches = tuple(_stretches(corpus.domains, run))

    def batch(self, step: int) -> np.ndarray:
        """int32[rows, context]: the tokens of update `step`, 0 <= step < run.steps."""
        context = self.run.model.context
        domains, windows = self.windows(step)
        out = np.empty((len(domains), context), dtype=np.int32)
        for row, (domain, window) in enumerate(zip(domains.tolist(), windows.tolist(), strict=True)):
            out[row] = self._streams[domain][window * context : (window + 1) * context]
        return out

    def windows(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """(domain, window) of each row of a step: int64[rows] each, domains as places in corpus.domains."""
        if not 0 <= step < self.run.steps:
            raise ValueError(f"step={step} is outside the run's 0..{self.run.steps - 1}")
        first = step * self.run.rows
        stretch = [each for each in self._stretches if each.start <= first][-1]
        start = first - stretch.start
        domains, count = _interleave(stretch.quotas, start, start + self.run.rows)
        count += stretch.before[domains]
        windows = np.empty_like(count)
        epochs = count // np.array(self._sizes)[domains]
        for d, epoch in sorted(set(zip(domains.tolist(), epochs.tolist(), strict=True))):
            mine = (domains == d) & (epochs == epoch)
            key = f"{self.run.seed}/{self.corpus.domains[d]}/{epoch}"
            windows[mine] = permuted(count[mine] % self._sizes[d], self._sizes[d], key)
        return domains, windows

    @cached_property
    def epochs(self) -> dict[str, float]:
        """How often the whole run goes through each domain's training text."""
        last = self._stretches[-1]
        drawn = last.before + last.quotas
        return {d: float(k / n) for d, k, n in zip(self.corpus.domains, drawn, self._sizes, strict=True)}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user should know before the run starts."""
        return tuple(
            f"domain {domain!r} is repeated {epochs:.1f} times (over {MAX_EPOCHS}): repeats teach less; "
            "give more text or a smaller weight"
            for domain, epochs in self.epochs.items()
            if epochs > MAX_EPOCHS
        )


def eval_rows(corpus: Corpus, run: RunSpec) -> dict[str, EvalRows]:
    """Held-out rows of each domain, at most `evaluation.rows`, spread evenly over its windows.

    They depend on the corpus, the context and the number of rows alone: the same in every run of a ladder.
    """
    check_declared(corpus, run.data, run.model.vocab_size)
    found = {}
    for domain in corpus.domains:
        stream, context = corpus.held_out(domain), run.model.context
        windows = len(stream) // context
        if not windows:
            raise CorpusError(_too_small(domain, "held-out", len(stream), run))
        rows = min(windows, run.evaluation.rows)
        chosen = np.arange(rows) * windows // rows
        tokens = stream[: windows * context].reshape(windows, context)[chosen].astype(np.int32)
        found[domain] = EvalRows(tokens, int(corpus.token_bytes[tokens[:, 1:]].sum(dtype=np.int64)))
    return found


def _stretches(domains: tuple[str, ...], run: RunSpec) -> Iterator[_Stretch]:
    starts = [
        next(s for s in range(int(p.start * run.steps), run.steps + 1) if s / run.steps >= p.start)
        for p in run.data.phases
    ]
    before = np.zeros(len(domains), dtype=np.int64)
    for first, last in zip(starts, [*starts[1:], run.steps], strict=True):
        if first == last:
            continue  # a phase shorter than a step
        weights = phase_weights(run.data, first / run.steps)
        rows = (last - first) * run.rows
        quotas = _shared_out(rows, np.array([weights.get(domain, 0.0) for domain in domains]))
        yield _Stretch(first * run.rows, rows, quotas, before)
        before = before + quotas


def _shared_out(rows: int, weights: np.ndarray) -> np.ndarray:
    """Whole numbers that add up to `rows`, each within one of rows x weight (largest remainders)."""
    exact = rows * weights
    quotas = np.floor(exact).astype(np.int64)
    order = np.argsort(-(exact - quotas), kind="stable")
    quotas[order[: rows - int(quotas.sum())]] += 1
    return quotas


def _interleave(quotas: np.ndarray, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """(domain, how many of that domain came before) of places start..stop of an even mixture: int64 each.

    The k-th of q rows stands at time (k + 1/2) R / q; all rows in order of time (then of domain) are the
    mixture. Before time t there are within 1/2 of t q / R of each domain, so within D / 2 of t in all:
    the rows asked for have times between start - D and stop + D, and no earlier ones need be listed.
    """
    total, slack = int(quotas.sum()), len(quotas) + 1
    times, owners, counts = [], [], []
    skipped = 0
    for d, quota in enumerate(quotas.tolist()):
        if not quota:
            continue
        first = min(quota, max(0, math.floor((start - slack) * quota / total)))
        last = min(quota, math.ceil((stop + slack) * quota / total) + 1)
        k = np.arange(first, last, dtype=np.int64)
        times.append((2 * k + 1) * (total / (2 * quota)))
        owners.append(np.full(len(k), d, dtype=np.int64))
        counts.append(k)
        skipped += first
    order = np.argsort(np.concatenate(times), kind="stable")[start - skipped : stop - skipped]
    return np.concatenate(owners)[order], np.concatenate(counts)[order]


def permuted(index: np.ndarray, n: int, key: str) -> np.ndarray:
    """Where a permutation of 0..n-1 sends `index`, int64 of its shape; `key` names the permutation.

    A Feistel network on pairs (left < a, right < b) with a b >= n: each round adds to one half a hash of the
    other, which is a permutation of the pairs whatever the hash. A pair past n is sent on until it falls
    inside (cycle walking; Black and Rogaway 2002), so what is left is a permutation of 0..n-1.
    """
    a = math.isqrt(n - 1) + 1
    b = -(-n // a)
    keys = np.frombuffer(hashlib.blake2b(key.encode(), digest_size=64).digest(), dtype="<u8")
    out = np.array(index, dtype=np.uint64)
    outside = np.ones(out.shape, dtype=bool)
    while outside.any():
        left, right = out[outside] // np.uint64(b), out[outside] % np.uint64(b)
        for key_left, key_right in keys.reshape(4, 2):
            left = (left + _mixed(right ^ key_left) % np.uint64(a)) % np.uint64(a)
            right = (right + _mixed(left ^ key_right) % np.uint64(b)) % np.uint64(b)
        out[outside] = left * np.uint64(b) + right
        outside = out >= np.uint64(n)
    return out.astype(np.int64)


def _mixed(x: np.ndarray) -> np.ndarray:
    """The finalizer of splitmix64 (Steele, Lea and Flood 2014), elementwise on uint64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _too_small(domain: str, which: str, tokens: int, run: RunSpec) -> str:
    return (
        f"domain {domain!r} has {tokens:,} {which} tokens, fewer than one row of model.context="
        f"{run.model.context}: give more text"
        + (", a larger held_out" if which == "held-out" else "")
        + " or a smaller context"
    )
