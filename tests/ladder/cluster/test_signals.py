"""When a driver hears that it is asked to leave."""

import signal
import threading

import pytest

from ladder.cluster.signals import ASKS, all_are_ctrl_c, held_back


@pytest.mark.parametrize("number", ASKS)
def test_each_is_ctrl_c_for_a_while_and_then_what_it_was(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), all_are_ctrl_c():
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with all_are_ctrl_c(), held_back() as asked:
            signal.raise_signal(signal.SIGHUP)
            assert not asked()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_one_that_is_held_back_acts_after_the_block() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), all_are_ctrl_c(), held_back() as asked:
        assert not asked()
        signal.raise_signal(signal.SIGTERM)
        assert asked()
        signal.raise_signal(signal.SIGHUP)  # a session that ends sends both
        done.append("all of it")
    assert done == ["all of it"]


def test_the_same_one_again_does_not_wait() -> None:
    with all_are_ctrl_c(), pytest.raises(KeyboardInterrupt), held_back():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_an_inner_block_hands_it_to_the_outer_one() -> None:
    order = []
    with pytest.raises(KeyboardInterrupt), all_are_ctrl_c(), held_back() as asked:
        with held_back():
            signal.raise_signal(signal.SIGINT)
            order.append("inner")
        assert asked()
        order.append("outer")
    assert order == ["inner", "outer"]


def test_what_a_library_made_of_it_within_the_block_is_undone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with held_back():
        signal.signal(signal.SIGTERM, lambda *_: None)  # as ray.init does
    assert signal.getsignal(signal.SIGTERM) is before


def test_beside_the_main_thread_nothing_is_touched() -> None:
    seen = []

    def elsewhere() -> None:
        with all_are_ctrl_c(), held_back() as asked:
            seen.append(asked())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [False]
