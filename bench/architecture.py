"""What the whole architecture learns against the plain one: python -m bench.architecture [WIDTH] [STEPS]

The laptop recipe's model, and the same with every feature of the 535B design at as many FLOPs a token (the
width of its routed experts makes up the difference), on the same batches of the built-in corpus: bits per
byte of held-out text after 200 steps. With AdamW both, and with MuonH the second. The last line is JSON.
"""

import json
import math
import sys

from ladder import RunSpec
from ladder.accounting import forward_flops, parameters

MUONH = {"kind": "muonh", "weight_decay": 0.0, "clip_norm": None}


def whole(plain: RunSpec) -> RunSpec:
    """Every feature on, at the FLOPs of `plain` to half an expert's column."""
    model = plain.model.replace(
        kv_heads=plain.model.heads // 2,
        global_kv_heads=1,
        window=plain.model.context // 2,
        global_every=2,
        rope_fraction=0.5,
        qk_mult=1.3,
        exclusive_attention=True,
        head_gate=True,
        isolate_documents=True,
        gated_norm_rank=8,
        latent_width=plain.model.width // 2,
    )
    wanted = forward_flops(plain.model, lm_head=True)
    widths = range(1, 8 * plain.model.width)
    near = min(
        widths,
        key=lambda f: abs(forward_flops(model.replace(expert_width=f), lm_head=True) - wanted),
    )
    return plain.replace(model=model.replace(expert_width=near))


def learn(run: RunSpec) -> dict:
    """Mean held-out bits per byte after the last step, and the mean training loss of the last tenth."""
    import jax
    import numpy as np

    from ladder.corpus import build
    from ladder.moe.mesh import make_mesh
    from ladder.train.data import Batches, eval_rows
    from ladder.train.step import init_state, make_eval, make_step

    corpus, mesh = build(run.data, run.model.vocab_size), make_mesh(run.parallel)
    batches, step, state = Batches(corpus, run), make_step(run, mesh), init_state(run, mesh)
    losses = []
    for done in range(run.steps):
        state, metrics = step(state, batches.batch(done))
        losses.append(metrics["train_ce"])
    evaluate, bits = make_eval(run, mesh), []
    for rows in eval_rows(corpus, run).values():
        nats = sum(
            float(evaluate(state, piece)[0]) for piece in np.array_split(rows.tokens, len(rows.tokens) // 4)
        )
        bits.append(nats / math.log(2) / rows.bytes)
    tail = jax.device_get(losses[-max(1, run.steps // 10) :])
    return {
        "bits_per_byte": float(np.mean(bits)),
        "train_ce": float(np.mean(tail)),
        "forward_flops": forward_flops(run.model, lm_head=True),
        "parameters": parameters(run.model).total,
    }


def main(width: int = 48, steps: int = 200) -> None:
    from ladder.recipe import laptop

    plain = laptop(width).replace(steps=steps)
    full = whole(plain)
    runs = {
        "plain, AdamW": plain,
        "whole, AdamW": full,
        "whole, MuonH": full.replace(optimizer=full.optimizer.replace(**MUONH)),
    }
    results = {}
    for name, run in runs.items():
        results[name] = learn(run)
        r = results[name]
        print(
            f"{name}: {r['bits_per_byte']:.4f} bits per byte, training loss {r['train_ce']:.4f} nats, "
            f"{r['forward_flops']:,} FLOPs a token, {r['parameters']:,} parameters",
            flush=True,
        )
    print(json.dumps(results))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
