"""At which numbers the detectors speak.

The defaults are floors for any run. `analysis.monitor.calibration.calibrate` raises them to what the ladder's
own rungs ask for; nothing lowers them.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class Limits:
    """Plain numbers; a JSON round trip through `to_dict` and `from_dict`.

    flag, lone, runaway: robust z of a spike, of a norm that spikes while the loss does not, of a loss that
    runs away. drift: h of the CUSUM, in sds of a block. growth: z of a slope. spike_rate: share of loss rows
    that spike in a healthy run; 5 times it is a precursor. loss_sd, loss_rho: log loss of one row about its
    trend on the target's batch, from the rungs; None until a ladder tells. slopes: metric -> the ladder's
    growth at progress, ((progress, log growth per 1 % of the tokens), ...). routing: metric -> (lowest,
    highest) healthy value; None leaves a side open.
    """

    flag: float = 6.0
    lone: float = 12.0
    runaway: float = 10.0
    drift: float = 12.0
    growth: float = 4.0
    spike_rate: float = 0.002
    loss_sd: float | None = None
    loss_rho: float | None = None
    slopes: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    routing: Mapping[str, tuple[float | None, float | None]] = field(
        default_factory=lambda: {"drop_fraction": (None, 0.07)}  # the public 535B run's own limit
    )

    def to_dict(self) -> dict[str, Any]:
        plain = asdict(self)
        plain["slopes"] = {metric: [list(point) for point in curve] for metric, curve in self.slopes.items()}
        plain["routing"] = {metric: list(limits) for metric, limits in self.routing.items()}
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        slopes = {metric: tuple(tuple(point) for point in curve) for metric, curve in plain["slopes"].items()}
        routing = {metric: tuple(limits) for metric, limits in plain["routing"].items()}
        return cls(**{**plain, "slopes": slopes, "routing": routing})
