"""forecast: the promise about one run, frozen as canonical JSON before that run starts.

The artefact is its payload: law, prior, data, grid, bands, regime, versions. `sha256` is over the payload's
canonical JSON with floats at 10 significant digits, so that it survives a save and does not hang on the last
bits of a float; time stands outside the payload.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy

import ladder
from analysis import trajectory
from analysis.fitting import FARTHEST, TRANSFER, ScalingFit
from analysis.frame import AnalysisError, EvalsError, Notice, as_rows, table
from ladder.accounting import eval_points
from ladder.spec import RunSpec

FORMAT = "scaling-ladder forecast 1"
LEVELS = (0.5, 0.9, 0.99)
SIDES = ("lo", "hi", "sim_lo", "sim_hi")


class ForecastFileError(AnalysisError):
    """A frozen forecast that cannot be read or is not what was frozen."""


@dataclass(frozen=True)
class Reading:
    """The forecast at one progress: median, pointwise [lo, hi], simultaneous [sim_lo, sim_hi], in loss units."""

    median: float
    lo: float
    hi: float
    sim_lo: float
    sim_hi: float


@dataclass(frozen=True)
class Forecast:
    """A frozen forecast. Everything is read from `payload` (plain JSON values)."""

    payload: Mapping[str, Any]

    @property
    def run(self) -> str:
        return self.payload["target"]["run"]

    @property
    def metric(self) -> str:
        return self.payload["metric"]

    @property
    def unit(self) -> str:
        return self.payload["unit"]

    @property
    def grade(self) -> str:
        return self.payload["law"]["grade"]

    @property
    def regime(self) -> Mapping[str, str]:
        """Hashes (recipe, data, evaluation, ...) of what the forecast is valid for."""
        return self.payload["regime"]

    @property
    def warnings(self) -> tuple[Notice, ...]:
        return tuple(Notice(*item) for item in self.payload["notices"])

    @property
    def point_only(self) -> bool:
        """True when the target is too far beyond the rungs for a band."""
        return not self.payload["bands"]

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(canonical(self.payload).encode()).hexdigest()

    def frame(self, levels: Iterable[float] = LEVELS) -> pd.DataFrame:
        """A row a grid point: run, step, tokens, progress, median, and per level (.5, .9, .99) lo90, hi90 (pointwise),
        sim_lo90, sim_hi90 (simultaneous). Bands are NaN in a point-only forecast."""
        out = pd.DataFrame({"run": self.run, **self.payload["grid"]})
        for name in ("step", "tokens"):
            out[name] = pd.to_numeric(out[name])
        for level in levels:
            stored = self._band(level) or dict.fromkeys(SIDES, np.nan)
            for side in SIDES:
                out[f"{side}{100 * level:g}"] = stored[side]
        return out

    def at(self, progress: float | None = None, tokens: float | None = None, level: float = 0.9) -> Reading:
        """The forecast at a progress in (0, 1], or at a token count; linear in log progress between grid points.

        Raises AnalysisError: before_the_grid (earlier than any rung was evaluated), bad_progress, no_band, bad_level.
        """
        total = self.payload["target"].get("tokens")
        if progress is None:
            if tokens is None or total is None:
                raise AnalysisError(
                    "bad_progress", "give progress, or tokens where the target's planned tokens are known"
                )
            progress = tokens / total
        grid = np.array(self.payload["grid"]["progress"])
        if not 0 < progress <= 1.001:
            raise AnalysisError(
                "bad_progress", f"progress {progress:g} is outside (0, 1]: it is spent / planned tokens"
            )
        if progress < grid[0] * (1 - 1e-9):
            raise AnalysisError(
                "before_the_grid", f"progress {progress:.3g} is before the first forecast point {grid[0]:.3g}"
            )
        stored = self._band(level)
        if stored is None:
            raise AnalysisError(
                "no_band",
                f"the target is {self.payload['target']['times']:.0f}x the largest run: a point, no band",
            )
        values = {"median": self.payload["grid"]["median"], **stored}
        return Reading(**{k: float(np.interp(np.log(progress), np.log(grid), v)) for k, v in values.items()})

    def _band(self, level: float) -> Mapping[str, Any] | None:
        if level not in LEVELS:
            raise AnalysisError(
                "bad_level", f"level {level!r} was not frozen; a forecast has {', '.join(map(str, LEVELS))}"
            )
        return self.payload["bands"].get(str(level))

    def rungs(self) -> pd.DataFrame:
        """The fitted runs: run, rung, flops, loss, trend, residual, z (see ScalingFit.frame)."""
        return pd.DataFrame(self.payload["law"]["runs"])

    def scaling(self) -> pd.DataFrame:
        """The law from the smallest rung to the target, for a plot: flops, median, lo90, hi90 (pointwise)."""
        return pd.DataFrame(self.payload["law"]["curve"]).astype(float)

    def summary(self) -> str:
        law, target = self.payload["law"], self.payload["target"]
        median = self.payload["grid"]["median"][-1]
        stored = self._band(0.9)
        head = f"{self.run}: final {self.metric} {median:.4g} {self.unit}"
        if stored is None:
            head += ", a point without a band"
        else:
            lo, hi = stored["lo"][-1], stored["hi"][-1]
            head += f", 90 % band [{lo:.4g}, {hi:.4g}] (+-{(hi - lo) / 2 / median:.2%})"
        lines = [
            f"{head}, {TRANSFER}",
            f"{target['times']:.3g}x the FLOPs of the largest finished rung; {law['equation']}, {law['why']}; grade {law['grade']}",
            f"{len(self.payload['grid']['progress'])} points of progress from {self.payload['grid']['progress'][0]:.3g}; "
            f"sha256 {self.sha256}",
        ]
        return "\n".join(lines + [str(notice) for notice in self.warnings])

    def to_json(self, created: datetime | None = None) -> str:
        """The artefact's text: sha256, time of writing, payload."""
        stamp = (created or datetime.now(UTC)).isoformat(timespec="seconds")
        return json.dumps({"sha256": self.sha256, "created": stamp, "payload": self.payload}, allow_nan=False)

    def save(self, path: str | Path) -> None:
        """Write the artefact; the file appears whole or not at all."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}")
        part.write_text(self.to_json(), "utf-8")
        os.replace(part, path)

    @classmethod
    def from_json(cls, text: str, name: str = "the forecast") -> "Forecast":
        """Read an artefact's text. Raises ForecastFileError: not_a_forecast, changed."""
        try:
            stored = json.loads(text)
            said, payload = stored["sha256"], stored["payload"]
            known = payload["format"] == FORMAT
        except (ValueError, KeyError, TypeError):
            raise ForecastFileError(
                "not_a_forecast", f"{name} is no frozen forecast: expected JSON with sha256 and payload"
            ) from None
        if not known:
            raise ForecastFileError(
                "not_a_forecast", f"{name} has format {payload['format']!r}, this version reads {FORMAT!r}"
            )
        found = cls(payload)
        if found.sha256 != said:
            raise ForecastFileError(
                "changed",
                f"{name} was changed after it was frozen: it says sha256 {said}, its content has {found.sha256}",
            )
        return found

    @classmethod
    def load(cls, path: str | Path) -> "Forecast":
        """Read and verify a saved forecast. Raises FileNotFoundError, ForecastFileError."""
        return cls.from_json(Path(path).read_text("utf-8"), str(path))


