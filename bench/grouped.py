"""Grouped matrix products of one layer's experts, forward and backward: python -m bench.grouped [--small]

SwiGLU of 16,384 rows by 64 experts, rows dealt evenly: ours (batched blocks), lax.ragged_dot and, where torch
is installed, its batched product, the best it has for rows dealt evenly. Gradients of all are first held to
each other. Each speed is also given against the same library's plain matmul of those rows, its own peak. The
last line is JSON: vs_ragged_dot and vs_torch are speed ratios, ours / theirs, null where there is nothing to
compare. Runs on whatever device jax and torch find.
"""

import argparse
import json
import time
from collections.abc import Callable

import numpy as np

ROWS, EXPERTS, WIDTH, HIDDEN = 16_384, 64, 128, 128
REPEATS = 5  # the fastest counts: other processes only ever slow one down


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a sixteenth of the rows: does it run?")
    rows = ROWS // 16 if parser.parse_args().small else ROWS
    rng = np.random.default_rng(0)
    draw = lambda *shape: (rng.standard_normal(shape) / shape[-2] ** 0.5).astype(np.float32)  # noqa: E731
    x = rng.standard_normal((rows, WIDTH)).astype(np.float32)
    weights = [draw(EXPERTS, WIDTH, HIDDEN), draw(EXPERTS, WIDTH, HIDDEN), draw(EXPERTS, HIDDEN, WIDTH)]
    flops = 3 * 2 * 3 * rows * WIDTH * HIDDEN  # three products, each with two more backward

    calls, results = of_jax(x, weights), {}
    try:
        calls |= of_torch(x, weights)
    except ImportError:
        print("torch is not installed: nothing to compare with")
    reference = [on_host(g) for g in calls["ragged_dot"]()]
    for name, call in calls.items():
        if not name.endswith("matmul"):
            for a, b in zip(call(), reference, strict=True):
                error = np.abs(on_host(a) - b).max() / np.abs(b).max()
                if not error < 1e-4:
                    raise SystemExit(f"{name}: gradients differ by {error:.1e}")
        results[name] = flops / fastest(call)
        print(f"{name:14} {results[name] / 1e9:8.2f} GFLOP/s")
    peak = results["ours"] / results["jax matmul"]
    ratios = {"vs_ragged_dot": results["ours"] / results["ragged_dot"], "vs_torch": None}
    if "torch" in results:
        ratios["vs_torch"] = results["ours"] / results["torch"]
        ratios["vs_torch_of_peak"] = peak / (results["torch"] / results["torch matmul"])
    print(json.dumps({"rows": rows, "experts": EXPERTS, "fraction_of_matmul": peak} | ratios))


def on_host(a) -> np.ndarray:
    return np.asarray(a.cpu() if hasattr(a, "cpu") else a)


def fastest(call: Callable[[], object]) -> float:
    """Seconds of one call that was made before."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def of_jax(x: np.ndarray, weights: list[np.ndarray]) -> dict[str, Callable]:
    """name -> gradients of the sum of squares, for rows and weights."""
    import jax
    import jax.numpy as jnp

    from ladder.moe.ep.grouped import Experts, block_rows, grouped_mlp

    sizes = jnp.full(EXPERTS, len(x) // EXPERTS, jnp.int32)
    b = block_rows(len(x), EXPERTS, WIDTH * HIDDEN)
    even = len(x) // EXPERTS % b == 0  # then the blocks need no padding
    if not even:
        raise SystemExit(f"{len(x)} rows over {EXPERTS} experts are no whole blocks of {b}")

    def ragged(x, gate, up, down):
        product = lambda a, w: jax.lax.ragged_dot(a, w, sizes)  # noqa: E731
        return product(jax.nn.silu(product(x, gate)) * product(x, up), down)

    def plain(x, gate, up, down):
        return (jax.nn.silu(x @ gate[0]) * (x @ up[0])) @ down[0]

    def gradients(layer) -> Callable:
        loss = lambda *given: jnp.sum(layer(*given) ** 2)  # noqa: E731
        run = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3))).lower(x, *weights).compile()
        given = [jnp.asarray(a) for a in (x, *weights)]
        return lambda: jax.block_until_ready(run(*given))

    return {
        "ours": gradients(lambda x, *w: grouped_mlp(x, Experts(*w), sizes, b)),
        "ragged_dot": gradients(ragged),
        "jax matmul": gradients(plain),
    }


def of_torch(x: np.ndarray, weights: list[np.ndarray]) -> dict[str, Callable]:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    given = [torch.tensor(a, device=device, requires_grad=True) for a in (x, *weights)]

    def grouped(a, w):
        """Rows lie evenly, so that a batched product is the best that torch has for float32."""
        return torch.bmm(a.reshape(EXPERTS, -1, a.shape[1]), w).reshape(len(a), -1)

    def plain(a, w):
        return a @ w[0]

    def gradients(product) -> Callable:
        def call() -> list:
            x, gate, up, down = given
            y = product(torch.nn.functional.silu(product(x, gate)) * product(x, up), down)
            found = torch.autograd.grad((y**2).sum(), given)
            if device == "cuda":
                torch.cuda.synchronize()
            return list(found)

        return call

    return {"torch": gradients(grouped), "torch matmul": gradients(plain)}


if __name__ == "__main__":
    main()
