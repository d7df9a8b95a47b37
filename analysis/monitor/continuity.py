"""Detector 8, continuity: what the first rows after a restart say is a restart, not an anomaly."""

import math
from dataclasses import dataclass
from typing import Any

from analysis.monitor.evidence import Evidence, evidence

ROWS = 50  # after a restart
JUMP = 0.005  # log loss: a mean this far off the level before the restart is no noise
SOFTENED = ("spike", "recovery", "drift")


@dataclass
class Continuity:
    """While the first 50 rows after a restart pass, a change is at most a watch. Then the mean of the first
    50 rows past the step that the run had reached is compared with its level there. Sensors (NaN) keep
    their word throughout."""

    left: int = 0  # softened rows still to come
    reached: int = -1  # the step before the restart
    level: float | None = None  # log loss there; None: nothing to compare
    scale: float = 0.0  # sd of a row's log loss
    n: int = 0
    total: float = 0.0  # of log loss over n rows past `reached`

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def begin(self, level: tuple[float, float] | None, reached: int) -> None:
        """level: (log loss, its sd) before the restart, kept when restarts follow each other at once."""
        self.left, self.n, self.total = ROWS, 0, 0.0
        if level:
            (self.level, self.scale), self.reached = level, reached

    def soften(self, found: list[Evidence]) -> list[Evidence]:
        if not self.left:
            return found
        return [
            {**e, "code": "restart_jump", "level": "watch", "text": f"right after a restart: {e['text']}"}
            if e["detector"] in SOFTENED and e["level"] in ("precursor", "runaway")
            else e
            for e in found
        ]

    def update(self, step: int, x: float, rho: float) -> list[Evidence]:
        """x: log loss of the row; rho: its AR(1) coefficient. Answers once, with the last of the rows."""
        self.left = max(self.left - 1, 0)
        if self.level is None or step <= self.reached:
            return []
        self.n, self.total = self.n + 1, self.total + x
        if self.n < ROWS:
            return []
        shift = self.total / self.n - self.level
        self.level = None
        se = self.scale * math.sqrt((1 + rho) / (1 - rho) / ROWS)
        if shift <= max(JUMP, 4 * se):  # below it, a young run has gone on falling
            return []
        text = f"the loss is {100 * math.expm1(shift):+.2f} % from its level before the restart"
        numbers = {"shift": shift, "se": se}
        return [evidence("continuity", "restart_jump", "loss", "watch", ROWS, "rows", numbers, text)]
