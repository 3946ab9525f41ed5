"""Plans of equal blocks on processes of this host, without running one."""

import math

import pytest

from tests.systems.pipelines.block_models import block_graph
from windtunnel.hardware import Fabric
from windtunnel.systems.pipelines.profiles import profiles_of
from windtunnel.systems.pipelines.replayed import rank_by_replay
from windtunnel.systems.pipelines.training import model
from windtunnel.systems.pipelines.training.model import HostConditions
from windtunnel.systems.pipelines.training.profiled import rank_on_host
from windtunnel.systems.pipelines.two_bw import Job, plan_2bw


@pytest.fixture
def profiles():
    return profiles_of(block_graph(4, 1_000_000), 4, [2, 4])


def plans(profiles, num_workers):
    job = Job(num_workers, math.inf, 16, Fabric.of_rates(1e9, 1e9, num_workers + 1))
    return plan_2bw(profiles, job).feasible, job


def test_on_cores_of_their_own_processes_take_what_devices_take(profiles, monkeypatch):
    monkeypatch.setattr(model, "usable_cores", lambda: [0, 1, 2, 3])
    rows, job = plans(profiles, 4)
    here = {str(one.row): one.step_ns for one in rank_on_host(rows, profiles, HostConditions(1e9, 0.0, (1.0,) * 4))}
    there = {str(one.row): one.step_ns for one in rank_by_replay(rows, profiles, job)}

    assert there.keys() == here.keys()
    assert all(there[name] == pytest.approx(here[name], rel=1e-3) for name in there)


def test_processes_that_share_a_core_take_turns(profiles, monkeypatch):
    monkeypatch.setattr(model, "usable_cores", lambda: [0])
    rows, _ = plans(profiles, 4)
    conditions = HostConditions(1e12, 0.0, (1.0, 2.0, 3.0, 4.0))
    found = {str(one.row): one.step_ns for one in rank_on_host(rows, profiles, conditions)}
    alone = found["none, 1 x 1 workers, microbatch 4"]

    assert all(step >= 0.98 * alone for name, step in found.items() if "microbatch 4" in name and "2bw" not in name)


def test_what_a_schedule_does_itself_counts_for_every_pass(profiles):
    rows = [row for row in plans(profiles, 2)[0] if row.depth == 2 and row.schedule == "1f1b"]
    without, more = (
        rank_on_host(rows, profiles, HostConditions(1e9, 0.0, (1.0, 1.0), overhead_ns=own))[0].step_ns
        for own in (0.0, 100_000.0)
    )

    assert without < more