def canonical(value: Any) -> str:
    """JSON with sorted keys, no spaces, floats at 10 significant digits (whole ones as ints)."""

    def rounded(item: Any) -> Any:
        if isinstance(item, Mapping):
            return {key: rounded(part) for key, part in item.items()}
        if isinstance(item, list | tuple):
            return [rounded(part) for part in item]
        if isinstance(item, float):
            short = float(f"{item:.9e}")
            return int(short) if short.is_integer() else short
        return item

    return json.dumps(rounded(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def forecast(fit: ScalingFit, target: Any, regime: Mapping[str, str] | None = None) -> Forecast:
    """Forecast one run, whole curve, given that the recipe transfers.

    target: a ladder.RunSpec, or a table of one run: columns run, flops (spent so far) and, where known, step,
    tokens, progress. Several rows are the grid (progress 1 is added); one row of progress 1 takes the rungs' grid.
    regime: hashes of what the forecast is valid for (recipe, data, evaluation).
    Raises EvalsError, AnalysisError. Beyond 500x the largest FLOPs used it is a point, marked.
    """
    grid, whole = _grid(fit, target)
    notices = list(fit.warnings)
    data = trajectory.curves(fit)
    if data is None:
        notices.append(
            Notice(
                "final_only",
                "warning",
                "the rungs' table has final losses only: no forecast of the way there",
            )
        )
        grid = grid.tail(1)
    else:
        early = grid["progress"] < data.x[0] * (1 - trajectory.NEAR)
        if early.any():
            text = f"no forecast before progress {data.x[0]:.3g}: fewer than two rungs were evaluated that early ({early.sum()} rows)"
            notices.append(Notice("early_rows", "note", text))
        grid = grid[~early]
    if whole["flops"] < fit.final["flops"].min():
        text = f"the target has {whole['flops']:.3g} FLOPs, fewer than every rung ({fit.final['flops'].min():.3g} and up)"
        notices.append(Notice("target_below_rungs", "warning", text))
    elif whole["flops"] < fit.top_flops:
        text = f"the target has {whole['flops']:.3g} FLOPs, the largest rung {fit.top_flops:.3g}: an interpolation"
        notices.append(Notice("target_inside_rungs", "note", text))

    final = fit.predictive({"flops": [whole["flops"]]})[0]
    progress = grid["progress"].to_numpy()
    samples = trajectory.draws(data, final, np.log10(whole["flops"] / fit.top_flops), progress)
    median = np.median(samples, axis=0)
    median[-1] = final.quantile(0.5)
    used = fit.top_flops if data is None else float(fit.evals.rows["flops"].max())
    bands = {}
    if whole["flops"] <= FARTHEST * used:
        bands = {str(level): _band(samples, final, level) for level in LEVELS}
    else:
        text = f"the target is {whole['flops'] / used:.0f}x the largest FLOPs used (over {FARTHEST:.0f}x): a point, no band"
        notices.append(Notice("point_only", "warning", text))

    counts = {name: [None if np.isnan(v) else round(v) for v in grid[name]] for name in ("step", "tokens")}
    payload = {
        "format": FORMAT,
        "condition": TRANSFER,
        "metric": fit.metric,
        "unit": fit.unit,
        "target": {**whole, "times": whole["flops"] / fit.top_flops},
        "law": _law(fit, whole["flops"]),
        "trajectory": None
        if data is None
        else {"grid": data.x.tolist(), "noise": data.noise, "seed": trajectory.SEED},
        "prior": fit.prior,
        "evals": as_rows(fit.evals.rows),
        "grid": {**counts, "progress": progress.tolist(), "median": median.tolist()},
        "bands": bands,
        "regime": dict(regime or {}),
        "notices": [[n.code, n.severity, n.text] for n in notices],
        "versions": {
            "scaling-ladder": ladder.__version__,
            "numpy": np.__version__,
            "scipy": scipy.__version__,
        },
    }
    return Forecast(json.loads(json.dumps(payload, allow_nan=False)))  # plain JSON values, as after a load


def _band(samples: np.ndarray, final: Any, level: float) -> dict[str, list[float]]:
    found = trajectory.band(samples, level)
    found.lo[-1], found.hi[-1] = final.quantile((1 - level) / 2), final.quantile((1 + level) / 2)  # exact
    sim_lo, sim_hi = np.minimum(found.lo, found.sim_lo), np.maximum(found.hi, found.sim_hi)
    return {k: v.tolist() for k, v in zip(SIDES, (found.lo, found.hi, sim_lo, sim_hi), strict=True)}


def _law(fit: ScalingFit, flops: float) -> dict[str, Any]:
    """What a reader needs to redraw and judge the law without refitting it."""
    curve = pd.DataFrame({"flops": np.geomspace(fit.final["flops"].min(), max(flops, fit.top_flops), 33)})
    curve = fit.predict(curve)[["flops", "median", "lo", "hi"]].rename(columns={"lo": "lo90", "hi": "hi90"})
    E = fit.posterior.coefficient("E")
    exponents = {}
    for name in fit.posterior.law.exponents:
        grid, weight = fit.posterior.exponent(name)
        exponents[name] = float(grid @ weight)
    return {
        "name": fit.law,
        "equation": fit.posterior.law.equation,
        "why": fit.why,
        "grade": fit.grade,
        "E": [E.quantile(q) for q in (0.05, 0.5, 0.95)],
        "exponents": exponents,
        "noise": fit.posterior.noise,
        "shares": fit.posterior.variance_shares(pd.DataFrame({"flops": [flops]})),
        "runs": as_rows(fit.frame()),
        "curve": {str(k): [None if np.isnan(v) else v for v in column] for k, column in curve.items()},
    }


def _grid(fit: ScalingFit, target: Any) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Grid of the target (step, tokens, progress; increasing, ending at 1) and the whole run (run, flops and,
    where known, steps, tokens)."""
    if isinstance(target, RunSpec):
        if target.evaluation.unit != fit.unit:
            raise EvalsError(
                "mixed_units", f"the target is evaluated in {target.evaluation.unit}, the rungs in {fit.unit}"
            )
        rows = table(eval_points(target), ("run", "flops", "progress"))
    else:
        rows = table(target, ("run", "flops"))
        if rows["run"].nunique() > 1:
            raise EvalsError(
                "one_target",
                f"the target table has runs {sorted(rows['run'].unique())}: forecast one run at a time",
            )
        if "progress" not in rows:
            if len(rows) > 1:
                raise EvalsError(
                    "progress_missing", f"the target has {len(rows)} rows and no progress column: add it"
                )
            rows["progress"] = 1.0
        if rows["progress"].max() > 1.001:
            raise EvalsError(
                "progress_percent",
                f"the target's progress reaches {rows['progress'].max():g}: at most 1 (is it percent?)",
            )
    if "unit" in rows and set(rows["unit"].dropna()) - {fit.unit}:
        raise EvalsError(
            "mixed_units", f"the target's unit is {rows['unit'].iloc[0]!r}, the fit's {fit.unit!r}"
        )
    rows = rows.sort_values("progress").drop_duplicates("progress").reset_index(drop=True)
    last = rows.iloc[-1]
    whole = {"run": str(last["run"]), "flops": float(last["flops"] / last["progress"])}
    for name, plural in (("step", "steps"), ("tokens", "tokens")):
        if name in rows and not np.isnan(last[name]):
            whole[plural] = round(last[name] / last["progress"])
    progress = rows["progress"].to_numpy()
    if len(rows) == 1 and progress[0] >= 0.999:
        data = trajectory.curves(fit)
        progress = np.ones(1) if data is None else data.x
        rows = pd.DataFrame()
    elif progress[-1] < 0.999:
        progress = np.append(progress, 1.0)
    else:
        progress[-1] = 1.0
    grid = pd.DataFrame({"progress": progress})
    for name, plural in (("step", "steps"), ("tokens", "tokens")):
        known = rows[name].reindex(grid.index) if name in rows else pd.Series(np.nan, grid.index)
        grid[name] = known.fillna(grid["progress"] * whole.get(plural, np.nan))
    return grid, whole
