"""Gates: a rung is predicted from the smaller ones before it starts, and held against that prediction.

    gates/RUNG/prediction.json    a frozen forecast of the rung's run
           /overruled.json        somebody let the ladder go on although the rung landed outside

Both are written once, and never replaced.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pandas as pd

from analysis.artefact import Forecast
from analysis.fitting import fit
from analysis.forecasts import forecast
from ladder.accounting import eval_points
from ladder.gating import gate_file, gate_of, waves
from ladder.spec import Gate, Ladder, Rung
from ladder.store import Store


@dataclass(frozen=True)
class Held:
    """A gated rung beside its prediction. Losses in the ladder's unit; None where there is none yet.

    below: the rungs that it is predicted from. loss: of the finished rung, the mean over its seeds. word:
    waiting (not predicted yet), predicted, inside, above, below, "no band" (over 500x), or "not predicted"
    (it began without a prediction). floor: E of the law that predicts it; over the gates it drifts where a
    ladder bends. outlier: the largest |z| of a run below that is left out of that law; None under three runs.
    """

    rung: str
    below: tuple[str, ...]
    level: float
    word: str
    median: float | None
    lo: float | None
    hi: float | None
    loss: float | None
    overruled: bool
    sha256: str | None
    floor: float | None = None
    outlier: float | None = None

    @property
    def outside(self) -> bool:
        return self.word in ("above", "below")

    def __str__(self) -> str:
        """One clause for people."""
        if self.median is None:
            return f"{self.rung} {self.word}"
        if self.lo is None:
            return f"{self.rung} predicted at {self.median:.4f}, no band"
        said = {"above": "ABOVE", "below": "BELOW (better than predicted)"}.get(self.word, self.word)
        landed = f"landed at {self.loss:.4f}, {said}" if self.loss is not None else "is predicted inside"
        return (
            f"{self.rung} {landed} {self.lo:.4f} to {self.hi:.4f}, its {100 * self.level:g} % band "
            f"(median {self.median:.4f}, from {', '.join(self.below)})"
        )


def predict(
    store: Store, rung: Rung, below: Sequence[Rung], regime: Mapping[str, str] | None = None
) -> Forecast:
    """Freeze the prediction of `rung` from the finished runs of the rungs `below`; one that is frozen already
    stays. Raises AnalysisError (what the rungs cannot carry), ForecastFileError."""
    name = gate_file(rung.name)
    if not store.exists(name):
        found = fit(store.evals(names=[run for each in below for run, _ in each.runs]))
        fresh = forecast(found, pd.DataFrame(eval_points(rung.run, rung.name)), regime=regime)
        store.files.create(name, fresh.to_json().encode())
    return Forecast.from_json(store.read(name).decode(), store.path(name))


def overrule(store: Store, held: Held) -> None:
    """Record that the ladder goes on although the rung landed outside."""
    content = {
        "rung": held.rung,
        "loss": held.loss,
        "band": [held.lo, held.hi],
        "level": held.level,
        "prediction_sha256": held.sha256,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    store.files.create(_overruled(held.rung), json.dumps(content, indent=1).encode())


def held_against(store: Store, ladder: Ladder) -> list[Held]:
    """A row for each gated rung of `ladder`, smallest first. Raises ForecastFileError."""
    gate = gate_of(ladder)
    if gate is None:
        return []
    below: list[str] = []
    found = []
    for wave in waves(ladder):
        if below:
            found.append(_held(store, wave[0], tuple(below), gate))
        below += [rung.name for rung in wave]
    return found


def _held(store: Store, rung: Rung, below: tuple[str, ...], gate: Gate) -> Held:
    records = [store.run(run) for run, _ in rung.runs]
    ended = [record.status() for record in records]
    finished = all(status["state"] == "finished" for status in ended)
    loss = sum(status["loss"] for status in ended) / len(ended) if finished else None
    name = gate_file(rung.name)
    if not store.exists(name):
        word = "not predicted" if any(record.begun for record in records) else "waiting"
        return Held(rung.name, below, gate.level, word, None, None, None, loss, False, None)
    frozen = Forecast.from_json(store.read(name).decode(), store.path(name))
    median, lo, hi = frozen.payload["grid"]["median"][-1], None, None
    word = "no band"
    if not frozen.point_only:
        last = frozen.at(progress=1.0, level=gate.level)
        lo, hi = last.lo, last.hi
        word = "predicted" if loss is None else "above" if loss > hi else "below" if loss < lo else "inside"
    overruled = store.exists(_overruled(rung.name))
    z = frozen.rungs()["z"].astype(float).abs().max()
    return Held(
        rung.name,
        below,
        gate.level,
        word,
        median,
        lo,
        hi,
        loss,
        overruled,
        frozen.sha256,
        floor=frozen.payload["law"]["E"][1],
        outlier=None if math.isnan(z) else float(z),
    )


def _overruled(rung: str) -> str:
    return f"gates/{rung}/overruled.json"
