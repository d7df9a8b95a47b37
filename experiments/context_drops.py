"""Longer documents, more dropped tokens: `ladder run experiments/context_drops.py`.

The same tokens a batch in fewer, longer documents. What one device holds is then drawn from fewer tastes, and
a limit on what it may send meets more of the difference between them. Public observation of a 535B run:
about 7 % dropped at 4K context, 40 % at 65K.

Here at that run's geometry, without a model: 384 experts top-8 on 64 devices, 65,536 tokens a device. A
document prefers expert e by exp(sigma * normal); a token of it draws its 8 experts by those weights and the
router's bias. The bias is what would have balanced the batch *before*, so that it fits the documents of this
one only on average. Three rules at one capacity, each by the room it gives for an even share: `cell`, of each
(sender, expert); `sender`, of each pair of devices; `receiver`, one pool for all of a device's experts and
senders, which is what `ParallelSpec.capacity` does.
"""

import csv
import io
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

EXPERTS, TOP_K, DEVICES, TOKENS = 384, 8, 64, 65_536
CAPACITY, SIGMA, DRAWS = 1.15, 1.2, 6
CASES = ((4_096, 1), (16_384, 1), (65_536, 1), (65_536, 16))  # context, devices that share a sequence


def main(store: str, seed: int) -> None:
    rows = list(table(seed))
    folder = Path(store)
    folder.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    (folder / "drops.csv").write_text(text.getvalue())
    print(f"dropped, % of assignments, mean of {DRAWS} draws at capacity {CAPACITY}")
    print(f"{'context':>8} {'split over':>10} {'cell':>7} {'sender':>7} {'receiver':>8}")
    for row in rows:
        where = f"{row['context']:8,} {row['split']:10}"
        print(f"{where} {row['cell']:7.2%} {row['sender']:7.2%} {row['receiver']:8.3%}")
    figure(rows, folder / "drops.svg")
    print(f"table and figure: {folder / 'drops.csv'}, {folder / 'drops.svg'}")


def table(seed: int, draws: int = DRAWS) -> Iterator[dict[str, float]]:
    """The mean drop fractions of each case."""
    for context, split in CASES:
        rng = np.random.default_rng([seed, context, split])
        drops = [dropped(demand(context, split, rng)) for _ in range(draws)]
        yield {"context": context, "split": split} | {
            rule: float(np.mean([each[rule] for each in drops])) for rule in drops[0]
        }


def demand(context: int, split: int, rng: np.random.Generator) -> np.ndarray:
    """int[DEVICES, EXPERTS]: assignments of one batch. With `split` a group of that many neighbours deals
    out each of its sequences evenly."""
    documents = DEVICES * TOKENS // context
    taste = lambda: rng.normal(0, SIGMA, (documents, EXPERTS)).astype(np.float32)  # noqa: E731
    bias = balancing(taste())
    counts = rng.binomial(context, chosen(taste() + bias)).reshape(DEVICES, -1, EXPERTS).sum(axis=1)
    groups = counts.reshape(-1, split, EXPERTS).sum(axis=1)
    return np.repeat(groups // split, split, axis=0)


def chosen(logits: np.ndarray) -> np.ndarray:
    """Probability that a token of each document chooses each expert, top-k without replacement.

    In the exponential race that Gumbel top-k is, expert e has arrived by time t with 1 - exp(-t exp(logit));
    the time is where the expected arrivals are k (Newton's method on its logarithm).
    """
    logits = logits - logits.max(axis=1, keepdims=True)
    log_time = math.log(TOP_K) - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    for _ in range(6):
        rate = np.exp(logits + log_time)
        stay = np.exp(-rate)
        excess = (1 - stay).sum(axis=1, keepdims=True) - TOP_K
        log_time = log_time - np.clip(excess / (rate * stay).sum(axis=1, keepdims=True), -1, 1)
    return 1 - np.exp(-np.exp(logits + log_time))


def balancing(taste: np.ndarray) -> np.ndarray:
    """The bias under which all experts are chosen alike over these documents."""
    bias = np.zeros(EXPERTS, np.float32)
    for _ in range(15):
        bias -= np.log(chosen(taste + bias).mean(axis=0) * EXPERTS / TOP_K)
    return bias


def dropped(demand: np.ndarray) -> dict[str, float]:
    """Share of the assignments that find no room, by rule."""
    pairs = demand.reshape(DEVICES, DEVICES, -1).sum(axis=2)
    asked = {"cell": demand, "sender": pairs, "receiver": pairs.sum(axis=0)}
    rows = CAPACITY * TOKENS * TOP_K
    room = {"cell": rows / EXPERTS, "sender": rows / DEVICES, "receiver": rows}
    return {
        rule: 1 - float(np.minimum(n, math.ceil(room[rule])).sum() / demand.sum())
        for rule, n in asked.items()
    }


def figure(rows: list[dict[str, float]], where: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    whole = [row for row in rows if row["split"] == 1]
    fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
    for rule in ("cell", "sender", "receiver"):
        ax.plot([r["context"] for r in whole], [100 * r[rule] for r in whole], "o-", label=f"room by {rule}")
    for row in rows:
        if row["split"] > 1:
            label = f"by sender, a sequence over {row['split']:.0f} devices"
            ax.plot(row["context"], 100 * row["sender"], "s", color="C1", mfc="none", label=label)
    ax.set_xscale("log", base=2)
    ax.set_xticks([r["context"] for r in whole], [f"{r['context'] / 1024:.0f}K" for r in whole])
    ax.set(xlabel="tokens of a document", ylabel="assignments dropped, %")
    ax.legend(frameon=False)
    fig.savefig(where)
    plt.close(fig)
