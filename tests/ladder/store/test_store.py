"""What holds a ladder together: its declaration, its files, its table of evaluations."""

import json
from pathlib import Path

import pytest

from ladder import OptimizerSpec, Rung, Store, accounting
from ladder.store import LeaseHeld, StoreError
from tests.ladder.examples import LADDER, RUN, trained


def test_a_store_gives_back_its_ladder_and_lists_runs_in_order(store):
    assert store.ladder() == LADDER
    assert [run.id for run in store.runs()] == ["d8", "d8-r1", "d8-long", "target"]
    assert store.run("d8-r1").rung == "d8" and store.run("d8-r1").spec.seed == 1000


def test_declaring_the_same_ladder_again_changes_nothing(store):
    before = store.read("ladder.json")
    store.create(LADDER)
    store.create(LADDER.replace(rungs=(LADDER.rungs[0].replace(seeds=2), LADDER.rungs[1])))
    assert store.read("ladder.json") == before


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (LADDER.replace(name="other"), ("'tiny'", "'other'", "--store DIR")),
        (LADDER.replace(target=None), ("only there: target",)),
        (LADDER.replace(rungs=LADDER.rungs[:1]), ("only there: d8-long",)),
        (LADDER.replace(target=LADDER.target.replace(name="big")), ("only here: big", "another target")),
        (
            LADDER.replace(
                rungs=(
                    Rung(
                        name="d8", seeds=2, run=RUN.replace(optimizer=OptimizerSpec(lr=0.01, matrix_lr=0.03))
                    ),
                    LADDER.rungs[1],
                )
            ),
            ("another spec: d8, d8-r1", "optimizer.matrix_lr 0.02 there, 0.03 here"),
        ),
    ],
)
def test_a_store_of_another_ladder_is_refused_with_both_and_a_next_step(store, other, words):
    store.run("d8").begin(RUN, {})
    with pytest.raises(StoreError) as error:
        store.create(other)
    for word in words:
        assert word in str(error.value)
    assert store.ladder() == LADDER


def test_a_ladder_of_which_nothing_came_is_declared_anew(store):
    """What stopped it (no memory, no text) is mended in the file; the store must not be in the way."""
    other = LADDER.replace(rungs=LADDER.rungs[:1])
    with store.lease("ladder run tiny"), pytest.raises(LeaseHeld, match="at work"):
        store.create(other)
    store.create(other)
    assert store.ladder() == other


@pytest.mark.parametrize(
    "name", ["ladder.json", "lease-0001.json", "runs/d8/run.json", "runs/d8/attempts/0001/status.json"]
)
@pytest.mark.parametrize("content", ["{", "[]", '{"format": 1}'])
def test_a_damaged_file_is_named(store, name, content):
    store.run("d8").begin(RUN, {}).finish("stopped")
    store.write(name, content)

    def touch_all():
        store.run("d8").status()
        with store.lease("ladder run tiny"):
            store.run("d8").begin(RUN, {})

    with pytest.raises(StoreError, match=rf"{name} is damaged .* restore it"):
        touch_all()


def test_a_store_that_is_a_file_holds_no_ladder(tmp_path):
    (tmp_path / "file").write_text("text")
    with pytest.raises(StoreError, match="holds no ladder"):
        Store(tmp_path / "file").runs()
    with pytest.raises(StoreError, match="cannot write"):
        Store(tmp_path / "file").create(LADDER)


def test_a_store_of_a_newer_version_says_upgrade(store):
    content = json.loads(store.read("ladder.json"))
    store.write("ladder.json", json.dumps(content | {"format": 2, "ladder": {"unknown": 1}}))
    with pytest.raises(StoreError, match=r"format 2, this one reads up to 1.*upgrade"):
        store.create(LADDER)


def test_a_folder_without_a_ladder_says_what_makes_one(tmp_path):
    with pytest.raises(StoreError, match=r"holds no ladder.*ladder run"):
        Store(tmp_path / "nowhere").runs()


def test_an_unknown_run_names_the_known_ones(store):
    with pytest.raises(StoreError, match="no run 'd9'; it has d8, d8-r1, d8-long, target"):
        store.run("d9")


@pytest.mark.parametrize("url", ["nosuch://bucket/x", "/proc/nowhere/x"])
def test_an_impossible_place_is_one_clear_error(url):
    with pytest.raises(StoreError, match=r"nosuch|cannot write"):
        Store(url).create(LADDER)


def test_a_path_beyond_the_locale_is_said_before_anything_is_trained():
    """As Python reads an umlaut from an ASCII terminal; checkpoints could not be written there."""
    with pytest.raises(StoreError, match=r"the locale cannot say this path.*PYTHONUTF8=1"):
        Store("runs/m\udcc3\udca4rz")


def test_files_are_put_whole_and_read_back(store):
    assert not store.exists("forecast.json")
    store.write("forecast.json", "one")
    store.write("forecast.json", b"two")
    assert store.exists("forecast.json") and store.read("forecast.json") == b"two"
    assert store.path("forecast.json").endswith("/forecast.json")


def test_no_temporary_file_stays(folder):
    trained(folder.run("d8"), 0, 5).finish("finished")
    assert not [path for path in Path(folder.url).rglob(".*")]


def test_evals_are_the_scheduled_evaluations_on_the_axis_of_accounting(store):
    run = store.run("d8")
    life = run.begin(RUN, {})
    life.row({"step": 0, "eval_loss": 6.0})  # before the first update: no point of a loss curve
    life.row({"step": 5, "eval_loss": 4.0})
    life.row({"step": 7, "train_ce": 4.0})
    life.row({"step": 10, "eval_loss": 3.0})
    life.flush()
    points = accounting.eval_points(RUN, "d8")[:2]
    more = {"rung": "d8", "seed": 0, "unit": "nats/token"}
    assert run.evals() == [
        point | more | {"loss": loss} for point, loss in zip(points, (4.0, 3.0), strict=True)
    ]
    assert run.evals()[-1]["progress"] == 0.1


def test_the_table_of_evals_holds_the_runs_that_have_some(store):
    for name in ("d8", "d8-r1"):
        run = store.run(name)
        life = run.begin(run.spec, {})
        life.row({"step": 100, "eval_loss": 3.0})
        life.finish("finished")
    table = store.evals()
    assert list(table["run"]) == ["d8", "d8-r1"] and list(table["rung"]) == ["d8", "d8"]
    assert list(table["seed"]) == [0, 1000] and list(table["progress"]) == [1.0, 1.0]
    assert list(store.evals(names=["d8-r1"])["run"]) == ["d8-r1"]
    assert store.evals(names=["target"]).empty and "loss" in store.evals(names=["target"]).columns
