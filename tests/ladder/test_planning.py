"""The table before money is spent: its numbers, its warnings, what it refuses, how it reads."""

import math

import pytest

from ladder import EvalSpec, Gate, Ladder, ParallelSpec, Resources, Rung, numerals, plan, planning
from ladder.accounting import active_parameters, parameters, scaling_flops
from ladder.recipe import laptop
from tests.ladder.examples import LADDER, RUN


@pytest.fixture
def machine(monkeypatch):
    """Two processors of 50 GFLOP/s and 8 GB."""
    monkeypatch.setattr(planning, "measure_gemm_rate", lambda: 50e9)
    monkeypatch.setattr(planning, "machine_memory", lambda: 8_000_000_000)
    monkeypatch.setattr(planning.os, "sched_getaffinity", lambda _: {0, 1})


def laptop_ladder(*widths, target=72, **resources):
    rungs = tuple(
        Rung(name=f"d{width}", run=laptop(width), resources=Resources(**resources)) for width in widths
    )
    return Ladder(name="laptop", rungs=rungs, target=Rung(name="d72", run=laptop(target)))


def test_a_row_a_run_with_the_numbers_of_accounting(machine):
    frame = plan(LADDER).frame()
    assert list(frame["run"]) == ["d8", "d8-r1", "d8-long", "target"]
    assert list(frame["rung"]) == ["d8", "d8", "d8-long", "target"]
    assert list(frame["role"]) == ["rung", "rung", "rung", "target"]
    assert (frame["params_total"] == parameters(RUN.model).total).all()
    assert (frame["params_active"] == active_parameters(RUN)).all()
    assert list(frame["tokens"]) == [3200, 3200, 6400, 12800]
    assert list(frame["flops"]) == [n * scaling_flops(RUN) for n in (1, 1, 2, 4)]
    assert list(frame["flops_of_target"]) == [0.25, 0.25, 0.5, 1.0]
    assert list(frame["tokens_per_active"]) == [tokens / active_parameters(RUN) for tokens in frame["tokens"]]
    assert (frame["peak_lr"] == 0.01).all() and (frame["peak_matrix_lr"] == 0.02).all()
    assert (frame["seconds"] > 0).all() and (frame["memory_bytes"] > 0).all()


def test_without_calibration_or_target_the_unknown_is_missing(machine):
    planned = plan(LADDER.replace(target=None), calibrate=False)
    assert planned.seconds is None and planned.frame()["seconds"].isna().all()
    assert planned.frame()["flops_of_target"].isna().all()
    assert "-" in str(planned) and "nan" not in str(planned) and "None" not in str(planned)


def test_time_grows_with_work_and_falls_with_processors(machine):
    one, two = plan(laptop_ladder(32, 40)).runs[:2], plan(laptop_ladder(32, 40, cpus=2)).runs[:2]
    assert one[1].seconds > one[0].seconds > two[0].seconds
    work = [planning.seconds(laptop(32), Resources(), rate) - planning.START_S for rate in (25e9, 50e9)]
    assert work[0] == pytest.approx(2 * work[1])


def test_evaluations_take_time_and_a_counted_head_takes_none(machine):
    run = laptop(32)
    often = run.replace(evaluation=run.evaluation.replace(every=0.01))
    assert planning.seconds(often, Resources(), 50e9) > planning.seconds(run, Resources(), 50e9)
    uncounted = run.replace(count_lm_head=False)
    assert planning.seconds(uncounted, Resources(), 50e9) == planning.seconds(run, Resources(), 50e9)


def test_the_measured_steps_are_met(monkeypatch):
    """Milliseconds of processor time a step, as measured beside a GEMM of 129 GFLOP/s (see planning.py)."""
    monkeypatch.setattr(planning, "START_S", 0.0)
    for width, measured in ((32, 37), (48, 70), (72, 257), (88, 511)):
        run = laptop(width).replace(evaluation=EvalSpec(every=1.0, rows=1, loss_per="byte", unit="other"))
        predicted = 1e3 * planning.seconds(run, Resources(), 129e9) / run.steps
        assert predicted == pytest.approx(measured, rel=0.2)


def test_devices_of_one_host_share_its_memory_and_accelerators_do_not():
    def own(data, **resources):
        run = laptop(72).replace(parallel=ParallelSpec(data=data, micro_batch_rows=4))
        return planning.memory_bytes(run, Resources(**resources))

    one = own(1) - planning.PROCESS_BYTES
    assert own(2) - planning.PROCESS_BYTES == 2 * one
    assert own(2, hosts=2) - planning.PROCESS_BYTES == one
    assert own(2, gpus=2) == one > 16 * parameters(laptop(72).model).total


def test_the_ladder_takes_what_its_queue_takes(machine):
    planned = plan(laptop_ladder(32, 56, 24))
    first, second, third, target = (run.seconds for run in planned.runs)
    assert second > first + third
    assert planned.seconds == pytest.approx(second + target)
    alone = plan(laptop_ladder(32, 56, 24, cpus=2))
    assert alone.seconds == pytest.approx(sum(run.seconds for run in alone.runs))


def test_a_gated_rung_waits_for_the_smaller_ones_and_then_runs_alone(machine):
    gated = plan(laptop_ladder(56, 32, 40, 48))  # in any order
    seconds = {run.run: run.seconds for run in gated.runs}
    assert gated.seconds == pytest.approx(sum(seconds[run] for run in ("d40", "d48", "d56", "d72")))
    assert plan(laptop_ladder(56, 32, 40, 48).replace(gate=None)).seconds < gated.seconds
    three = laptop_ladder(32, 40, 48)
    assert plan(three).seconds == plan(three.replace(gate=None)).seconds
    assert plan(three).seconds < plan(three.replace(gate=Gate())).seconds


