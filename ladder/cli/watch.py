"""ladder watch SOURCE --forecast F: judge a run's rows against its frozen forecast, once or as they come."""

import argparse
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.monitor import Monitor, Verdict
    from analysis.monitor.sources import Source

LOOK_S = 5.0
ALARMS = ("precursor", "runaway")
Alarm = dict[str, Any]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        help="a store (with --run), .jsonl, .csv, .parquet or .wandb file, or wandb:[ENTITY/]PROJECT/RUN",
    )
    parser.add_argument("--forecast", required=True, metavar="F", help="a frozen forecast (JSON)")
    parser.add_argument("--run", metavar="RUN", help="of a store; without it the forecast's own run")
    parser.add_argument(
        "--column", action="append", default=[], metavar="OURS=THEIRS", help="e.g. train_loss=train/loss"
    )
    parser.add_argument("--once", action="store_true", help="judge what is there, and leave")
    parser.add_argument("--json", action="store_true", help="one line of JSON a look and an alarm")
    parser.add_argument("--every", type=float, default=LOOK_S, metavar="S", help="seconds between looks")
    parser.add_argument("--state", metavar="FILE", help="remembers which alarms were given (F.watch.json)")
    parser.add_argument("--webhook", metavar="URL", help="alarms are POSTed there as JSON")
    parser.add_argument("--command", metavar="CMD", help="is run for each alarm, its JSON on standard input")


def main(options: argparse.Namespace) -> int:
    """Exit code 3 when the last state is precursor or runaway."""
    from analysis import Forecast, Monitor
    from analysis.monitor.sources import Stitch, renamed

    promise = Forecast.load(options.forecast)
    source, monitor, stitch = opened(options.source, options.run or promise.run), Monitor(promise), Stitch()
    given = Given(Path(options.state or f"{options.forecast}.watch.json"), promise.sha256, source.name)
    columns = dict(reversed(pair.split("=", 1)) for pair in options.column)
    state, verdict = "normal", None
    try:
        while True:
            over = options.once or source.ended  # asked first: the look then sees the end
            entries = [renamed(entry, columns) for entry in source.new()]
            for event in (entry for entry in entries if "kind" in entry):
                monitor.register(event)
            rows = stitch.add(entry for entry in entries if "kind" not in entry)
            for row in rows + (stitch.flush() if over else []):
                verdict = monitor.update(row)
                if verdict.state != state:
                    state = verdict.state
                    announce(verdict, source.name, given, options)
            if verdict and (rows or over):
                show(monitor, verdict, options.json)
            given.retry(deliveries(options))
            if over:
                break
            time.sleep(options.every)
    except KeyboardInterrupt:
        pass  # the way to leave; the run goes on
    if verdict is None:
        print(f"ladder watch: {source.name} has no rows yet", file=sys.stderr)
    return 3 if state in ALARMS else 0


def opened(source: str, run: str) -> "Source":
    """The source that a name stands for."""
    from analysis.monitor.sources import JsonLines, StoreRun, Table
    from ladder.cli.wandb_rows import WandbFile, WandbRun

    if source.startswith("wandb:"):
        return WandbRun(source.removeprefix("wandb:"))
    kinds: dict[str, Callable[[str], Source]] = {
        ".jsonl": JsonLines, ".csv": Table, ".parquet": Table, ".wandb": WandbFile,
    }  # fmt: skip
    kind = kinds.get(Path(source).suffix)
    return kind(source) if kind else StoreRun(source, run)


class Given:
    """Which alarms each way has been told of. Rows are read anew after a restart, and give the same alarms;
    an alarm is written down once it is delivered, so none is lost and none is repeated."""

    def __init__(self, path: Path, forecast: str, source: str):
        self._path, self._of = path, {"forecast": forecast, "source": source}
        stored = json.loads(path.read_text("utf-8")) if path.exists() else {}
        same = {key: stored.get(key) for key in self._of} == self._of
        self._told: dict[str, list[str]] = stored["told"] if same else {}
        self._open: list[Alarm] = []

    def new(self, alarm: Alarm) -> None:
        self._open.append(alarm)

    def retry(self, ways: dict[str, Callable[[Alarm], None]]) -> None:
        """Deliver what is open; a way that fails is tried again at the next look."""
        failed = []
        for alarm in self._open:
            for name, deliver in ways.items():
                told = self._told.setdefault(name, [])
                key = f"{alarm['state']}@{alarm['step']}"
                if key in told:
                    continue
                try:
                    deliver(alarm)
                except (OSError, subprocess.SubprocessError) as error:
                    print(f"warning: {name} did not take the alarm ({error}); tried again", file=sys.stderr)
                    failed.append(alarm)
                else:
                    told.append(key)
                    self._save()
        self._open = [alarm for k, alarm in enumerate(failed) if alarm not in failed[:k]]

    def _save(self) -> None:
        from analysis.monitor.sources import save

        save(self._path, {**self._of, "told": self._told})


def announce(verdict: "Verdict", source: str, given: Given, options: argparse.Namespace) -> None:
    """A change of state is a line; to precursor or runaway it is an alarm for every way too."""
    if verdict.state in ALARMS:
        given.new(
            {
                "source": source,
                "step": verdict.step,
                "state": verdict.state,
                "reasons": list(verdict.reasons),
                "action": verdict.action,
                "next_step": verdict.next_step,
            }
        )
    elif not options.json:
        print(verdict.summary(), flush=True)


def deliveries(options: argparse.Namespace) -> dict[str, Callable[[Alarm], None]]:
    def stdout(alarm: Alarm) -> None:
        line = f"ALARM step {alarm['step']}: {alarm['state']} ({'; '.join(alarm['reasons'])}). "
        print(
            json.dumps({"alarm": alarm}) if options.json else line + f"Next: {alarm['next_step']}.",
            flush=True,
        )

    def webhook(alarm: Alarm) -> None:
        head = {"Content-Type": "application/json"}
        asked = urllib.request.Request(options.webhook, json.dumps(alarm).encode(), head, method="POST")
        with urllib.request.urlopen(asked, timeout=10):
            pass

    def command(alarm: Alarm) -> None:
        text = json.dumps(alarm)
        subprocess.run(options.command, shell=True, input=text, text=True, timeout=60, check=True)

    ways: dict[str, Callable[[Alarm], None]] = {"stdout": stdout}
    if options.webhook:
        ways["webhook"] = webhook
    if options.command:
        ways["command"] = command
    return ways


def show(monitor: "Monitor", verdict: "Verdict", as_json: bool) -> None:
    """Where the run stands: state, step, share of the run, the last evaluation's place in the band."""
    recent = monitor.level.last
    line = {"step": verdict.step, "state": verdict.state, "reasons": list(verdict.reasons)}
    if recent:
        line |= {"percent_from_forecast": recent["percent"], "progress": recent["progress"]}
    if as_json:
        print(json.dumps(line | {"next_step": verdict.next_step}), flush=True)
        return
    place = ""
    if recent:
        place = (
            f"  {recent['percent']:+.2f} % from the forecast at {100 * recent['progress']:.1f} % of the run"
        )
        if "lo90" in recent:
            place += f", 90 % band {recent['lo90']:.4f} to {recent['hi90']:.4f}"
    print(f"step {verdict.step}  {verdict.state}{place}", flush=True)
