"""Detector 8, continuity: what the first rows after a restart say is a restart, not an anomaly."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analysis.monitor.evidence import Evidence, evidence

ROWS = 50  # after a restart
JUMP = 0.005  # log loss: a mean this far off the level before the restart is no noise
SOFTENED = ("spike", "recovery", "drift")


@dataclass
class Continuity:
    """While the first 50 rows after a restart pass, a change is at most a watch; after them the mean loss is
    compared with the level before. Sensors (NaN) keep their word throughout."""

    attempt: int = -1  # the newest attempt that went past what was judged before
    left: int = 0  # softened rows still to come
    wanted: int = 0  # rows past the last judged step still to come, for the comparison of levels
    n: int = 0
    z: float = 0.0  # sum of the loss z of those
    scale: float = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def begin(self) -> None:
        self.left, self.wanted, self.n, self.z = ROWS, ROWS, 0, 0.0

    def soften(self, found: list[Evidence]) -> list[Evidence]:
        if not self.left:
            return found
        return [
            {**e, "code": "restart_jump", "level": "watch", "text": f"right after a restart: {e['text']}"}
            if e["detector"] in SOFTENED and e["level"] in ("precursor", "runaway")
            else e
            for e in found
        ]

    def update(self, reading: Mapping[str, float] | None, rho: float, rerun: bool) -> list[Evidence]:
        """reading: the spike detector's numbers of a row's loss; rerun: of a step that an older attempt had
        trained, whose level lies behind. Answers once, with the last of the rows."""
        self.left = max(self.left - 1, 0)
        if not self.wanted or rerun:
            return []
        self.wanted -= 1
        if reading:
            self.n, self.z, self.scale = self.n + 1, self.z + reading["z"], reading["scale"]
        if self.wanted or not self.n:
            return []
        shift = self.z / self.n * self.scale
        se = self.scale * math.sqrt((1 + rho) / (1 - rho) / self.n)
        if abs(shift) <= max(JUMP, 3 * se):
            return []
        text = f"the loss is {100 * math.expm1(shift):+.2f} % from its level before the restart"
        numbers = {"shift": shift, "se": se}
        return [evidence("continuity", "restart_jump", "loss", "watch", ROWS, "rows", numbers, text)]
