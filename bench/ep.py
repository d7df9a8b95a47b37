"""One expert-parallel layer by transport and routing: python -m bench.ep [--devices S] [--small]

Forward, and forward with backward, of balanced, skewed and document-correlated routing (a device's tokens are
one document). A dropped token costs nothing, so that every speed stands beside its drop rate and counts
accepted work only: tokens/s are accepted assignments / K. Bytes are what a token receives, forward, by the
arithmetic of the transport. On a CPU S devices are forced, and share its cores. The last line is JSON.
"""

import argparse
import json
import os
import time
from collections.abc import Callable

import numpy as np

TOKENS, TOP_K, EXPERTS, WIDTH, HIDDEN = 4_096, 4, 32, 128, 128
CAPACITY = 1.25
REPEATS = 5  # the fastest counts: other processes only ever slow one down
LAYOUTS = {
    "ring": {"transport": "ring"},
    "a2a": {"sender_capacity": CAPACITY},
    "a2a, 4 waves": {"sender_capacity": CAPACITY, "waves": 4},
    "ragged": {"transport": "ragged"},
    "local": {"transport": "local"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=4, metavar="S")
    parser.add_argument("--small", action="store_true", help="a sixteenth of the tokens: does it run?")
    options = parser.parse_args()
    forced = f"--xla_force_host_platform_device_count={options.devices}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {forced}".strip()
    tokens = TOKENS // 16 if options.small else TOKENS
    rows = []
    print(
        f"{'routing':10} {'transport':13} {'dropped':>8} {'B/token':>8} {'forward':>11} {'with backward':>13}"
    )
    for routing in ("balanced", "skewed", "documents"):
        for name, layout in LAYOUTS.items():
            row = {"routing": routing, "transport": name} | measure(options.devices, tokens, routing, layout)
            rows.append(row)
            speeds = f"{row['forward_tokens_per_s']:11,.0f} {row['both_tokens_per_s']:13,.0f}"
            print(f"{routing:10} {name:13} {row['dropped']:8.2%} {row['bytes_per_token']:8,.0f} {speeds}")
    print(json.dumps({"devices": options.devices, "tokens_per_device": tokens, "rows": rows}))


def choices(routing: str, devices: int, tokens: int) -> np.ndarray:
    """int32[devices * tokens, TOP_K]"""
    rng = np.random.default_rng(0)
    taste = np.zeros((devices, 1, EXPERTS))
    if routing == "skewed":
        taste = np.broadcast_to(np.linspace(0, 3, EXPERTS), (devices, 1, EXPERTS))
    if routing == "documents":
        taste = rng.normal(0, 1.2, (devices, 1, EXPERTS))
    noisy = taste + rng.gumbel(size=(devices, tokens, EXPERTS))
    return np.argsort(-noisy, axis=2)[..., :TOP_K].reshape(-1, TOP_K).astype(np.int32)


def received(devices: int, layout: dict) -> float:
    """Bytes of float32 rows that a token receives forward, to its experts and back."""
    row, others = 4 * WIDTH, (devices - 1) / devices
    if layout.get("transport") == "local":
        return 0.0
    if layout.get("transport") == "ring":
        return 2 * (devices - 1) * row
    return 2 * layout.get("sender_capacity", 1) * TOP_K * row * others


def measure(devices: int, tokens: int, routing: str, layout: dict) -> dict[str, float]:
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    from ladder import ParallelSpec
    from ladder.moe.ep.grouped import Experts
    from ladder.moe.ep.layer import moe
    from ladder.moe.mesh import EXPERT, ROWS, make_mesh

    parallel = ParallelSpec(expert=devices, capacity=CAPACITY, **layout)
    rng = np.random.default_rng(1)
    draw = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)  # noqa: E731
    expert = jnp.asarray(choices(routing, devices, tokens))
    x, weight = draw(len(expert), WIDTH), draw(len(expert), TOP_K)
    into, out = draw(EXPERTS, WIDTH, HIDDEN) / WIDTH**0.5, draw(EXPERTS, HIDDEN, WIDTH) / HIDDEN**0.5
    experts = Experts(into, into, out)

    def on_device(x, expert, weight, experts):
        y, stats = moe(x, expert, weight, experts, parallel)
        return y, stats.accepted[None]

    layer = jax.shard_map(
        on_device, mesh=make_mesh(parallel), in_specs=(ROWS, ROWS, ROWS, P(EXPERT)), out_specs=(ROWS, ROWS)
    )

    def loss(x, weight, experts):
        y, accepted = layer(x, expert, weight, experts)
        return jnp.sum(y * y), accepted

    forward = jax.jit(loss)
    both = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))
    accepted = int(forward(x, weight, experts)[1].sum())
    useful = accepted / TOP_K
    return {
        "dropped": 1 - accepted / expert.size,
        "bytes_per_token": received(devices, layout),
        "forward_tokens_per_s": useful / fastest(lambda: forward(x, weight, experts)),
        "both_tokens_per_s": useful / fastest(lambda: both(x, weight, experts)),
    }


def fastest(call: Callable[[], object]) -> float:
    """Seconds of one call; each is waited for, since steps in flight together dead-lock CPU collectives."""
    import jax

    jax.block_until_ready(call())
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main()
