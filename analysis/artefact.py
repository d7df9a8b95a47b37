"""Forecast: the artefact, a promise about one run frozen as canonical JSON before that run starts.

Everything is in its payload: law, prior, data, grid, bands, regime, versions. `sha256` is over the payload's
canonical JSON with floats at 10 significant digits, so that it survives a save and does not hang on the last
bits of a float; sentences, which may be worded anew, do not enter it. The time of writing stands outside the
payload.
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

from analysis.frame import AnalysisError, Notice
from analysis.promises import FORMAT, LEVELS, SIDES, own_rows, repeated

WORDY = "scaling-ladder forecast 1"  # its sha256 is over the sentences too
FORMATS = (FORMAT, "scaling-ladder forecast 2", WORDY)


class ForecastFileError(AnalysisError):
    """A frozen forecast that cannot be read or is not what was frozen."""


@dataclass(frozen=True)
class Reading:
    """The forecast at one progress: median, pointwise lo, hi, simultaneous sim_lo, sim_hi (loss units)."""

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
        judged = self.payload if self.payload["format"] == WORDY else _facts(self.payload)
        return hashlib.sha256(canonical(judged).encode()).hexdigest()

    def frame(self, levels: Iterable[float] = LEVELS) -> pd.DataFrame:
        """A row a grid point: run, step, tokens, progress, median, and per level (.5, .9, .99) lo90, hi90
        (pointwise), sim_lo90, sim_hi90 (simultaneous). Bands are NaN in a point-only forecast."""
        out = pd.DataFrame({"run": self.run, **self.payload["grid"]})
        for name in ("step", "tokens"):
            out[name] = pd.to_numeric(out[name])
        for level in levels:
            stored = self._band(level) or dict.fromkeys(SIDES, np.nan)
            for side in SIDES:
                out[f"{side}{100 * level:g}"] = stored[side]
        return out

    def at(self, progress: float | None = None, tokens: float | None = None, level: float = 0.9) -> Reading:
        """The forecast at a progress in (0, 1], or at a token count; linear in log progress between grid
        points.

        Raises AnalysisError: before_the_grid (earlier than any rung was evaluated), bad_progress, no_band,
        bad_level.
        """
        x = self._progress(progress, tokens)
        grid = np.array(self.payload["grid"]["progress"])
        if x < grid[0] * (1 - 1e-9):
            text = f"progress {x:.3g} is before the first forecast point {grid[0]:.3g}"
            raise AnalysisError("before_the_grid", text)
        stored = self._band(level)
        if stored is None:
            raise AnalysisError(
                "no_band",
                f"the target is {self.payload['target']['times']:.0f}x the largest run: a point, no band",
            )
        values = {"median": self.payload["grid"]["median"], **stored}
        return Reading(**{k: float(np.interp(np.log(x), np.log(grid), v)) for k, v in values.items()})

    def _progress(self, progress: float | None, tokens: float | None) -> float:
        total = self.payload["target"]["tokens"]
        if progress is not None:
            x = float(progress)
        elif tokens is not None and total is not None:
            x = tokens / total
        else:
            text = "give progress, or tokens where the target's planned tokens are known"
            raise AnalysisError("bad_progress", text)
        if not 0 < x <= 1.001:
            raise AnalysisError(
                "bad_progress", f"progress {x:g} is outside (0, 1]: it is spent / planned tokens"
            )
        return x

    def _band(self, level: float) -> Mapping[str, Any] | None:
        if level not in LEVELS:
            raise AnalysisError(
                "bad_level", f"level {level!r} was not frozen; a forecast has {', '.join(map(str, LEVELS))}"
            )
        return self.payload["bands"].get(str(level))

    def rungs(self) -> pd.DataFrame:
        """The fitted runs: run, rung, flops, loss, trend, residual, z (see ScalingFit.frame)."""
        columns = ["run", "rung", "flops", "loss", "trend", "residual", "z"]
        return pd.DataFrame(self.payload["law"]["runs"], columns=columns)  # z is absent where not computed

    def scaling(self) -> pd.DataFrame:
        """The law from the smallest rung to the target, for a plot: flops, median, lo90, hi90 (pointwise)."""
        return pd.DataFrame(self.payload["law"]["curve"])

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
            f"{head}, {self.payload['condition']}",
            f"{target['times']:.3g}x the FLOPs of the largest finished rung; {law['equation']}, "
            f"{law['why']}; grade {law['grade']}",
            f"{_points(self.payload['grid']['progress'])}; sha256 {self.sha256}",
        ]
        return "\n".join(lines + [str(notice) for notice in self.warnings])

    def recomputed(self) -> "Forecast":
        """The same forecast computed again from what it holds. Raises AnalysisError(older_format)."""
        if self.payload["format"] != FORMAT:
            raise AnalysisError(
                "older_format",
                f"a file of {self.payload['format']!r} holds too little to compute it again; only its "
                "sha256 can be checked",
            )
        return Forecast(repeated(self.payload))

    def update(self, rows: Any, events: Iterable[Mapping[str, Any]] | None = None) -> "Forecast":
        """This forecast conditioned on the target's own evaluations so far, to stand beside the frozen one:
        the judge stays what was frozen.

        rows: step and loss (or eval_loss) of each; those before the forecast's first point, or after an event
        that changes the regime (mixture, context, transport, weight_decay, decay, batch), are left out.
        Raises EvalsError, AnalysisError: nothing_to_update, older_format, no_curves.
        """
        own = own_rows(self.payload, rows, events)
        frozen = self.recomputed().payload  # an older format is refused there
        return Forecast({**repeated(frozen, own), "updates": self.sha256})

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
            known = payload["format"] in FORMATS
            found = cls(payload)
            has = found.sha256 if known else ""
        except (ValueError, KeyError, TypeError):
            raise ForecastFileError(
                "not_a_forecast",
                f"{name} is no frozen forecast: expected JSON with sha256 and payload; "
                "restore it from a copy",
            ) from None
        if not known:
            raise ForecastFileError(
                "not_a_forecast",
                f"{name} has format {payload['format']!r}, this version reads up to {FORMAT!r}",
            )
        if has != said:
            raise ForecastFileError(
                "changed",
                f"{name} was changed after it was frozen: it says sha256 {said}, its content has "
                f"{has}; restore it from a copy",
            )
        return found

    @classmethod
    def load(cls, path: str | Path) -> "Forecast":
        """Read and verify a saved forecast. Raises FileNotFoundError, ForecastFileError."""
        return cls.from_json(Path(path).read_text("utf-8"), str(path))


def _points(progress: list[float]) -> str:
    if len(progress) == 1:
        return "1 point of progress, the end"
    return f"{len(progress)} points of progress from {progress[0]:.3g}"


def _facts(payload: Mapping[str, Any]) -> dict[str, Any]:
    """The payload without its sentences: codes and numbers."""

    def bare(prior: Any) -> Any:
        if not isinstance(prior, Mapping):
            return prior
        return {name: bare(entry) for name, entry in prior.items() if name != "source"}

    return {
        **{name: part for name, part in payload.items() if name != "condition"},
        "law": {name: part for name, part in payload["law"].items() if name != "why"},
        "trajectory": payload["trajectory"]
        and {name: part for name, part in payload["trajectory"].items() if name != "why"},
        "prior": bare(payload["prior"]),
        "notices": [[code, severity] for code, severity, _ in payload["notices"]],
    }


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
