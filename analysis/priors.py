"""The prior: P0 (priors.json, each entry with its source), a caller's changes to it, and its grids."""

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import numpy as np

from analysis.frame import AnalysisError
from analysis.laws import Law


def load_prior(changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Prior P0 (priors.json, with a source per entry), with `changes` laid over it, entry by entry.

    changes: e.g. {"E": {"mean": 1.5, "sd": .25}} (in the loss's own unit) or {"g": {"sd": .09}}.
    Raises AnalysisError(bad_prior).
    """
    prior = json.loads(files("analysis").joinpath("priors.json").read_text("utf-8"))
    if not changes:
        return prior
    if not isinstance(changes, Mapping):
        raise _bad(f"is {changes!r:.60}: give changes by entry, such as {{'E': {{'mean': 1.5, 'sd': 0.25}}}}")
    named = {name: change for name, change in changes.items() if name != "version"}
    prior["version"] = str(changes.get("version", f"{prior['version']}, changed: {', '.join(sorted(named))}"))
    for name, change in named.items():
        if name not in prior:
            raise _bad(f"has no entry {name!r}; it has {', '.join(prior)}")
        if not isinstance(change, Mapping):
            raise _bad(f"{name} is {change!r:.60}: give its fields, such as {prior[name]}")
        if name != "E":
            prior[name] |= change
        elif {"mean", "sd"} <= set(change):  # one floor, whatever the unit
            floor = {"scale": 1, "source": "given by the caller", **change}
            prior[name] = {unit: floor for unit in prior[name]}
        elif set(change) <= set(prior[name]):
            prior[name] |= {unit: prior[name][unit] | dict(entry) for unit, entry in change.items()}
        else:
            raise _bad(f"E needs mean and sd, or changes by unit: {', '.join(prior[name])}")
    plain = [(name, entry) for name, entry in prior.items() if name != "version" and "mean" in entry]
    for name, entry in plain + [(f"E ({unit})", entry) for unit, entry in prior["E"].items()]:
        if not np.isfinite([entry["mean"], entry["sd"]]).all() or entry["sd"] <= 0:
            raise _bad(f"{name}: mean {entry['mean']}, sd {entry['sd']}: both finite, and sd above zero")
    return prior


def _bad(text: str) -> AnalysisError:
    return AnalysisError("bad_prior", f"prior {text}")


def widened(prior: Mapping[str, Any], factor: float = 2.0) -> dict[str, Any]:
    """The same prior with the sd of every coefficient and exponent times `factor`."""
    wide = {
        k: {**v, "sd": v["sd"] * factor} if isinstance(v, Mapping) and "sd" in v else v
        for k, v in prior.items()
    }
    wide["E"] = {unit: {**entry, "sd": entry["sd"] * factor} for unit, entry in prior["E"].items()}
    return wide


def coefficient_prior(
    law: Law, prior: Mapping[str, Any], unit: str, loss: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of each coefficient in loss units. (P,), (P,)"""
    scales = {1: 1.0, "lowest_loss": float(loss.min()), "max_loss/3": float(loss.max()) / 3}
    entries = [prior["E"][unit] if name == "E" else prior[name] for name in law.coefficients]
    factor = np.array([scales[entry["scale"]] for entry in entries])
    return factor * [entry["mean"] for entry in entries], factor * [entry["sd"] for entry in entries]


def exponent_grid(law: Law, prior: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    grids = [prior[name]["grid"] for name in law.exponents]
    axes = [np.linspace(low, high, int(count)) for low, high, count in grids]
    logs = [
        -0.5 * ((x - prior[n]["mean"]) / prior[n]["sd"]) ** 2
        for n, x in zip(law.exponents, axes, strict=True)
    ]
    theta = np.stack([mesh.ravel() for mesh in np.meshgrid(*axes, indexing="ij")], axis=-1)
    return theta, np.sum([mesh.ravel() for mesh in np.meshgrid(*logs, indexing="ij")], axis=0)


def noise_grid(entry: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Log-spaced s and the log density of log s under s^2 ~ scaled-inverse-chi2(nu, scale^2)."""
    low, high, count = entry["grid"]
    s = np.geomspace(low, high, int(count))
    return s, -entry["nu"] * np.log(s) - 0.5 * entry["nu"] * (entry["scale"] / s) ** 2
