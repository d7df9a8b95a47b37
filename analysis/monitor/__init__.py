"""Watch a run against its frozen forecast: detectors, states with hysteresis, a verdict a row."""

from analysis.monitor.evidence import Evidence
from analysis.monitor.limits import Limits
from analysis.monitor.states import STATES, Verdict
from analysis.monitor.watcher import Monitor, declared_events, replay

__all__ = ["STATES", "Evidence", "Limits", "Monitor", "Verdict", "declared_events", "replay"]
