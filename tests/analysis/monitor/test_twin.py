"""The vectorised twin of the clean-row study says what `Monitor` says, row by row."""

import numpy as np
import pytest

from analysis.monitor import Limits, Monitor
from analysis.monitor.drift import BLOCK, Drift
from bench.incidents import Flat
from bench.monitor_twin import drift_alarms, noise, spikes


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_drift_alarms_are_those_of_the_detector(rho):
    rng, rows, limits = np.random.default_rng(int(10 * rho)), 20_000, Limits(drift=3.0)  # low: alarms happen
    x = 0.004 * noise(rng, (2, rows), rho, None)
    x[:, 12_000:] += 0.002
    progress = 0.05 + 0.95 * np.arange(rows) / rows
    found = drift_alarms(x, 0.05, limits)
    assert found.sum() > 0
    for k in range(2):
        detector, alarms = Drift(limits), []
        for step in range(rows):
            seen = detector.update(step, float(x[k, step]), float(progress[step]))
            if seen:
                alarms.append((step, seen[0]["code"]))
                detector.before = float(x[k, step])  # the twin pairs on across an alarm
        up = [step // BLOCK - 1 for step, code in alarms if code == "drift_up"]
        assert up == np.flatnonzero(found[k]).tolist()


def test_spikes_are_those_of_the_monitor():
    x = 0.12 * noise(np.random.default_rng(0), (1, 3000), 0.6, None)[0]  # nothing past 6: windows stay clean
    monitor, seen = Monitor(Flat(10_000, 2.0)), {}
    for step, value in enumerate(x):
        verdict = monitor.update({"step": step, "grad_norm": float(np.exp(value))})
        for e in verdict.evidence:
            if e["code"] == "grad_norm_spike":
                seen[step] = e["numbers"]["z"]
    found = spikes(x, 0.02, 3.0, candidate=1.5)
    assert found and [step for step, z in seen.items() if z > 3] == [step for step, _ in found]
    assert [seen[step] for step, _ in found] == pytest.approx([z for _, z in found])
