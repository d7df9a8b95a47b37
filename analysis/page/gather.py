"""Everything that the page shows, as plain data: a store in, a JSON-ready dict out. No HTML, no drawing.

A part that is not there yet is None or an empty list, and `missing` says in words what it waits for.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import pandas as pd

import ladder
from analysis.forecasts import Forecast
from analysis.frame import AnalysisError
from analysis.gates import held_against
from analysis.monitor import STATES, declared_events
from analysis.page.series import decimate
from analysis.page.words import headline, missing
from ladder.accounting import active_parameters, parameters, scaling_flops
from ladder.spec import Ladder
from ladder.store import RunRecord, Store

FORECAST = "forecast.json"
DYNAMICS = {  # row key -> what it is; a metric that no run carries is left out
    "grad_norm": "Gradient norm",
    "router_entropy": "Router load entropy",
    "max_over_mean_load": "Busiest expert, load over mean",
    "drop_fraction": "Dropped assignments",
}
BANDS = ("median", *(f"{side}{level}" for level in (50, 90, 99) for side in ("lo", "hi", "sim_lo", "sim_hi")))


@dataclass(frozen=True)
class Snapshot(RunRecord):
    """A run whose rows are read once, so that everything on the page is of one moment."""

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        return super().rows()

    def rows(self) -> list[dict[str, Any]]:
        return self._rows


def gather(store: Store) -> dict[str, Any]:
    """The page's data.

    Keys: ladder, unit, made (UTC), version, headline (title, detail, tone, state), target (None or where it
    stands in the forecast), forecast (None until frozen), gates (each gated rung beside its prediction), runs
    (in order), dynamics, events, missing.
    Losses are in `unit`, tokens and FLOPs "spent so far". Raises StoreError where there is no ladder.
    """
    declared = store.ladder()
    target_id = declared.target.name if declared.target else None
    data: dict[str, Any] = {
        "ladder": {
            "name": declared.name,
            "hypothesis": declared.hypothesis.model_dump(mode="json") if declared.hypothesis else None,
        },
        "unit": declared.everything[0].run.evaluation.measured_in,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": ladder.__version__,
    }
    data["forecast"], problem = _forecast(store)
    data["gates"], doubt = _gates(store, declared)
    records = [Snapshot(r.files, r.id, r.rung, r.spec) for r in store.runs()]
    data["runs"] = [_run(record, record.id == target_id) for record in records]
    data["target"] = _target(data["forecast"], next((r for r in data["runs"] if r["role"] == "target"), None))
    data["dynamics"] = _dynamics(records, data["runs"])
    data["events"] = [event for record in records for event in _events(record, record.id == target_id)]
    data["missing"] = missing(data, problem, doubt)
    data["headline"] = headline(data)
    return data


def _forecast(store: Store) -> tuple[dict[str, Any] | None, str]:
    """The frozen forecast as plain columns, or None with the reason why it cannot be used."""
    if not store.exists(FORECAST):
        return None, ""
    text = store.read(FORECAST).decode()
    try:
        frozen = Forecast.from_json(text, store.path(FORECAST))
    except AnalysisError as error:
        return None, str(error)
    frame = frozen.frame((0.5, 0.9, 0.99))
    last = frame.iloc[-1]
    return {
        "sha256": frozen.sha256,
        "created": json.loads(text).get("created"),
        "grade": frozen.grade,
        "condition": frozen.payload["condition"],
        "equation": frozen.payload["law"]["equation"],
        "times": frozen.payload["target"]["times"],
        "flops": frozen.payload["target"]["flops"],
        "point_only": frozen.point_only,
        "median": last["median"],
        "lo90": _number(last["lo90"]),
        "hi90": _number(last["hi90"]),
        "half_width_percent": _number(50 * (last["hi90"] - last["lo90"]) / last["median"]),
        "E": frozen.payload["law"]["E"],
        "exponents": frozen.payload["law"]["exponents"],
        "noise": frozen.payload["law"]["noise"],
        "shares": frozen.payload["law"]["shares"],
        "summary": frozen.summary(),
        "warnings": [{"code": n.code, "severity": n.severity, "text": n.text} for n in frozen.warnings],
        "bands": _columns(frame[["progress", "tokens", "step", *BANDS]]),
        "scaling": _columns(frozen.scaling()),
        "rungs": _columns(frozen.rungs()[["run", "flops", "loss", "residual", "z"]]),
    }, ""


def _gates(store: Store, declared: Ladder) -> tuple[list[dict[str, Any]], str]:
    """Rows of analysis.gates.Held, none where no rung was ever predicted; and why they cannot be used."""
    try:
        rows = held_against(store, declared)
    except AnalysisError as error:
        return [], str(error)
    if all(held.word in ("not predicted", "waiting") for held in rows):
        return [], ""
    return [{name: _number(value) for name, value in asdict(held).items()} for held in rows], ""


def _run(record: RunRecord, is_target: bool) -> dict[str, Any]:
    spec, status, evals = record.spec, record.status(), record.evals()
    loss = _number(evals[-1]["loss"]) if evals else None
    return {
        "run": record.id,
        "rung": record.rung,
        "role": "target" if is_target else "replicate" if record.id != record.rung else "rung",
        "state": status["state"],
        "reason": status["reason"],
        "step": status["step"],
        "steps": spec.steps,
        "loss": loss,
        "finished": loss is not None and evals[-1]["progress"] >= 1,
        "parameters": parameters(spec.model).total,
        "active": active_parameters(spec),
        "tokens": spec.tokens,
        "flops": float(scaling_flops(spec)),
        "batch_tokens": spec.batch_tokens,
        "seed": spec.seed,
        "fingerprint": spec.fingerprint,
        "evals": _columns(pd.DataFrame(evals, columns=["step", "tokens", "flops", "progress", "loss"])),
    }


def _target(forecast: dict[str, Any] | None, run: dict[str, Any] | None) -> dict[str, Any] | None:
    """Each of the target's evaluations in percent from the median, and the last one against its band.

    None without a forecast or before the first evaluation that it covers.
    """
    if forecast is None or run is None:
        return None
    bands = forecast["bands"]
    at = {round(p, 6): k for k, p in enumerate(bands["progress"])}
    rows = []
    for progress, loss in zip(run["evals"]["progress"], run["evals"]["loss"], strict=True):
        k = at.get(round(progress, 6))
        if k is not None and loss is not None:
            rows.append((progress, loss, *(bands[name][k] for name in ("median", "lo90", "hi90"))))
    if not rows:
        return None
    progress, loss, median, lo90, hi90 = rows[-1]
    return {
        "run": run["run"],
        "progress": progress,
        "finished": run["finished"],
        "loss": loss,
        "median": median,
        "lo90": lo90,
        "hi90": hi90,
        "percent": 100 * (loss / median - 1),
        "inside": None if lo90 is None else bool(lo90 <= loss <= hi90),
        "residual": {
            "progress": [row[0] for row in rows],
            "percent": [100 * (row[1] / row[2] - 1) for row in rows],
        },
    }


def _dynamics(records: Sequence[RunRecord], runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A panel a metric that any run carries: per run x (progress), low, middle, high."""
    tables = [pd.DataFrame(record.rows()) for record in records]
    panels = []
    for key, title in DYNAMICS.items():
        lines = [
            {"run": run["run"], "role": run["role"], **decimate(table["step"] / run["steps"], table[key])}
            for table, run in zip(tables, runs, strict=True)
            if key in table
        ]
        if any(line["x"] for line in lines):
            panels.append({"key": key, "title": title, "lines": lines})
    return panels


