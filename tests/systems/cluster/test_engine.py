"""The compiled loop beside a slow one, and what every run keeps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from tests.systems.cluster.reference import Reference
from tests.systems.cluster.worlds import INF, POLICIES, ShapeSpeeds, cluster, world
from windtunnel.systems.cluster.jobs import Jobs
from windtunnel.systems.cluster.model import simulate
from windtunnel.systems.cluster.policy import Policy


def happened(run):
    """Every segment: job, start, end, GPUs by machine."""
    found = []
    for one in run.segments:
        rows = run.placements[one["placement"] : one["placement"] + one["width"]].tolist()
        found.append((int(one["job"]), int(one["start"]), int(one["end"]), dict(rows)))
    return found


def in_the_reference(reference):
    return [(one.job.id, one.start, one.end, one.place) for one in reference.segments]


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("seed", range(4))
def test_every_event_is_that_of_a_naive_simulator(name, seed):
    made, jobs = world(seed)

    slow = Reference(made, jobs, ShapeSpeeds(), POLICIES[name]).run()

    assert in_the_reference(slow) == happened(simulate(made, jobs, ShapeSpeeds(), POLICIES[name]))


@pytest.mark.parametrize("seed", [1024, 1113])
def test_gandiva_knows_who_is_left_on_a_machine_and_moves_jobs_when_nobody_waits(seed):
    """Two worlds in which it once went by a job that had left, or stopped looking when the last one had started."""
    made, jobs = world(seed)

    slow = Reference(made, jobs, ShapeSpeeds(), POLICIES["gandiva"]).run()

    assert in_the_reference(slow) == happened(simulate(made, jobs, ShapeSpeeds(), POLICIES["gandiva"]))


@pytest.mark.parametrize("name", ["auto", "timers", "marginal", "tiresias"])
def test_so_is_every_quantum(name):
    made, jobs = world(7)

    slow = Reference(made, jobs, ShapeSpeeds(), POLICIES[name], quantum=3).run()

    assert in_the_reference(slow) == happened(simulate(made, jobs, ShapeSpeeds(), POLICIES[name], quantum=3))


THREE = {"arrival_s": [0, 0, 0], "gpus": [3, 3, 2], "work_s": [60, 150, 50]}


class HalfOverTheRack:
    def speed(self, model, batch, shape):
        return 1.0 if len(shape[0]) == 1 else 0.5


@pytest.mark.parametrize(
    ("timer_s", "timer_events", "end_s"), [(0.0, True, 100), (INF, True, 110), (30.0, True, 130), (30.0, False, 110)]
)
def test_the_golden_cases_end_when_they_must(timer_s, timer_events, end_s):
    """Two machines of 4 GPUs: the third job of 2 may be spread over both at half its speed, or wait for 60 s."""
    policy = Policy(order="nw_sens", rack_timer_s=timer_s, network_timer_s=INF, timer_events=timer_events)

    run = simulate(cluster(lease_s=1e6), Jobs.of(**THREE), HalfOverTheRack(), policy)

    assert [60, 150, end_s] == (run.end_ns / 1e9).tolist()


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=8, deadline=None)
@given(seed=some.integers(100, 10**6))
def test_work_is_done_once_and_no_gpu_is_given_twice(name, seed):
    made, jobs = world(seed)
    run = simulate(made, jobs, ShapeSpeeds(), POLICIES[name])
    segments = run.segments

    done = np.bincount(segments["job"], segments["done"], minlength=len(jobs))
    assert np.allclose(jobs.work_ns, done, rtol=1e-12)
    assert (run.queueing_ns >= 0).all()
    held = sorted(
        (time, sign, machine, count)
        for one, (_, _, _, place) in zip(segments, happened(run), strict=True)
        for machine, count in place.items()
        for time, sign in ((int(one["start"]), 1), (int(one["back"]), -1))
    )
    busy = np.zeros(made.num_machines, int)
    for _, sign, machine, count in held:
        busy[machine] += sign * count
        assert 0 <= busy[machine] <= made.gpus_per_machine
    assert not busy.any()


@settings(max_examples=20, deadline=None)
@given(seed=some.integers(0, 10**6))
def test_network_sensitivity_is_the_harmonic_mean_of_the_speeds(seed):
    """Weighted by work: equal quanta at S_1, S_2 ... have n / sum(1 / S)."""
    made, jobs = world(seed)
    run = simulate(made, jobs, ShapeSpeeds(), POLICIES["auto"])

    segments = run.segments
    harmonic = jobs.work_ns / np.bincount(segments["job"], segments["done"] / segments["speed"], minlength=len(jobs))
    assert np.allclose(harmonic, jobs.work_ns / run.run_ns, rtol=1e-7)  # a segment ends at a whole ns
    assert (run.run_ns[jobs.gpus == 1] / jobs.work_ns[jobs.gpus == 1] < 1 + 1e-7).all()


def test_the_same_run_comes_twice():
    made, jobs = world(5, num_jobs=60)

    first, second = (simulate(made, jobs, ShapeSpeeds(), POLICIES["gandiva"]) for _ in range(2))

    assert happened(first) == happened(second)
