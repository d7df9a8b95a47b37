"""The live check, measured: python -m bench.monitor [--steps N] [--seeds K] [--marin FOLDER]

1. Public incidents replayed (bench.incidents), K seeds each: held when the verdict is right in 95 % of them.
2. False alarms, precursor or worse, on N clean steps at each rho: rows of runs of 10^5 steps from 5 % of
   progress on, three streams, through the vectorised twin; the exact Poisson interval's 95 % upper end.
3. Delays on rows like those of a 390,251-step run (sd .4 %, rho .3).
4. With --marin, the public 535B run's first quarter against the forecast from its four rungs (a folder with
   evals.csv, events.csv and target_first_quarter.csv).
5. Microseconds a step, and the size of the state.

The last line is JSON.
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import chi2

from analysis.monitor import Monitor, replay
from analysis.monitor.drift import BLOCK
from bench.incidents import INCIDENTS, MARIN_SD, Flat, Rows, ar1, put, scale, trace, watch
from bench.monitor_twin import drift_alarms, noise, spike_alarms

RUN = 390_251  # steps of the public 535B run
TWIN_ROWS, START = 100_000, 0.05
RHOS = (0.0, 0.3, 0.6, 0.9)


def incidents(seeds: int) -> tuple[int, int]:
    """(incidents held, incidents)."""
    held = 0
    for incident in INCIDENTS:
        seen = [watch(incident, seed) for seed in range(seeds)]
        right = sum(incident.judge(each) for each in seen)
        held += right >= 0.95 * seeds
        worst = max(seen, key=lambda s: ("normal", "watch", "precursor", "runaway").index(s.worst)).worst
        when = [each.first("precursor", "runaway") for each in seen]
        at = f"precursor or worse at {min(when):.0f}-{max(when):.0f}" if max(when) < math.inf else ""
        print(
            f"{incident.name:24} {right:3}/{seeds}  {worst:10} {at:38} wanted: {incident.wanted}", flush=True
        )
    return held, len(INCIDENTS)


def upper(alarms: int) -> float:
    """Upper end of the exact 95 % Poisson interval."""
    return float(chi2.ppf(0.975, 2 * (alarms + 1)) / 2)


def false_alarms(steps: int, rho: float, tails: float | None = None) -> dict:
    """Alarms of precursor or worse on clean rows."""
    rng = np.random.default_rng([int(100 * rho), int(tails or 0)])
    drifts = spiking = done = 0
    while done < steps:
        loss = MARIN_SD * noise(rng, (10, TWIN_ROWS), rho, tails)
        drifts += int(drift_alarms(loss, START).sum())
        for one in loss:
            grad, update = 0.12 * noise(rng, (2, TWIN_ROWS), rho, tails)
            spiking += spike_alarms({"loss": one, "grad_norm": grad, "update_norm": update})
        done += loss.size
    total = drifts + spiking
    return {"steps": done, "drift": drifts, "spike": spiking, "upper_per_1e6": 1e6 * upper(total) / done}


def delayed(seed: int, rho: float, disturb, eager: bool = False) -> tuple[float, set[str]]:
    """Rows until the first word after row 8,000 of a clean run at 30 % of progress, and its codes."""
    rng = np.random.default_rng(seed)
    rows = trace(rng, 117_000, 129_000, 2.0, 0.3, MARIN_SD)
    for row, e in zip(rows, ar1(rng, len(rows), rho, MARIN_SD), strict=True):
        row["train_ce"] = 2.0 * math.exp(e)
    at = 125_000
    disturb(rows, at)
    monitor = Monitor(Flat(RUN, 2.0))  # type: ignore[arg-type]
    for row in rows:
        verdict = monitor.update(row)
        if row["step"] >= at and verdict.state in (("watch",) if eager else ()) + ("precursor", "runaway"):
            return row["step"] - at + 1, {e["code"] for e in verdict.evidence if e["level"] != "normal"}
    return math.inf, set()


def stale(rows: Rows, at: int) -> None:
    put(rows, at, grad_norm=[0.3] * 50)


def nan(rows: Rows, at: int) -> None:
    put(rows, at, train_ce=[math.nan])


def spike(rows: Rows, at: int) -> None:
    put(rows, at, grad_norm=[10.0])


def shift(log_loss: float):
    def disturb(rows: Rows, at: int) -> None:
        scale(rows, "train_ce", np.full(4000, math.exp(log_loss)), at)

    return disturb


def delays(seeds: int) -> tuple[float, float]:
    """(median blocks to a 1-sd drift at rho .6, median % of tokens to a .3 % shift)."""
    cases = {
        "spike of the gradient norm": (0.3, spike, False),
        "NaN": (0.3, nan, False),
        "stale gradient norm": (0.3, stale, True),
        **{f"1-sd shift, rho {rho}": (rho, shift(MARIN_SD), False) for rho in RHOS},
        ".3 % shift": (0.3, shift(0.003), False),
    }
    medians = {}
    for name, (rho, disturb, eager) in cases.items():
        rows = [delayed(seed, rho, disturb, eager)[0] for seed in range(seeds)]
        medians[name] = float(np.median(rows))
        print(f"{name:28} median {medians[name]:6.0f} rows, worst {max(rows):6.0f}", flush=True)
    return medians["1-sd shift, rho 0.6"] / BLOCK, 100 * medians[".3 % shift"] / RUN


def marin(folder: Path) -> None:
    """State over the first quarter, with the events that were registered."""
    import analysis

    fitted = analysis.fit(pd.read_csv(folder / "evals.csv"))
    seen = pd.read_csv(folder / "target_first_quarter.csv")
    end = seen.iloc[-1]
    points = seen[["run", "step", "progress", "tokens", "flops", "params_active"]].copy()
    last = points.iloc[-1].copy()
    for name in ("step", "tokens", "flops"):
        last[name] = round(last[name] / end["progress"])
    last["progress"] = 1.0
    promise = analysis.forecast(fitted, pd.concat([points, last.to_frame().T], ignore_index=True))
    if promise.point_only:
        print("the forecast is a point without a band: positions only, and no verdict on the level")
    events = pd.read_csv(folder / "events.csv").to_dict("records")
    rows = seen.rename(columns={"loss": "eval_loss"})[["step", "tokens", "progress", "eval_loss"]]
    states = replay(promise, rows, events)
    states["progress"] = seen["progress"]
    for _, row in states.iterrows():
        print(
            f"{row['step']:7.0f} {row['progress']:.3f} {row['state']:10} {row['percent']:+.2f} %  "
            f"{row['reasons']}"
        )


def cost(steps: int = 20_000) -> tuple[float, int]:
    """(microseconds a step, bytes of state)."""
    rows = trace(np.random.default_rng(0), RUN // 2, RUN // 2 + steps, 2.0, 0.3, MARIN_SD)
    monitor = Monitor(Flat(RUN, 2.0))  # type: ignore[arg-type]
    began = time.process_time()
    for row in rows:
        monitor.update(row)
    return 1e6 * (time.process_time() - began) / steps, len(json.dumps(monitor.state_dict()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=10**7, help="clean steps at each rho")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--marin", type=Path)
    options = parser.parse_args()
    worst = 0.0
    for rho, tails in [*((rho, None) for rho in RHOS), (0.3, 4.0)]:
        found = false_alarms(options.steps, rho, tails)
        print(f"clean rows, rho {rho}{', t4 tails' if tails else ''}: {found}", flush=True)
        worst = worst if tails else max(worst, found["upper_per_1e6"])
    held, total = incidents(options.seeds)
    drift_blocks, shift_percent = delays(options.seeds)
    if options.marin:
        marin(options.marin)
    us, size = cost()
    print(f"{us:.1f} us a step of processor time, {size} bytes of state")
    result = {
        "incidents": total,
        "incidents_ok": held,
        "false_alarms_per_1e6": worst,
        "drift_blocks": drift_blocks,
        "shift_tokens_percent": shift_percent,
        "us_per_step": us,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
