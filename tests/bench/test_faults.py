"""What the fault injection would say of a store that did lose something."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.faults.__main__ import Results, kind_of, summary
from bench.faults.comparison import compare
from bench.faults.driving import Progress
from bench.faults.injection import KINDS
from ladder import Store
from tests.ladder.examples import LADDER, trained

LAST = "target"


def made(folder: Path, change: Callable[[list[dict]], list[dict]] = lambda rows: rows) -> Store:
    """The tiny ladder with all its rows, those of its target changed."""
    store = Store(folder)
    store.create(LADDER)
    store.write("wandb/identity", "one")
    for record in store.runs():
        rows = [{"step": step, "train_ce": 1 / step} for step in range(1, record.spec.steps + 1)]
        with record.begin(record.spec, {}) as attempt:
            for row in change(rows) if record.id == LAST else rows:
                attempt.row(row)
    return store


class Shows:
    """A service that has the rows of a store, those of the target changed."""

    def __init__(self, store: Store, change: Callable[[list[dict]], list[dict]] = lambda rows: rows):
        self._runs = {record.id: record.rows() for record in store.runs()}
        self._change = change

    def rows(self, run_id: str) -> list[dict]:
        run = run_id.rpartition("-")[0]
        return self._change(self._runs[run]) if run == LAST else self._runs[run]


def one_other(rows: list[dict]) -> list[dict]:
    return [*rows[:-1], rows[-1] | {"train_ce": 0.5}]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return made(tmp_path_factory.mktemp("stores") / "whole")


@pytest.mark.parametrize(
    "in_store, on_service, found",
    [
        (list, list, (0, 0, [])),
        (lambda rows: rows[:-1], list, (2, 0, [LAST])),  # what the record lacks the service lacks too
        (one_other, list, (0, 0, [LAST])),
        (list, lambda rows: rows[1:], (1, 0, [LAST])),
        (list, lambda rows: [rows[0], *rows], (0, 1, [LAST])),
        (list, one_other, (0, 0, [LAST])),
    ],
)
def test_what_is_lost_doubled_or_changed_is_counted(
    whole: Store, tmp_path: Path, in_store: Callable, on_service: Callable, found: tuple
) -> None:
    store = made(tmp_path / "disturbed", in_store)
    counted = compare(store, whole, Shows(store, on_service))  # pyright: ignore[reportArgumentType]
    assert tuple(counted[name] for name in ("lost_rows", "duplicated_rows", "not_bit_equal")) == found


def test_another_result_is_counted(whole: Store, tmp_path: Path) -> None:
    store = made(tmp_path / "other")
    store.write("result.json", '{"target_loss": 1.0, "wall_s": 2.0}')
    assert compare(store, whole, Shows(store))["not_bit_equal"] == ["result"]  # pyright: ignore[reportArgumentType]


def test_progress_is_that_of_the_newest_attempt_and_the_best_that_of_all(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.create(LADDER)
    run = Progress(Path(store.run("d8").folder))
    assert (run.attempt(), run.best(), run.at_work()) == (0, 0, False)
    trained(store.run("d8"), 0, 30)
    attempt = trained(store.run("d8"), 20, 25)
    assert (run.attempt(), run.step(2), run.best(), run.best(1)) == (2, 25, 30, 30)
    assert run.at_work() and not run.finished()
    attempt.finish("finished")
    assert run.finished() and not run.at_work()


def test_each_kind_has_its_share() -> None:
    kinds = list(KINDS)
    shares = Counter(kind_of(point, kinds) for point in range(6 * len(kinds)))
    assert shares == dict.fromkeys(kinds, 6)
    assert [kind_of(point, kinds) for point in range(len(kinds))] != kinds


def test_a_killed_bench_goes_on_from_its_lines(tmp_path: Path) -> None:
    first = Results(tmp_path / "points.jsonl")
    first.add({"point": 0, "kind": "SIGINT", "resume_s": 8.0, "hung": False, "ladder": 0})
    first.add({"point": 1, "kind": "SIGTERM", "resume_s": None, "hung": True, "ladder": 0})
    first.add({"ladder": 0, "lost_rows": 1, "duplicated_rows": 2, "not_bit_equal": ["w8"], "hung": 0})
    assert summary(Results(tmp_path / "points.jsonl")) == {
        "points": 2,
        "lost_rows": 1,
        "duplicated_rows": 2,
        "not_bit_equal": 1,
        "hung": 1,
        "resume_s_median": 8.0,
        "resume_s_max": 8.0,
    }
