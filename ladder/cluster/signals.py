"""Ctrl-C, SIGTERM and a closed terminal ask a driver to leave. When they are heard is settled here."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

ASKS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def all_are_ctrl_c() -> Iterator[None]:
    """For a with block each raises KeyboardInterrupt; what is ignored (as under nohup) stays ignored."""
    with _handled(signal.default_int_handler):
        yield


@contextlib.contextmanager
def held_back() -> Iterator[Callable[[], bool]]:
    """Nothing in the with block is interrupted half done: a signal acts when the block has ended.

    Yields a function that says whether one has come. The same one again does not wait: KeyboardInterrupt.
    """
    come: list[int] = []

    def hold(number: int, _: Any) -> None:
        if number in come:
            raise KeyboardInterrupt
        come.append(number)

    with _handled(hold):
        yield lambda: bool(come)
    if come:
        signal.raise_signal(come[0])


@contextlib.contextmanager
def _handled(by: Callable[[int, Any], Any]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach no other
        return
    before = {each: signal.getsignal(each) for each in ASKS}
    mine = {each: old for each, old in before.items() if old not in (signal.SIG_IGN, None)}
    for each in mine:
        signal.signal(each, by)
    try:
        yield
    finally:
        for each, old in mine.items():
            signal.signal(each, old)
