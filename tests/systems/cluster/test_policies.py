"""Registered policies, and those that somebody writes in Python."""

from __future__ import annotations

import pytest

from tests.systems.cluster.test_engine import happened
from tests.systems.cluster.worlds import INF, ShapeSpeeds, cluster, world
from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.systems.cluster.jobs import Jobs
from windtunnel.systems.cluster.model import simulate
from windtunnel.systems.cluster.policy import Policy, Start, Stop, Wake, policy_of
from windtunnel.systems.cluster.testing import PolicyContract


def contract(name):
    return type(f"Test {name}", (PolicyContract,), {"name": name})


globals().update({f"Test_{name}": contract(name) for name in registry.all("policy")})


def deciding(function):
    return Policy(has_lease=False, decide=function)


def first_fit(state):
    """First in, first out, in the first machine that has enough; nobody overtakes within a call."""
    free = state.free.copy()
    for job in state.waiting.tolist():
        need = int(state.jobs.gpus[job])
        machine = next((m for m in range(len(free)) if free[m] >= need), None)
        if machine is not None:
            free[machine] -= need
            yield Start(job, {machine: need})


def test_a_python_policy_has_the_results_of_the_compiled_one():
    made, jobs = world(11)
    jobs = jobs.take(jobs.gpus <= made.gpus_per_machine)
    compiled = Policy(order="fifo", has_lease=False, fit="first", rack_timer_s=INF, network_timer_s=INF)

    assert happened(simulate(made, jobs, ShapeSpeeds(), compiled)) == happened(
        simulate(made, jobs, ShapeSpeeds(), deciding(first_fit))
    )


def two_jobs(gpus=4):
    return Jobs.of(arrival_s=[0, 5], gpus=[gpus, gpus], work_s=[60, 60], job_id=["big", "late"])


def test_a_python_policy_may_preempt_and_sleep():
    def decide(state):
        if 0 in state.running and 1 in state.waiting and state.now_ns - state.start_ns(0) < 20 * 10**9:
            yield Wake(20 * 10**9)
        elif 0 in state.running and 1 in state.waiting:
            yield Stop(0)
        else:
            for job in sorted(state.waiting.tolist(), reverse=True)[:1]:
                if state.free.sum() >= state.jobs.gpus[job]:
                    yield Start(job, {0: int(state.jobs.gpus[job])})

    run = simulate(cluster(4, 1), two_jobs(), ShapeSpeeds(), deciding(decide))

    assert [120.0, 80.0] == (run.end_ns / 1e9).tolist()
    assert [1, 0] == run.num_preempted.tolist()


def test_jobs_that_preempt_each_other_in_a_cycle_are_named():
    """Each is stopped while it still restarts, so none ever runs."""

    def decide(state):
        if state.running.size and state.waiting.size:
            if state.now_ns - state.start_ns(state.running[0]) >= 10**9:
                yield Stop(state.running[0])
            else:
                yield Wake(state.now_ns + 10**9)
        elif state.waiting.size:
            oldest = max(state.waiting.tolist(), key=state.waiting_ns)
            yield Start(oldest, {0: 4})
            if state.waiting.size > 1:
                yield Wake(state.now_ns + 10**9)

    with pytest.raises(InputError, match=r"preempt each other in a cycle") as refused:
        simulate(cluster(4, 1, restart_s=5), two_jobs(), ShapeSpeeds(), deciding(decide))
    assert "job big, job late" in refused.value.where


@pytest.mark.parametrize(
    ("decide", "message"),
    [
        (lambda state: [Start(0, {0: 2})], "asks for 4 GPUs and gets 2"),
        (lambda state: [Start(0, {0: 5})], "5 GPUs of machine 0, where 4 are free"),
        (lambda state: [Start(7, {0: 4})], "named job 7"),
        (lambda state: [Stop(0)], "does not run"),
        (lambda state: [Wake(0)], "which is in the past"),
        (lambda state: ["start"], "decided 'start'"),
        (lambda state: [], "starts none of them"),
    ],
)
def test_what_cannot_be_done_is_refused(decide, message):
    with pytest.raises(InputError, match=message):
        simulate(cluster(4, 1), two_jobs(), ShapeSpeeds(), deciding(decide))


def test_a_registered_function_of_the_state_is_a_policy(monkeypatch):
    monkeypatch.setitem(registry._plugins["policy"], "mine", registry.Plugin("mine", "policy", first_fit, "a test"))

    assert policy_of("mine").decide is not None
    with pytest.raises(InputError, match="no setting 'speed'"):
        policy_of("mine", speed=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"order": "lifo"}, "order cannot be 'lifo'"), ({"weight": 2.0}, "weight"), ({"lease_s": 0.0}, "lease of 0"),
     ({"rack_timer_s": -1.0}, "rack_timer_s must be 0 or more"), ({"fit": "worst"}, "fit cannot be")],
)  # fmt: skip
def test_settings_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        Policy(**settings)


def test_a_lease_shorter_than_a_checkpoint_or_a_quantum_is_refused():
    made = cluster(4, 1, lease_s=3.0, checkpoint_s=1.0)
    with pytest.raises(InputError, match="a lease of 3 s is over before a job of 4 GPUs is checkpointed"):
        simulate(made, two_jobs(), ShapeSpeeds(), Policy())
    jobs = Jobs.of(arrival_s=[0], gpus=[1], work_s=[60], iteration_s=[2])
    with pytest.raises(InputError, match="a quantum of 10 iterations takes 20 s"):
        simulate(cluster(4, 1, lease_s=10), jobs, ShapeSpeeds(), Policy(), quantum=10)


def test_a_job_larger_than_the_cluster_is_refused_before_anything_runs():
    with pytest.raises(InputError, match="job big asks for 96 GPUs, the cluster has 4, and 1 more are too large"):
        simulate(cluster(4, 1), two_jobs(96), ShapeSpeeds(), Policy())


def test_ageing_bounds_the_wait_of_single_gpu_jobs():
    """Under nw_sens they are served last; a stream of new jobs keeps them waiting."""
    arrival = [0, *range(0, 40_000, 50)]
    jobs = Jobs.of(arrival_s=arrival, gpus=[1] + [2] * 800, work_s=[3000] + [52] * 800)
    made = cluster(2, 1, lease_s=200)

    starving = simulate(made, jobs, ShapeSpeeds(), Policy(order="nw_sens"))
    bounded = simulate(made, jobs, ShapeSpeeds(), Policy(order="nw_sens", aging=0.5))

    assert bounded.longest_wait_ns[0] < starving.longest_wait_ns[0] / 3


def test_a_reservation_bounds_the_wait_of_large_jobs():
    small = 400
    jobs = Jobs.of(arrival_s=[1, *[0] * small], gpus=[8] + [1] * small, work_s=[50] + [300] * small)
    made = cluster(4, 2, lease_s=100)
    policy = {"order": "nw_sens", "rack_timer_s": INF, "network_timer_s": INF}

    starving = simulate(made, jobs, ShapeSpeeds(), Policy(**policy, aging=0.0001))
    reserved = simulate(made, jobs, ShapeSpeeds(), Policy(**policy, aging=0.0001, reserve_after_s=300))

    large = jobs.gpus.argmax()
    assert reserved.longest_wait_ns[large] < 600e9
    assert reserved.longest_wait_ns[large] <= starving.longest_wait_ns[large]
