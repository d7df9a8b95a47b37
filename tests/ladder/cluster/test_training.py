"""What the driver does about what happens to its runs; nothing is trained, time passes as in life."""

import signal
from pathlib import Path

import pytest

from ladder import Ladder, Resources, SpecError, Store
from ladder.cluster import training
from ladder.cluster.failures import BUDGETS, Budget
from ladder.cluster.training import RunFailed, RunStopped, Training
from ladder.cluster.work import BackendLost, Ended
from ladder.store import notes
from ladder.store.process import this_process
from tests.ladder.cluster.scripted import Scripted, Unreachable, dies, endless, finishes, raises

HASTY = {kind: Budget(budget.tries, 0.0, 0.0) for kind, budget in BUDGETS.items()}


@pytest.fixture
def store(micro: Ladder, tmp_path: Path) -> Store:
    store = Store(tmp_path / "store")
    store.create(micro)
    return store


@pytest.fixture
def launches(micro: Ladder) -> list[training.Launch]:
    return [training.Launch(rung.name, rung.run, rung.resources) for rung in micro.rungs]


def trained(store: Store, backend: Scripted, launches: list, show=lambda launches: None, **more) -> list[str]:
    said: list[str] = []
    queue = Training(store, lambda: backend, said.append, show, **{"budgets": HASTY, **more})
    queue.finish(launches)
    return said


def test_accidents_are_tried_again_and_the_verdicts_are_kept(store: Store, launches: list) -> None:
    def script(job, life):
        yield 10 * life
        yield dies(job) if job.run == "w8" and life <= 3 else next(finishes(job, life))

    backend = Scripted(script)
    said = trained(store, backend, launches)
    assert backend.starts.count("w8") == 4 and backend.starts.count("w16") == 1
    assert store.run("w8").status()["state"] == "finished"
    verdicts = notes.failures(store.files, "w8")
    assert [(v["attempt"], v["kind"], v["step"], v["retry"]) for v in verdicts] == [
        (1, "infrastructure", 10, True),
        (2, "infrastructure", 20, True),
        (3, "infrastructure", 30, True),
    ]
    assert "w8: its worker died (infrastructure 1 of at most 20: tried again in 0 s)" in said


def test_a_user_error_stops_its_run_at_once_and_the_others_finish(store: Store, launches: list) -> None:
    def script(job, life):
        yield raises(job, ValueError("no domain 'words'")) if job.run == "w8" else next(finishes(job, life))

    backend = Scripted(script)
    with pytest.raises(RunFailed, match=r"w8 failed: ValueError: no domain 'words'.*user error") as failed:
        trained(store, backend, launches)
    assert "w16" not in str(failed.value)
    assert backend.starts == ["w8", "w16"] and store.run("w16").status()["state"] == "finished"
    assert store.run("w8").status()["state"] == "failed"


def test_the_same_exception_at_the_same_step_twice_stops(store: Store, launches: list) -> None:
    def script(job, life):
        yield 7
        yield raises(job, RuntimeError(f"bad tensor at 0x{life}"))

    backend = Scripted(script)
    with pytest.raises(RunFailed, match="deterministic: 2 times at step 7"):
        trained(store, backend, launches[:1])
    assert backend.starts == ["w8", "w8"]


def test_fifty_preemptions_then_a_bug(store: Store, launches: list) -> None:
    def script(job, life):
        yield 5
        yield dies(job, preempted=True) if life <= 50 else raises(job, RuntimeError("bug"))

    backend = Scripted(script)
    with pytest.raises(RunFailed, match=r"w8 failed: RuntimeError: bug.*deterministic"):
        trained(store, backend, launches[:1])
    assert len(backend.starts) == 52


