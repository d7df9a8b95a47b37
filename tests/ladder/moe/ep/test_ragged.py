"""The ragged exchange: offsets as its senders state them, and the stand-in of the collective."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from ladder import ParallelSpec
from ladder.moe.ep.ragged import exchange, offsets
from ladder.moe.mesh import EXPERT, make_mesh


def collective(operands: list[np.ndarray], at: list, most: int) -> np.ndarray:
    """ragged_all_to_all by its definition: each sender copies its slices to where it says."""
    results = np.zeros((len(operands), most, operands[0].shape[1]), np.float32)
    for s, rows in enumerate(operands):
        for r in range(len(operands)):
            assert at[s].send[r] == at[r].receive[s]
            slice_ = rows[at[s].input[r] : at[s].input[r] + at[s].send[r]]
            results[r, at[s].output[r] : at[s].output[r] + at[s].send[r]] = slice_
    return results


@pytest.mark.parametrize("S", [4, 8])
def test_unequal_slices_land_in_the_order_of_their_senders_and_gradients_return(S):
    rng = np.random.default_rng(S)
    sizes = rng.integers(0, 7, (S, S)).astype(np.int32)
    sizes[1] = 0  # one has nothing to send
    R, C = int(sizes.sum(1).max()) + 3, int(sizes.sum(0).max()) + 2
    operands = rng.standard_normal((S, R, 3)).astype(np.float32)
    at = [jax.tree.map(np.asarray, offsets(jnp.asarray(sizes), s)) for s in range(S)]
    expected = collective(list(operands), at, C)
    for r in range(S):
        held = [operands[s, at[s].input[r] : at[s].input[r] + sizes[s, r]] for s in range(S)]
        np.testing.assert_array_equal(expected[r, : sizes[:, r].sum()], np.concatenate(held))

    move = partial(exchange, sizes=jnp.asarray(sizes), most=C, axis=EXPERT)
    mesh = make_mesh(ParallelSpec(expert=S))
    run = jax.shard_map(lambda x: move(x[0])[None], mesh=mesh, in_specs=P(EXPERT), out_specs=P(EXPERT))
    there, back = jax.jit(lambda x, ct: (run(x), jax.vjp(run, x)[1](ct)[0]))(operands, expected)
    np.testing.assert_array_equal(there, expected)
    sent = np.arange(R)[None, :, None] < sizes.sum(1)[:, None, None]
    np.testing.assert_array_equal(back, np.where(sent, operands, 0))
