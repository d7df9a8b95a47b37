"""Speed of the training step on one processor core: python -m bench.laptop_step [WIDTH ...]

Tokens per second of the laptop recipe's step, by width, and where the time of one micro-batch goes (forward
and backward of each part by itself, so the parts add up to a little more or less than the whole). The
process binds itself to one core. The last line is JSON.
"""

import json
import os
import sys
import time
from collections.abc import Callable

WIDTHS = (32, 40, 56, 72)
REPEATS = 5  # the fastest counts: other processes only ever slow one down


def one_thread() -> None:
    """Before jax is imported: one core, one thread."""
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def fastest(call: Callable[[], object], times: int) -> float:
    """Seconds of one call."""
    import jax

    best = float("inf")
    jax.block_until_ready(call())
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(times):
            result = call()
        jax.block_until_ready(result)
        best = min(best, (time.perf_counter() - start) / times)
    return best


def measure(width: int) -> dict:
    """The step of laptop(width) on random tokens: its speed, compile time and the parts of a micro-batch."""
    import jax
    import numpy as np

    from ladder.moe.mesh import make_mesh
    from ladder.recipe import laptop
    from ladder.train.step import init_state, make_step

    run = laptop(width)
    mesh = make_mesh(run.parallel)
    tokens = np.random.default_rng(0).integers(
        0, run.model.vocab_size, (run.rows, run.model.context), np.int32
    )
    start = time.perf_counter()
    state = jax.block_until_ready(init_state(run, mesh))
    init_s = time.perf_counter() - start
    start = time.perf_counter()
    step = make_step(run, mesh).lower(state, tokens).compile()
    compile_s = time.perf_counter() - start

    def once():
        nonlocal state
        state, metrics = step(state, tokens)
        return metrics

    seconds = fastest(once, times=5)
    return {
        "width": width,
        "tokens_per_s": round(run.batch_tokens / seconds),
        "step_ms": round(1e3 * seconds, 2),
        "micro_batch_ms": round(1e3 * seconds / (run.rows // run.parallel.micro_batch_rows), 2),
        "init_s": round(init_s, 2),
        "compile_s": round(compile_s, 2),
        "parts_ms": parts(run),
    }


def parts(run) -> dict[str, float]:
    """Forward and backward of the parts of one micro-batch, all layers together, in milliseconds."""
    import jax
    import numpy as np

    from ladder.moe import attention, loss, model, params

    spec, rows = run.model, run.parallel.micro_batch_rows
    tree = jax.jit(lambda: params.init(spec, jax.random.key(0)))()
    _, stacked = params.split(tree, spec)
    layer = {name: value[0] for name, value in stacked.items()}
    x = jax.random.normal(jax.random.key(1), (rows, spec.context, spec.width))
    tokens = np.zeros((rows, spec.context), np.int32)
    target, weight = loss.targets_of(tokens)
    valid = tokens >= 0
    flat = x.reshape(-1, spec.width)

    def timed(part, *arguments, layers: int) -> float:
        gradient = jax.jit(jax.grad(lambda *a: (part(*a) ** 2).sum(), argnums=(0, 1)))
        return round(1e3 * layers * fastest(lambda: gradient(*arguments), times=20), 2)

    return {
        "attention": timed(lambda p, x: attention.attention(p, x, spec), layer, x, layers=spec.layers),
        "experts": timed(lambda p, x: model.mlp(p, x, valid, spec)[0], layer, x, layers=spec.layers),
        "loss": timed(
            lambda h, w: loss.loss_sums(h, w, target.ravel(), weight.ravel(), spec.z_loss)[0],
            flat,
            tree["lm_head"],
            layers=1,
        ),
    }


def main(widths: tuple[int, ...]) -> None:
    one_thread()
    results = []
    for width in widths:
        results.append(measure(width))
        r = results[-1]
        print(
            f"d {width:3d}: {r['tokens_per_s']:6,} tokens/s, micro-batch {r['micro_batch_ms']:.1f} ms "
            f"({', '.join(f'{name} {ms:.1f}' for name, ms in r['parts_ms'].items())}), "
            f"init {r['init_s']:.1f} s, compile {r['compile_s']:.1f} s",
            flush=True,
        )
    print(json.dumps(results))


if __name__ == "__main__":
    main(tuple(map(int, sys.argv[1:])) or WIDTHS)