def test_a_driver_that_is_started_again_remembers_and_a_person_starts_afresh(
    store: Store, launches: list, micro: Ladder
) -> None:
    def bug(job, life):
        yield 7
        yield raises(job, RuntimeError("bug"))

    class Killed(BaseException):
        pass

    def die_after_the_first(shown):
        if shown[0].state == "queued":
            raise Killed

    with pytest.raises(Killed):
        trained(store, Scripted(bug), launches[:1], show=die_after_the_first)
    assert store.run("w8").status()["state"] == "queued"
    second = Scripted(bug)
    again = [training.Launch(rung.name, rung.run, rung.resources) for rung in micro.rungs[:1]]
    with pytest.raises(RunFailed, match="deterministic"):
        trained(store, second, again)
    assert second.starts == ["w8"]  # one more, not two: the first driver's verdict counted
    third = Scripted(bug)
    with pytest.raises(RunFailed, match="deterministic"):
        trained(store, third, [training.Launch("w8", again[0].spec, again[0].resources)])
    assert third.starts == ["w8", "w8"]


def test_a_run_waits_its_turn_while_another_takes_its_place(store: Store, launches: list) -> None:
    wide = [training.Launch(l.run, l.spec, l.resources.replace(cpus=2)) for l in launches]

    def script(job, life):
        yield dies(job) if job.run == "w8" and life == 1 else next(finishes(job, life))

    backend = Scripted(script)
    patient = HASTY | {"infrastructure": Budget(3, 0.2, 0.2)}
    trained(store, backend, wide, budgets=patient)
    assert backend.starts == ["w8", "w16", "w8"]


def test_a_launch_whose_step_stands_still_is_killed_and_tried_again(store: Store, launches: list) -> None:
    def script(job, life):
        if life == 1:
            yield 1
            while True:
                yield 1
        yield from finishes(job, life)

    backend = Scripted(script)
    said = trained(store, backend, launches[:1], stall_s=0.3)
    assert backend.killed == ["w8"] and backend.starts == ["w8", "w8"]
    assert any("no step for 0 s, killed (infrastructure 1 of" in line for line in said)


def test_a_slow_run_has_the_patience_that_its_own_steps_need(micro: Ladder) -> None:
    launch = training.Launch("w8", micro.rungs[0].run, micro.rungs[0].resources)
    clock = iter([0.0, 500.0, 500.0, 1900.0, 2100.0])  # started; a step; since 1400, 1600 s
    launch_time = training.time
    try:
        training.time = type("Clock", (), {"monotonic": staticmethod(lambda: next(clock))})
        launch.started()
        launch.saw({"step": 1})
        assert launch.stalled_s(600) == 0.0
        assert launch.stalled_s(600) == 1600.0
    finally:
        training.time = launch_time


def test_a_run_that_was_asked_to_stop_is_not_tried_again(store: Store, launches: list) -> None:
    def ask(shown):
        if shown[0].state == "running":
            notes.ask_to_stop(store.files, "w8", 1)

    def script(job, life):
        return endless(job, life) if job.run == "w8" else finishes(job, life)

    with pytest.raises(RunFailed, match=r"^w8 stopped: asked to stop; the same command goes on") as stopped:
        trained(store, Scripted(script), launches, show=ask)
    assert stopped.value.exit_code == 1  # 3 is the monitor's
    assert store.run("w16").status()["state"] == "finished"


def test_a_run_that_the_monitor_stopped_is_told_from_one_that_failed(store: Store, launches: list) -> None:
    def script(job, life):
        if job.run == "w8":
            yield Ended("w8", "stopped", "runaway: too far out", by_monitor=True)
        yield raises(job, ValueError("width must divide"))

    with pytest.raises(RunFailed, match=r"w8 stopped: runaway.*; w16 failed") as failed:
        trained(store, Scripted(script), launches)
    assert failed.value.exit_code == 1
    with pytest.raises(RunStopped, match=r"^w8 stopped: runaway: too far out$") as stopped:
        trained(
            store,
            Scripted(script),
            [training.Launch(launches[0].run, launches[0].spec, launches[0].resources)],
        )
    assert stopped.value.exit_code == 3


