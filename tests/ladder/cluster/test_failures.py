"""What a failure is and what follows: on the cases that clusters and people produce."""

import pytest

from ladder.cluster.failures import BUDGETS, Death, Failure, Raised, explain, judge
from ladder.cluster.work import seen_by
from ladder.store import StoreError

KILLED = Death(0, "its worker died: some common causes include: (1) it was killed by the OOM killer")
TAKEN = Death(0, "its node was taken away", preempted=True)
CLOSED = "ValueError: Gloo all-reduce failed: Connection closed by peer [10.0.0.2]:40001"


def raised(error: Exception, rank: int = 0, at: float = 0.0) -> Raised:
    seen = seen_by(error, rank)
    return Raised(rank, at, seen.types, seen.text)


def live(*lives) -> list:
    """Verdicts on one life after another of the same run: (deaths, raised, step, checkpoint)."""
    history, verdicts = [], []
    for life in lives:
        verdict = judge(explain(*life), history)
        history.append(verdict.failure)
        verdicts.append(verdict)
    return verdicts


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("width must divide"), "user error"),
        (ModuleNotFoundError("no module named mine"), "user error"),
        (KeyError("lr"), "user error"),
        (FileNotFoundError("text.txt"), "user error"),
        (ConnectionResetError("by the store"), "infrastructure"),
        (OSError(28, "No space left on device"), "infrastructure"),
        (TimeoutError("the store answers 503"), "infrastructure"),
        (FloatingPointError("train_loss=nan"), "numeric"),
        (RuntimeError("an XLA pass gave up"), "unexplained"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 GB"), "unexplained"),
        (MemoryError(), "unexplained"),
    ],
)
def test_an_exception_of_a_lone_member_is_classed_by_its_type(error: Exception, kind: str) -> None:
    assert explain([], [raised(error)], 3, 0).kind == kind


def test_a_full_disk_is_infrastructure_although_the_store_says_it_in_its_own_words() -> None:
    try:
        raise StoreError("cannot write metrics") from OSError(28, "No space left on device")
    except StoreError as error:
        full = raised(error)
    assert explain([], [full], 3, 0).kind == "infrastructure"
    assert explain([], [raised(StoreError("another fingerprint"))], 3, 0).kind == "user error"


def test_a_dead_member_is_infrastructure_whatever_the_survivors_raise_first() -> None:
    survivors = [raised(ValueError(CLOSED), 1, at=1.0), raised(RuntimeError("UNAVAILABLE"), 2, at=2.0)]
    found = explain([KILLED], survivors, 7, 0)
    assert found.kind == "infrastructure" and found.error == ""


def test_a_real_error_on_one_rank_is_a_user_error_although_its_peers_saw_closed_collectives() -> None:
    """Even when a peer's clock is behind, so that its symptom seems to be the first."""
    rows = [
        raised(RuntimeError("Gloo all-reduce failed: Connection closed by peer"), 1, at=1.0),
        raised(ValueError("row 7 has no text"), 0, at=5.0),
        raised(ValueError(CLOSED), 2, at=6.0),
    ]
    verdict = judge(explain([], rows, 7, 0), [])
    assert verdict.failure.kind == "user error" and not verdict.retry
    assert verdict.reason.startswith("ValueError: row 7 has no text")


def test_of_several_real_errors_the_earliest_decides() -> None:
    both = [raised(TypeError("late"), 0, at=9.0), raised(RuntimeError("early"), 1, at=2.0)]
    assert explain([], both, 7, 0).kind == "unexplained"


def test_a_broken_collective_without_a_death_is_tried_again() -> None:
    verdict = judge(explain([], [raised(ValueError(CLOSED))], 7, 0), [])
    assert verdict.failure.kind == "infrastructure" and verdict.retry
    assert "no member died" in verdict.reason


def test_the_same_error_at_the_same_step_from_the_same_checkpoint_is_deterministic() -> None:
    def bug(address: str):
        return [], [raised(RuntimeError(f"bad tensor at {address}"))], 70, 40

    first, second = live(bug("0x7f01"), bug("0x55aa"))
    assert first.retry and first.failure.kind == "unexplained"
    assert not second.retry and second.failure.kind == "deterministic"
    assert "2 times at step 70 from the same checkpoint (40)" in second.reason


@pytest.mark.parametrize(
    "other",
    [
        ([], [Raised(0, 0.0, ("RuntimeError",), "RuntimeError: bad tensor")], 80, 40),
        ([], [Raised(0, 0.0, ("RuntimeError",), "RuntimeError: bad tensor")], 70, 60),
        ([], [Raised(0, 0.0, ("RuntimeError",), "RuntimeError: another")], 70, 40),
    ],
    ids=["another step", "another checkpoint", "another error"],
)
def test_an_error_that_moves_is_not_deterministic(other: tuple) -> None:
    bug = ([], [Raised(0, 0.0, ("RuntimeError",), "RuntimeError: bad tensor")], 70, 40)
    assert live(bug, other)[1].retry


def test_even_infrastructure_is_deterministic_when_it_comes_with_the_same_error() -> None:
    """A rank that aborts takes its peers' processes with it: the deaths must not hide its error for ever."""
    life = ([Death(1, "its worker died")], [raised(ValueError("row 7 has no text"))], 7, 0)
    first, second = live(life, life)
    assert first.failure.kind == "infrastructure" and first.retry
    assert second.failure.kind == "deterministic" and not second.retry


def test_two_kills_that_look_alike_are_still_accidents_but_five_are_not() -> None:
    verdicts = live(*[([KILLED], [], 10, 0)] * 5)
    assert [verdict.retry for verdict in verdicts] == [True] * 4 + [False]
    assert verdicts[-1].failure.kind == "deterministic"


def test_out_of_memory_twice_stops_even_when_the_system_did_the_killing() -> None:
    killed = Death(0, "its worker died: task was killed due to the node running low on memory")
    assert [verdict.retry for verdict in live(([killed], [], None, None), ([killed], [], None, None))] == [
        True,
        False,
    ]


def test_fifty_preemptions_and_one_bug_still_running_then_stopped_by_the_bug() -> None:
    preempted = ([TAKEN], [], 30, 20)  # all at one step: they never count as deterministic
    bug = ([], [raised(RuntimeError("bad tensor"))], 30, 20)
    verdicts = live(*[preempted] * 50, bug, preempted, bug)
    assert all(verdict.retry for verdict in verdicts[:-1])
    assert verdicts[-1].failure.kind == "deterministic" and not verdicts[-1].retry


def test_kinds_have_their_own_budgets_and_a_new_checkpoint_renews_them() -> None:
    tries = BUDGETS["infrastructure"].tries
    spent = [Failure("infrastructure", "", "", step, 0) for step in range(tries)]
    spent += [Failure("unexplained", "", "x", 3, 0)]
    here, on = (judge(explain([KILLED], [], 99, checkpoint), spent) for checkpoint in (0, 50))
    assert not here.retry and f"{tries + 1} times without a new checkpoint" in here.reason
    assert on.retry


def test_the_wait_doubles_up_to_its_bound() -> None:
    waits = [v.wait_s for v in live(*[([KILLED], [], step, 0) for step in range(9)])]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_diverged_run_is_left_to_a_person() -> None:
    verdict = judge(explain([], [raised(FloatingPointError("step 9: train_loss=nan"))], 9, 0), [])
    assert not verdict.retry and verdict.failure.kind == "numeric"