def test_memory_of_two_at_a_time_is_added_up(machine, monkeypatch):
    each = plan(laptop_ladder(32, 40)).runs[1].memory_bytes
    monkeypatch.setattr(planning, "machine_memory", lambda: int(1.5 * each))
    (problem,) = plan(laptop_ladder(32, 40)).problems
    assert "at the same time" in problem and "Resources(cpus=" in problem
    assert plan(laptop_ladder(32, 40, cpus=2)).problems == ()


def test_what_cannot_run_here_is_a_problem_that_names_the_run(machine, monkeypatch):
    (problem,) = plan(laptop_ladder(32, 40).replace(rungs=laptop_ladder(40, cpus=3).rungs)).problems
    assert "d40 asks for 3 CPUs (Resources(cpus=3, hosts=1)), this machine has 2" in problem
    monkeypatch.setattr(planning, "machine_memory", lambda: 100_000_000)
    problems = plan(laptop_ladder(32)).problems
    assert len(problems) == 2 and problems[0].startswith("d32 needs about")
    assert "this machine has 0.10 GB" in problems[0]


def test_hosts_that_share_this_machine_are_counted_together(machine, monkeypatch):
    run = RUN.replace(batch_tokens=48, parallel=ParallelSpec(data=6))

    def problems(**resources):
        ladder = Ladder(name="l", rungs=(Rung(name="d8", run=run, resources=Resources(**resources)),))
        return plan(ladder).problems

    assert problems(hosts=1) == problems(hosts=2) == ()
    (problem,) = problems(hosts=3)
    assert "d8 asks for 3 CPUs (Resources(cpus=1, hosts=3)), this machine has 2" in problem
    monkeypatch.setattr(planning, "machine_memory", lambda: int(1.5 * planning.PROCESS_BYTES))
    (problem,) = problems(hosts=2)
    assert "d8 needs about 1.8" in problem


def test_other_machines_are_not_judged_by_this_one(machine, monkeypatch):
    monkeypatch.setattr(planning, "machine_memory", lambda: 1)
    elsewhere = Resources(gpus=8, hosts=2, cpus=64)
    run = RUN.replace(parallel=ParallelSpec(data=2))
    ladder = Ladder(name="l", rungs=(Rung(name="big", run=run, resources=elsewhere),))
    planned = plan(ladder)
    assert planned.problems == () and planned.seconds is None
    assert planned.runs[0].devices == "2 x 8 GPU" and planned.runs[0].seconds is None
    (reason,) = planned.elsewhere
    assert "big asks for Resources(gpus=8), the local cluster has processors only" in reason
    assert reason in " ".join(str(planned).split())


@pytest.mark.parametrize(
    ("steps", "target_steps", "words"),
    [
        ((100, 1000), 2000, "tokens per active parameter go from"),
        ((100, 105), 108, "the rungs span 1.1x in FLOPs"),
        ((100, 112), 112, "tokens per active parameter go from"),
        ((100, 1000), 900, "less than the top rung's"),
        ((100, 1000), 501_000, "501x the top rung"),
    ],
)
def test_a_doubtful_design_is_warned_about(machine, steps, target_steps, words):
    rungs = tuple(Rung(name=f"s{n}", run=RUN.replace(steps=n)) for n in steps)
    ladder = Ladder(name="l", rungs=rungs, target=Rung(name="t", run=RUN.replace(steps=target_steps)))
    planned = plan(ladder)
    assert any(words in warning for warning in planned.warnings)
    assert all(warning in " ".join(str(planned).split()) for warning in planned.warnings)
    assert planned.problems == ()


def test_nearly_equal_tokens_per_parameter_are_no_reason_to_warn(machine):
    ladder = Ladder(name="l", rungs=tuple(Rung(name=f"s{n}", run=RUN.replace(steps=n)) for n in (100, 109)))
    assert not any("tokens per active" in warning for warning in plan(ladder).warnings)


def test_a_sound_design_has_no_warning(machine):
    assert plan(laptop_ladder(24, 32, 48, 64, target=88)).warnings == ()


def test_the_table_is_readable_in_a_terminal_of_90_columns(machine):
    text = str(plan(laptop_ladder(32, 40, 48, 56)))
    assert max(map(len, text.splitlines())) <= 90
    for word in ("laptop: 5 runs", "59.9k", "1,950", "1.40e12", "1 CPU", "GB", "min", "d72", "100%"):
        assert word in text
    assert "…" not in text and "\x1b" not in text


@pytest.mark.parametrize(
    ("number", "text"), [(950, "950"), (59_904, "59.9k"), (1.6e9, "1.6B"), (2.65e13, "26.5T")]
)
def test_sizes_are_human(number, text):
    assert numerals.short(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (59.4, "59 s"), (125, "2.1 min"), (9000, "2.5 h"), (1e6, "11.6 days")]
)
def test_durations_are_human(seconds, text):
    assert numerals.duration(seconds) == text


def test_the_calibration_measures_a_plausible_core(monkeypatch):
    monkeypatch.setattr(planning, "CALIBRATION_S", 0.05)
    rate = planning.measure_gemm_rate()
    assert math.isfinite(rate) and 1e7 < rate < 1e13


def test_the_memory_limit_of_a_container_counts(monkeypatch, tmp_path):
    assert planning.machine_memory() > 100_000_000
    (tmp_path / "memory.max").write_text("123456789\n")
    monkeypatch.setattr(planning, "CGROUP_LIMIT", tmp_path / "memory.max")
    assert planning.machine_memory() == 123_456_789
    (tmp_path / "memory.max").write_text("max\n")
    assert planning.machine_memory() > 123_456_789
