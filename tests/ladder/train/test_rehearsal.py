"""What is said of a program that is compiled and never run."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from ladder import ParallelSpec, SpecError, cli
from ladder.moe.mesh import DATA, EXPERT, make_mesh
from ladder.train.rehearsal import collectives, replica
from tests.ladder.examples import ROOT, RUN

MARIN = str(ROOT / "experiments" / "marin_535b.py")


def test_collectives_are_counted_as_often_as_their_loop_runs():
    mesh = make_mesh(ParallelSpec(data=2, expert=4))

    @partial(jax.shard_map, mesh=mesh, in_specs=P(EXPERT), out_specs=P())
    def program(x):  # float32[16], four on each device of the expert axis
        def layer(x, _):
            return x + jax.lax.psum(jnp.sin(x), EXPERT), None

        x, _ = jax.lax.scan(layer, x, length=5)
        return jax.lax.psum(jax.lax.all_gather(x, EXPERT, tiled=True).sum(), (DATA, EXPERT))

    found = collectives(jax.jit(program).lower(jnp.zeros(16)).compile().as_text())
    assert found["all-gather"] == {"count": 1, "bytes": 16 * 4}
    assert found["all-reduce"]["count"] >= 5
    assert 5 * 4 * 4 <= found["all-reduce"]["bytes"] <= 5 * 4 * 4 + 8


def test_a_replica_is_the_share_of_one_expert_axis():
    run = RUN.replace(parallel=ParallelSpec(data=2, expert=2))
    share = replica(run, 2)
    assert share.rows == run.rows // 2 and share.parallel.devices == 2 and share.model == run.model
    with pytest.raises(SpecError, match=r"devices=4: .* parallel\.expert=2"):
        replica(run, 4)


def test_doctor_names_the_runs_of_the_file(capsys):
    assert cli.main(["doctor", "run", MARIN, "--run", "d9", "--devices", "64"]) == 2
    assert "--run d9" in (said := capsys.readouterr().err) and "d6144" in said


@pytest.mark.slow
def test_doctor_compiles_a_rung_and_agrees_with_accounting(capsys):
    assert cli.main(["doctor", "run", MARIN, "--run", "d768", "--devices", "64", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for kind in ("weights", "optimizer"):
        assert found[kind] == pytest.approx(found["expected"][kind], rel=0.02)
    assert found["step"]["collectives"]["all-to-all"]["count"] > 0
    assert found["step"]["arguments"] >= found["weights"] + found["optimizer"]
