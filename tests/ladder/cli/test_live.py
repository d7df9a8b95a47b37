"""What a log file or a terminal shows while runs train."""

import io
from types import SimpleNamespace

from ladder.cli.live import Live, describe
from ladder.recipe import laptop


def launch(**seen) -> SimpleNamespace:
    return SimpleNamespace(run="d32", spec=laptop(32), state="running", reason="", seen=seen)


def test_a_running_line_says_which_loss_it_shows_and_how_far_off_the_forecast() -> None:
    seen = launch(
        step=975, tokens=1_497_600, tokens_per_s=5e4, train_ce=4.25, eval_loss=2.5, off_forecast=0.012
    )
    assert describe(seen).split("  ") == [
        "step 975/1950",
        "50.0k tok/s",
        "eta 30 s",
        "train 4.250 nats/token",
        "eval 2.500 bits/byte",
        "+1.20% from the forecast",
    ]
    brief = describe(seen, brief=True)
    assert brief == "975/1950 50.0k tok/s eta 30 s eval 2.500 bits/byte +1.20%"
    assert len("d32 " + 12 * "#" + " " + brief) <= 80  # beside a bar


def test_a_change_of_the_monitors_state_is_said_once() -> None:
    stream = io.StringIO()
    with Live(stream) as live:
        watch = ("watch", "above the band")
        for state, reasons in (("normal", ""), watch, watch, ("normal", "")):
            live.show([launch(step=100, state=state, reasons=reasons)])  # type: ignore[list-item]
            live.show([launch()])  # type: ignore[list-item]  # started again, no row yet
    lines = stream.getvalue().splitlines()
    assert [line for line in lines if "at step" in line] == [
        "d32 watch at step 100: above the band",
        "d32 normal at step 100: clean",
    ]
