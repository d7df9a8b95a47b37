"""The page's sentences, derived from its data: the headline, and what is still missing."""

from typing import Any

SWEEP = "A sweep: the ladder declares no target, so nothing is forecast."
TONES = {"normal": "calm", "watch": "watch", "precursor": "alarm", "runaway": "alarm"}


def monitor_state(data: dict[str, Any]) -> str | None:
    """The target's last recorded state; None until it is watched (it has rows and there is a forecast)."""
    target = next((run for run in data["runs"] if run["role"] == "target"), None)
    if data["forecast"] is None or target is None or target["step"] is None:
        return None
    states = [event["state"] for event in data["events"] if event["run"] == target["run"] and event["state"]]
    return states[-1] if states else "normal"


def stopping_gate(data: dict[str, Any]) -> dict[str, Any] | None:
    """The gated rung that landed outside its band and was not overruled, if there is one."""
    outside = (gate for gate in data["gates"] if gate["word"] in ("above", "below") and not gate["overruled"])
    return next(outside, None)


def headline(data: dict[str, Any]) -> dict[str, Any]:
    """title (a sentence), detail (its numbers), tone (calm, missed, watch, alarm, waiting), state."""
    state = monitor_state(data)
    title, detail, tone = _verdict(data) if data["target"] else _waiting(data)
    if state and TONES[state] != "calm":
        tone = TONES[state]
    if tone == "alarm" and data["target"] and not data["target"]["finished"]:
        run = next(run for run in data["runs"] if run["role"] == "target")
        title = f"{str(state).capitalize()}: {run['run']} at step {run['step']:,}."
    return {"title": title, "detail": detail, "tone": tone, "state": state}


def _verdict(data: dict[str, Any]) -> tuple[str, str, str]:
    target, unit = data["target"], data["unit"]
    run, side = target["run"], "above" if target["percent"] > 0 else "below"
    distance = f"{abs(target['percent']):.2f} % {side} the forecast"
    where = "" if target["finished"] else f"at {100 * target['progress']:.0f} % "
    if target["inside"] is None:
        title = f"{run} {'ended' if target['finished'] else 'is'} {where}{distance}, which has no band."
        tone = "waiting"
    elif target["finished"]:
        verdict = "landed inside" if target["inside"] else f"landed {side}"
        title, tone = f"{run} {verdict} its 90 % band.", "calm" if target["inside"] else "missed"
    else:
        verdict = "inside" if target["inside"] else side
        title, tone = (
            f"{run} is {verdict} its 90 % band {where}of the run.",
            "calm" if target["inside"] else "missed",
        )
    detail = f"Loss {target['loss']:.4f} {unit}, {distance} of {target['median']:.4f}"
    if target["inside"] is not None:
        half = 50 * (target["hi90"] - target["lo90"]) / target["median"]
        detail += f"; 90 % band {target['lo90']:.4f} to {target['hi90']:.4f} (±{half:.1f} %)"
    return title, detail + ".", tone


def _waiting(data: dict[str, Any]) -> tuple[str, str, str]:
    forecast, unit = data["forecast"], data["unit"]
    rungs = [run for run in data["runs"] if run["role"] != "target"]
    target = next((run for run in data["runs"] if run["role"] == "target"), None)
    done = sum(run["finished"] for run in rungs)
    if stopped := stopping_gate(data):
        side = (
            f"{abs(100 * (stopped['loss'] / stopped['median'] - 1)):.2f} % {stopped['word']} its prediction"
        )
        band = f"{100 * stopped['level']:g} % band {stopped['lo']:.4f} to {stopped['hi']:.4f}"
        detail = f"Loss {stopped['loss']:.4f} {unit}, {side} of {stopped['median']:.4f}; {band}."
        return f"Stopped by the gate: {stopped['rung']} landed {stopped['word']} its band.", detail, "missed"
    if forecast and target:
        final = f"{forecast['median']:.4f} {unit}"
        title = f"{target['run']} is forecast to end at {final}."
        detail = "No band: the target is too far beyond the rungs"
        if forecast["lo90"] is not None:
            half = forecast["half_width_percent"]
            detail = f"90 % band {forecast['lo90']:.4f} to {forecast['hi90']:.4f} (±{half:.1f} %)"
        begun = "has no evaluation yet" if target["step"] is not None else "has not started"
        return title, f"{detail}; {target['run']} {begun}.", "waiting"
    if not any(run["step"] is not None for run in data["runs"]):
        return "Nothing has run yet.", f"{len(data['runs'])} runs are declared.", "waiting"
    if target is None:
        title = f"All {done} runs" if done == len(rungs) else f"{done} of {len(rungs)} runs"
        return f"{title} have finished.", SWEEP, "waiting"
    if done == len(rungs):
        return f"All {done} rung runs have finished.", "No forecast has been frozen.", "waiting"
    return (
        f"{done} of {len(rungs)} rung runs have finished.",
        "The forecast is frozen when all have.",
        "waiting",
    )


def missing(data: dict[str, Any], problem: str, doubt: str) -> list[str]:
    """What the page cannot show yet, and what it waits for. problem, doubt: why the forecast and the gates
    cannot be used, if so."""
    found = [f"The forecast cannot be used: {problem}."] if problem else []
    found += [f"The gates cannot be used: {doubt}."] if doubt else []
    if stopped := stopping_gate(data):
        found.append(f"The gate of {stopped['rung']} stopped the ladder; `ladder run --no-gate` goes on.")
    for run in data["runs"]:
        if run["state"] in ("failed", "stopped"):
            found.append(f"{run['run']} {run['state']}{': ' + run['reason'] if run['reason'] else ''}.")
    rungs = [run for run in data["runs"] if run["role"] != "target"]
    open_ = [run["run"] for run in rungs if not run["finished"]]
    if open_:
        found.append(f"Unfinished rungs: {', '.join(open_)}.")
    target = next((run for run in data["runs"] if run["role"] == "target"), None)
    if data["forecast"] is None and target and not problem:
        found.append("No forecast is frozen yet: no law, no bands, no residuals.")
    if target is None:
        found.append(SWEEP)
    elif target["step"] is None:
        found.append(f"The target {target['run']} has not started.")
    elif not target["finished"]:
        found.append(f"The target {target['run']} is at step {target['step']:,} of {target['steps']:,}.")
    return found
