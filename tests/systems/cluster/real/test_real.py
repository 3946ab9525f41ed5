"""The same policy object over simulated and over real jobs."""

import dataclasses

import numpy as np
import pytest

from windtunnel.errors import InputError
from windtunnel.hardware import Link
from windtunnel.measure.spaces import can_shape
from windtunnel.search.speeds import FreeCommunication
from windtunnel.systems.cluster.jobs import Jobs
from windtunnel.systems.cluster.layout import Cluster
from windtunnel.systems.cluster.model import simulate
from windtunnel.systems.cluster.online import Online
from windtunnel.systems.cluster.policy import Policy, Start, Stop, policy_of
from windtunnel.systems.cluster.real.drive import drive, measure_speeds, shapes_of
from windtunnel.systems.cluster.real.slots import real_slots
from windtunnel.systems.cluster.state import NEVER

FREE = FreeCommunication()
WIRES = (Link("machine", 1e9, latency_ns=0), Link("rack", 50e6, latency_ns=0), Link("network", 10e6, latency_ns=0))
CLUSTER = Cluster(2, 2, 2, WIRES, lease_ns=4 * 10**9, checkpoint_ns_per_gpu=0)
SECOND = 10**9


def some_jobs(seed, num=12):
    random = np.random.default_rng(seed)
    return Jobs.of(
        arrival_s=np.sort(random.uniform(0, 20, num)), gpus=random.choice([1, 1, 2, 3, 4], num),
        work_s=random.uniform(1, 12, num), model=["m"] * num,
    )  # fmt: skip


def replayed(jobs, policy):
    """The online loop beside a world in which jobs take what they take."""
    online, done = Online(CLUSTER, jobs, FREE, policy), np.zeros(len(jobs))
    begun: dict[int, int] = {}
    step, now = SECOND // 20, 0
    while online.num_over < len(jobs):
        for job in [job for job in begun if done[job] + now - begun[job] >= jobs.work_ns[job]]:
            del begun[job]
            online.end_job(job, now)
        for change in online.advance(now):
            if isinstance(change, Start):
                assert sum(change.gpus.values()) == jobs.gpus[change.job]
                begun[change.job] = now
            else:
                done[change.job] += now - begun.pop(change.job)
        held = sum(int(jobs.gpus[job]) for job in begun)
        assert held <= CLUSTER.num_gpus
        now += step
        assert now < 1000 * SECOND
    return online.result_so_far()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["dally-manual", "dally-nowait", "fifo", "dally"])
def test_what_is_decided_as_time_goes_by_is_what_the_simulator_decides(seed, name):
    """Ends are seen up to 50 ms late, so times differ by that for each start before."""
    jobs, policy = some_jobs(seed), policy_of(name)
    expected, found = simulate(CLUSTER, jobs, FREE, policy), replayed(jobs, policy)
    off_s = np.abs(found.end_ns - expected.end_ns) / 1e9

    assert np.median(off_s) < 0.5
    assert (found.end_ns != NEVER).all()
    assert abs(found.jct_ns.mean() / expected.jct_ns.mean() - 1) < 0.1


@pytest.mark.parametrize("name", ["srtf", "windtunnel", "backfill", "gandiva", "tiresias-gittins"])
def test_who_asks_when_jobs_end_is_refused(name):
    with pytest.raises(InputError, match="asks when jobs end"):
        Online(CLUSTER, some_jobs(0), FREE, policy_of(name))


def test_a_job_whose_lease_is_over_is_told_to_stop():
    jobs = Jobs.of(arrival_s=[0, 1], gpus=[8, 8], work_s=[60, 60])
    online = Online(CLUSTER, jobs, FREE, Policy(order="las2d"))
    told = [online.advance(at * SECOND) for at in (0, 1, 3, 5)]

    assert [[type(one) for one in changes] for changes in told] == [[Start], [], [], [Stop, Start]]
    assert [told[3][0].job, told[3][1].job] == [0, 1]


def test_every_shape_is_measured_once():
    shapes = shapes_of(4, CLUSTER)

    assert {((2, 2),), ((2,), (2,)), ((2, 1), (1,)), ((1, 1), (1, 1)), ((2,), (1, 1))} == set(shapes)
    assert all(sum(place.values()) == 4 for place in shapes.values())


@pytest.mark.slow
@pytest.mark.skipif(not can_shape(), reason="needs network namespaces")
def test_real_jobs_take_about_as_long_as_predicted():
    gradients = {"large": 2_000_000, "small": 40_000}
    jobs = Jobs.of(
        job_id=["a", "b", "c", "d", "e"], arrival_s=[0, 0.5, 1, 2, 3], gpus=[3, 3, 2, 1, 4], work_s=[4, 5, 3, 2, 3],
        iteration_s=[0.1] * 5, model=["large", "small", "large", "small", "large"],
    )  # fmt: skip
    policy = policy_of("dally-nowait")
    with real_slots(CLUSTER) as slots:
        speeds = measure_speeds(slots, jobs, CLUSTER, gradients)
        run = drive(slots, jobs, CLUSTER, policy, speeds, gradients, patience_s=60)
    predicted = simulate(CLUSTER, jobs, speeds, policy)

    assert speeds.rows["large", ((2,), (1,))] < 0.5 < speeds.rows["small", ((2,), (1,))]
    assert run.jct_ns.mean() == pytest.approx(predicted.jct_ns.mean(), rel=0.25)
    assert np.array_equal(np.argsort(run.first_ns), np.argsort(predicted.first_ns))


@pytest.mark.slow
@pytest.mark.skipif(not can_shape(), reason="needs network namespaces")
def test_a_job_that_is_stopped_goes_on_where_it_was():
    """Two jobs of all slots take turns; each does its iterations once, and ranks find each other at each turn."""
    jobs = Jobs.of(arrival_s=[0, 0.2], gpus=[8, 8], work_s=[3, 3], iteration_s=[0.05, 0.05], model=["m", "m"])
    cluster = dataclasses.replace(CLUSTER, lease_ns=SECOND)
    with real_slots(cluster) as slots:
        run = drive(slots, jobs, cluster, Policy(order="las2d"), FREE, {"m": 400}, patience_s=60)

    assert (run.num_preempted >= 1).all()
    assert 6 * SECOND <= run.makespan_ns < 12 * SECOND