def _events(record: RunRecord, is_target: bool) -> list[dict[str, Any]]:
    """What happened to a run; for the target also the changes that its spec declares, once reached."""
    rows = record.rows()
    last = rows[-1]["step"] if rows else -1
    declared = [
        {**event, "detail": "the mixture of domains changes, as declared"}
        for event in declared_events(record.spec)
        if is_target and event["step"] <= last
    ]
    recorded = [event for event in record.events() if event["kind"] != "start"]
    known = {(event["step"], event["kind"]) for event in recorded}
    found = recorded + [event for event in declared if (event["step"], event["kind"]) not in known]
    return [
        {
            "run": record.id,
            "step": event["step"],
            "progress": event["step"] / record.spec.steps,
            "tokens": event["step"] * record.spec.batch_tokens,
            "kind": event["kind"],
            "detail": event.get("detail", ""),
            "registered": event.get("registered", True),
            "state": event["state"] if event.get("state") in STATES else None,
            "time": event.get("time"),
        }
        for event in sorted(found, key=lambda e: e["step"])
    ]


def _columns(frame: Any) -> dict[str, list[Any]]:
    """Columns as lists, NaN as None, floats at seven digits (a page needs no more)."""
    return {str(name): [_number(value) for value in column.tolist()] for name, column in frame.items()}


def _number(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.7g}") if math.isfinite(value) else None