def test_a_queued_run_that_was_asked_to_stop_is_not_started_but_later_it_is(
    store: Store, launches: list, micro: Ladder
) -> None:
    wide = [training.Launch(l.run, l.spec, l.resources.replace(cpus=2)) for l in launches]
    backend = Scripted(finishes)
    notes.ask_to_stop(store.files, "w8", 1)  # from before: not meant for this driver
    with pytest.raises(
        RunFailed,
        match=r"^w16 stopped: asked to stop before it was started; the same",
    ):
        trained(store, backend, wide, show=lambda _: notes.ask_to_stop(store.files, "w16", 1))
    assert backend.starts == ["w8"]
    trained(store, backend, [training.Launch(wide[1].run, wide[1].spec, wide[1].resources)])
    assert backend.starts == ["w8", "w16"]


def test_the_driver_leaves_on_request_with_every_run_stopped(
    store: Store, launches: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "LOOK_S", 0.0)

    def ask(_):
        notes.ask_driver_to_leave(store.files, this_process())

    with pytest.raises(RunFailed, match="stopped on request"):
        trained(store, Scripted(endless), launches, show=ask)
    assert [store.run(l.run).status()["state"] for l in launches] == ["stopped", "stopped"]
    assert not notes.driver_asked_to_leave(store.files, this_process())


def test_a_signal_in_the_middle_of_a_start_is_heard_when_the_run_can_be_asked_to_leave(
    store: Store, launches: list
) -> None:
    class Pressed(Scripted):
        def start(self, job):
            signal.raise_signal(signal.SIGINT)
            super().start(job)

    with pytest.raises(KeyboardInterrupt):
        trained(store, Pressed(endless), launches[:1])
    assert store.run("w8").status()["state"] == "stopped"


def test_a_run_that_cannot_be_placed_in_time_is_tried_again(store: Store, launches: list) -> None:
    class Full(Scripted):
        def start(self, job):
            if not self.starts:
                self.starts.append("refused")
                raise TimeoutError("no place within 120 s")
            super().start(job)

    backend = Full(finishes)
    said = trained(store, backend, launches[:1])
    assert backend.starts == ["refused", "w8"]
    assert any("no place within 120 s" in line and "infrastructure" in line for line in said)


def test_a_lost_cluster_is_replaced_and_its_runs_are_tried_again(store: Store, launches: list) -> None:
    class Mortal(Scripted):
        def start(self, job):
            if self.starts:
                raise BackendLost("no node answers")
            super().start(job)

    backends = [Mortal(endless), Scripted(finishes)]
    made, said = iter(backends), []
    Training(store, lambda: next(made), said.append, lambda _: None, HASTY).finish(launches)
    assert [sorted(backend.starts) for backend in backends] == [["w8"], ["w16", "w8"]]
    assert "the cluster is lost (no node answers): starting another" in said
    assert [v["kind"] for v in notes.failures(store.files, "w8")] == ["infrastructure"]


def test_what_a_leftover_has_finished_is_not_started_again(store: Store, launches: list) -> None:
    def script(job, life):
        yield 5
        yield dies(job)  # so it seems; the process goes on

    def finish(shown):
        if shown[0].state == "queued":
            store.write("runs/w8/attempts/0001/status.json", '{"state": "finished", "reason": ""}')

    backend = Scripted(script)
    trained(store, backend, launches[:1], show=finish)
    assert backend.starts == ["w8"] and launches[0].state == "finished"


def test_what_no_local_cluster_has_is_refused_before_one_is_made(store: Store, launches: list) -> None:
    launches[1].resources = Resources(gpus=1)
    with pytest.raises(
        SpecError, match=r"w16 asks for Resources\(gpus=1\), the local cluster has processors"
    ):
        Training(store, Unreachable, lambda _: None, lambda _: None).finish(launches)


def test_a_cluster_that_does_not_start_is_one_line(store: Store, launches: list) -> None:
    queue = Training(store, Unreachable, lambda _: None, lambda _: None)
    with pytest.raises(RunFailed, match=r"^the cluster did not start: ConnectionError: no cluster answers$"):
        queue.finish(launches)


def test_who_does_not_leave_is_killed(store: Store, launches: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "LEAVE_S", 0.1)

    class Deaf(Scripted):
        def stop(self):
            pass

    backend = Deaf(endless)
    with pytest.raises(KeyboardInterrupt):
        trained(store, backend, launches, show=lambda _: signal.raise_signal(signal.SIGINT))
    assert backend.killed == ["w8", "w16"]
