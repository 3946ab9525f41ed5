"""Programs built in processes of their own, and sets of them that survive an interruption."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from tests.systems.tensor_programs.run.examples import SMALL
from windtunnel.errors import FlightError, InputError
from windtunnel.measure.workers import WorkerError
from windtunnel.systems.tensor_programs.program_set import ProgramSet
from windtunnel.systems.tensor_programs.run.batch import Bench, Member
from windtunnel.systems.tensor_programs.run.build import parse_target, require_targets
from windtunnel.systems.tensor_programs.run.description import name_after_host
from windtunnel.systems.tensor_programs.run.generate import Plan, sample_programs
from windtunnel.systems.tensor_programs.run.measure import Canary
from windtunnel.systems.tensor_programs.run.worker import Worker

BASE = parse_target("sse4.2-1")
NOISY = {"canary_tolerance": 1e9, "max_spread": 1e9}  # what is tested here is not the machine


def test_a_plan_visits_every_task_once_in_a_round_and_is_always_the_same():
    plan = Plan(SMALL, (BASE,), 100, seed=3, batch_size=len(SMALL))

    assert plan.members(2) == plan.members(2)
    assert set(range(len(SMALL))) == {member.task for member in plan.members(1)}
    assert len({member.seed for batch in range(4) for member in plan.members(batch)}) == 4 * len(SMALL)


def test_targets_have_names_and_must_be_of_this_host():
    assert ("avx512", 2) == (parse_target("avx512-2").isa, parse_target("avx512-2").num_threads)
    with pytest.raises(InputError, match="no target is called"):
        parse_target("neon-1")
    with pytest.raises(FlightError, match=r"cannot run avx512-2"):
        require_targets([parse_target("avx512-2")], [BASE])


@pytest.mark.slow
def test_every_kind_of_task_is_computed_rightly_under_random_schedules():
    pytest.importorskip("tvm")
    from windtunnel.systems.tensor_programs.run.build import targets_here

    isas = list(dict.fromkeys(target.isa for target in targets_here()))
    with Worker() as worker:
        for key, task in enumerate(SMALL):
            drawn = worker.ask("draw", key, task, 11)
            assert 1 <= len(drawn.leaf_pos) <= 16
            assert worker.ask("build", key, task, isas) > 0
            assert min(look.program_s for look in worker.ask("time", key, isas[-1], 1, (0.0, 1e-3))) > 0


@pytest.mark.slow
def test_a_process_that_dies_is_told_and_replaced():
    pytest.importorskip("tvm")
    with Worker() as worker:
        worker.ask("forget", [])
        os.kill(worker._workers._processes[0].pid, signal.SIGSEGV)
        with pytest.raises(WorkerError, match="killed by SIGSEGV"):
            worker.ask("draw", 0, SMALL[0], 1)
        worker.start()
        assert worker.ask("draw", 0, SMALL[0], 1).sched.any()


@pytest.mark.slow
def test_a_program_that_takes_its_process_with_it_costs_only_itself(monkeypatch):
    pytest.importorskip("tvm")
    asked = Worker.ask

    def ask(self, order, *arguments):
        if order == "time" and arguments[0] == 1:
            os.kill(self._workers._processes[0].pid, signal.SIGKILL)
        return asked(self, order, *arguments)

    monkeypatch.setattr(Worker, "ask", ask)
    with Bench(SMALL[:1], (BASE,), Canary(1e9), 1e9) as bench:
        found = bench.measure([Member(key, 0, 5 + 100 * key) for key in range(3)], seed=0)

    assert [0, 2] == [member.key for member, _ in found.programs]
    assert {"program died": 1} == found.dropped
    assert all(timing is not None for row in found.timings for timing in row)


@pytest.mark.slow
def test_programs_of_another_host_are_measured_here_and_its_devices_join(tmp_path):
    pytest.importorskip("tvm")
    path = tmp_path / "there.npz"
    sample_programs(Plan(SMALL[:2], (BASE,), 4, seed=1, batch_size=2, **NOISY), path)
    there = ProgramSet.load(path)
    there = replace(there, meta=there.meta | {"fingerprint": "of another host"}, mean_s=2 * there.mean_s)
    plan = Plan.of_programs(there, [3, 0, 2], (BASE,), batch_size=2, **NOISY)

    begun = sample_programs(plan, tmp_path / "both.npz", budget_s=0.0)
    done = sample_programs(plan, tmp_path / "both.npz", resume=True)
    both = ProgramSet.load(tmp_path / "both.npz")

    assert (None, 3) == (begun.path, done.num_programs)
    assert (4, "sse4.2-1") == (both.num_programs, both.device_names[0])
    assert both.device_names[1].startswith("sse4.2-1@")
    assert name_after_host(BASE.name) == both.device_names[1]
    assert both.devices[1]["peak_flops_per_s"] > 0
    assert [True, False, True, True] == np.isfinite(both.mean_s[:, 1]).tolist()
    np.testing.assert_array_equal(both.mean_s[:, 0], there.mean_s[:, 0])
    with pytest.raises(InputError, match="was measured on this host"):
        sample_programs(Plan.of_programs(both, [0], (BASE,)), tmp_path / "again.npz")


@pytest.mark.slow
def test_a_wrong_result_is_refused():
    pytest.importorskip("tvm")
    from windtunnel.systems.tensor_programs.run import build
    from windtunnel.systems.tensor_programs.run.sampling import sample

    values, expected = build.arguments_of(SMALL[0])
    with pytest.raises(FlightError, match="something else"):
        build.build(sample(SMALL[0], 0).module, "sse4.2", values, expected + 1)


@pytest.mark.slow
def test_an_interrupted_run_goes_on_where_it_was(tmp_path):
    pytest.importorskip("tvm")
    output = tmp_path / "set.npz"
    plan = Plan(SMALL[:2], (BASE,), 3, seed=1, batch_size=2, **NOISY)

    first = sample_programs(plan, output, budget_s=0.0)
    assert (None, 0) == (first.path, first.num_programs)
    with pytest.raises(InputError, match="earlier run"):
        sample_programs(plan, output)
    other = Plan(SMALL[:2], plan.targets, 3, seed=2, batch_size=2, **NOISY)
    with pytest.raises(InputError, match="other seed"):
        sample_programs(other, output, resume=True)

    done = sample_programs(plan, output, resume=True)
    programs = ProgramSet.load(output)

    assert output == done.path
    assert (3, ("sse4.2-1",)) == (programs.num_programs, programs.device_names)
    assert np.isfinite(programs.mean_s).all()
    assert [SMALL[task].flops for task in programs.task] == programs.flops.tolist()
    assert 1 == programs.meta["seed"]
    with pytest.raises(InputError, match="was measured on this host"):
        sample_programs(Plan.of_programs(programs, [0], (BASE,)), tmp_path / "again.npz")
    shards = sorted((tmp_path / "set.npz.parts").glob("batch-*.npz"))
    stamps = [shard.stat().st_mtime_ns for shard in shards]
    sample_programs(plan, output, resume=True, overwrite=True)
    assert stamps == [shard.stat().st_mtime_ns for shard in shards]
