"""A ladder that met faults beside the same ladder that met none."""

import hashlib
import json
from collections import Counter
from pathlib import Path

from bench.faults.injection import Service
from ladder import Store
from ladder.store import RunRecord
from ladder.tracking import run_id

OF_AN_ATTEMPT = ("attempt", "tokens_per_s")  # a step that is trained again may differ in these alone
OF_A_CALL = ("report", "wall_s")


def compare(store: Store, reference: Store, service: Service) -> dict:
    """lost_rows and duplicated_rows, of the record and of the service; names of the runs that are not
    bit-equal in rows or final parameters, `result` among them when the ladder's result is another."""
    lost, duplicated = 0, 0
    unequal = [] if result(store) == result(reference) else ["result"]
    for record, undisturbed in zip(store.runs(), reference.runs(), strict=True):
        identity = store.read("wandb/identity").decode()
        for rows in (record.rows(), service.rows(run_id(identity, record))):
            counts = Counter(row["step"] for row in rows)
            lost += record.spec.steps - len(counts)
            duplicated += counts.total() - len(counts)
            if comparable(rows) != comparable(undisturbed.rows()):
                unequal.append(record.id)
        if parameters(record) != parameters(undisturbed):
            unequal.append(record.id)
    return {"lost_rows": lost, "duplicated_rows": duplicated, "not_bit_equal": sorted(set(unequal))}


def result(store: Store) -> dict:
    if not store.exists("result.json"):
        return {}
    return {
        key: value for key, value in json.loads(store.read("result.json")).items() if key not in OF_A_CALL
    }


def comparable(rows: list[dict]) -> list[dict]:
    kept = [{key: row[key] for key in row if key not in OF_AN_ATTEMPT} for row in rows]
    return sorted(kept, key=lambda row: row["step"])


def parameters(record: RunRecord) -> str | None:
    """sha256 of the whole final state; None when there is none."""
    import jax
    import numpy as np

    from ladder.moe.mesh import make_mesh
    from ladder.train.checkpoint import Checkpoints
    from ladder.train.step import init_state

    if not (Path(record.checkpoints) / str(record.spec.steps)).exists():
        return None
    with Checkpoints(record.checkpoints) as checkpoints:
        like = init_state(record.spec, make_mesh(record.spec.parallel))
        state = checkpoints.restore(like, record.spec.steps)
    hashed = hashlib.sha256()
    for leaf in jax.tree.leaves(state):
        hashed.update(np.asarray(leaf).tobytes())
    return hashed.hexdigest()
