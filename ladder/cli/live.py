"""Progress of running launches: a bar a run on a terminal, one line a minute in a log."""

import time
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

if TYPE_CHECKING:
    from ladder.cluster.driver import Launch

EVERY_S = 60.0  # between two lines of a run where there is no terminal


class Live:
    """`say` prints a line above the bars; `show` moves them."""

    def __init__(self, stream: TextIO):
        self._console = Console(file=stream, highlight=False)
        self._bars = Progress(
            TextColumn("{task.description}", table_column=Column(min_width=6, no_wrap=True)),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True)),
            console=self._console,
        )
        self._tasks: dict[str, object] = {}
        self._said: dict[str, tuple[str, float]] = {}  # run -> state and time of its last log line
        self._judged: dict[str, str] = {}  # run -> state of its monitor

    def __enter__(self) -> "Live":
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._bars.stop()

    def say(self, text: object) -> None:
        # a terminal's lines break between words; in a file a line stays a line
        self._console.print(str(text), markup=False, soft_wrap=not self._console.is_terminal)

    def show(self, launches: "list[Launch]") -> None:
        for launch in launches:
            self._judge(launch)
            (self._move if self._console.is_terminal else self._log)(launch)

    def _judge(self, launch: "Launch") -> None:
        """Say it when the monitor's state of a watched run changes."""
        state = launch.seen.get("state")
        if state and state != self._judged.get(launch.run, "normal"):
            self._judged[launch.run] = state
            self.say(
                f"{launch.run} {state} at step {launch.seen['step']}: {launch.seen.get('reasons') or 'clean'}"
            )

    def _move(self, launch: "Launch") -> None:
        if launch.run not in self._tasks:
            self._tasks[launch.run] = self._bars.add_task(launch.run, total=launch.spec.steps, text="")
        self._bars.update(
            self._tasks[launch.run],  # type: ignore[arg-type]
            completed=launch.spec.steps if launch.state == "finished" else launch.seen.get("step", 0),
            text=describe(launch, brief=True),
        )

    def _log(self, launch: "Launch") -> None:
        state, since = self._said.get(launch.run, ("queued", 0.0))
        now = time.monotonic()
        if launch.state != state or (launch.state == "running" and now - since >= EVERY_S):
            self._said[launch.run] = (launch.state, now)
            self.say(f"{launch.run:<10} {describe(launch)}")


def describe(launch: "Launch", brief: bool = False) -> str:
    """State of a launch in one line: step, tokens/s, time left, losses.

    brief: what fits beside a bar in 80 columns; the training loss only until there is an evaluation.
    """
    if launch.state != "running":
        return f"{launch.state}{': ' + launch.reason if launch.reason else ''}"
    seen = launch.seen
    if not seen:
        return "starting"
    parts = [f"step {seen['step']}/{launch.spec.steps}"]
    if "tokens_per_s" in seen:
        left = (launch.spec.tokens - seen["tokens"]) / seen["tokens_per_s"]
        parts.append(f"{seen['tokens_per_s'] / 1e3:.1f}k tok/s")
        parts.append(f"eta {left / 60:.0f} min" if left >= 90 else f"eta {left:.0f} s")
    if "train_ce" in seen and not (brief and "eval_loss" in seen):
        parts.append(f"train {seen['train_ce']:.3f} nats/token")
    if "eval_loss" in seen:
        parts.append(f"eval {seen['eval_loss']:.3f} {launch.spec.evaluation.measured_in}")
    if "off_forecast" in seen:
        parts.append(f"{seen['off_forecast']:+.2%}{'' if brief else ' from the forecast'}")
    return " ".join(parts).removeprefix("step ") if brief else "  ".join(parts)
