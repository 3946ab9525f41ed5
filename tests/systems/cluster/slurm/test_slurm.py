"""Policies on a real Slurm, where it is installed; what it is told, everywhere."""

import math
import threading

import numpy as np
import pytest

from windtunnel.errors import InputError
from windtunnel.hardware import Link
from windtunnel.search.speeds import FreeCommunication
from windtunnel.systems.cluster.jobs import Jobs
from windtunnel.systems.cluster.layout import Cluster
from windtunnel.systems.cluster.model import simulate
from windtunnel.systems.cluster.policy import Policy
from windtunnel.systems.cluster.slurm.drive import drive, fields_of
from windtunnel.systems.cluster.slurm.files import clock_text, slurm_conf, submission, topology_conf
from windtunnel.systems.cluster.slurm.leases import drive_leases, resuming
from windtunnel.systems.cluster.slurm.local import can_run_slurm, local_slurm, run_slurm

needs_slurm = pytest.mark.skipif(not can_run_slurm(), reason="needs slurm-wlm and munge, as root")
LINK = Link("wire", 1e9, latency_ns=0)
CLUSTER = Cluster(2, 2, 2, (LINK, LINK, LINK))


def timers(rack_s, network_s):
    return Policy(rack_timer_s=rack_s, network_timer_s=network_s)


def test_a_job_asks_for_the_tightest_place_that_holds_it():
    policy = timers(5, 8)

    assert submission(2, CLUSTER, policy).options == ("--ntasks", "2", "--nodes", "1", "--switches=1@0-00:00:08")
    assert submission(2, CLUSTER, policy).relax_after_s == 5
    assert submission(3, CLUSTER, policy).options == ("--ntasks", "3", "--switches=1@0-00:00:08")
    assert submission(5, CLUSTER, policy).options == ("--ntasks", "5")
    assert submission(2, CLUSTER, timers(0, 0)).options == ("--ntasks", "2")
    forever = submission(2, CLUSTER, timers(math.inf, math.inf))
    assert forever.relax_after_s is None
    assert forever.options[-1] == "--switches=1@365-00:00:00"


@pytest.mark.parametrize(
    ("gpus", "policy", "said"),
    [
        (9, timers(1, 1), "asks for 9 GPUs, the cluster has 8"),
        (2, Policy(timers="auto"), "decides them later"),
        (2, Policy(placement="spread", rack_timer_s=1.0, network_timer_s=1.0), "decides them later"),
    ],
)
def test_what_slurm_cannot_be_told_is_refused(gpus, policy, said):
    with pytest.raises(InputError, match=said):
        submission(gpus, CLUSTER, policy)


def test_a_time_is_never_rounded_down():
    assert "0-00:00:08" == clock_text(7.2)
    assert "0-01:00:00" == clock_text(3600)


def test_each_rack_has_a_switch(tmp_path):
    assert "SwitchName=rack1 Nodes=m2,m3\nSwitchName=network Switches=rack0,rack1\n" in topology_conf(CLUSTER)
    assert 4 == slurm_conf(CLUSTER, "here", tmp_path, 100).count("NodeName=")


def test_without_slurm_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("windtunnel.systems.cluster.slurm.local.can_run_slurm", lambda: False)
    with pytest.raises(InputError, match="Slurm cannot be started here") as error, local_slurm(CLUSTER, tmp_path):
        pass
    assert "apt-get install slurm-wlm munge" in error.value.fix


@pytest.mark.slow
@needs_slurm
def test_jobs_wait_for_their_timers_and_no_longer(tmp_path):
    """One machine of each rack is taken, so that two free machines lie under two switches."""
    jobs = Jobs.of(
        job_id=["first", "second", "pair", "alone"], arrival_s=[0, 0.1, 3, 3.1], gpus=[2, 2, 4, 1],
        work_s=[25, 25, 1, 1],
    )  # fmt: skip
    with local_slurm(CLUSTER, tmp_path / "slurm") as environment:
        for machine in (1, 3):  # the first two get machines of their own racks
            run_slurm(["scontrol", "update", f"NodeName=m{machine}", "State=DRAIN", "Reason=test"], environment)
        free = threading.Timer(2.5, _resume, [environment])
        free.start()
        found = {one.job_id: one for one in drive(jobs, CLUSTER, timers(0, 6), environment)}
        free.join()

    assert {"COMPLETED"} == {one.state for one in found.values()}
    assert ["m0", "m2"] == sorted(found[name].machines for name in ("first", "second"))
    assert "m[1,3]" == found["pair"].machines
    assert 6 <= found["pair"].waited_s <= 9


def _resume(environment):
    for machine in (1, 3):
        run_slurm(["scontrol", "update", f"NodeName=m{machine}", "State=RESUME"], environment)


@pytest.mark.slow
@needs_slurm
def test_a_job_leaves_its_one_machine_when_its_timer_runs_out_and_is_found_again(tmp_path):
    """Two of three GPUs of each machine are taken, so that two free ones lie in two machines."""
    one_rack = Cluster(3, 2, 1, (LINK, LINK, LINK))
    jobs = Jobs.of(job_id=["a", "b", "two"], arrival_s=[0, 0.1, 2], gpus=[2, 2, 2], work_s=[20, 20, 1])
    with local_slurm(one_rack, tmp_path / "slurm") as environment:
        found = {one.job_id: one for one in drive(jobs, one_rack, timers(4, 4), environment)}
        again = drive(jobs, one_rack, timers(4, 4), environment)

    assert {one.slurm_id for one in again} == {one.slurm_id for one in found.values()}
    assert "m[0-1]" == found["two"].machines
    assert 4 <= found["two"].waited_s <= 8


@pytest.mark.slow
@needs_slurm
def test_a_policy_with_leases_starts_and_stops_jobs_on_the_processors_it_chose(tmp_path):
    """Three jobs take turns by attained service; Slurm takes a few seconds to end and to begin a segment."""
    cluster = Cluster(2, 2, 1, (LINK, LINK, LINK), lease_ns=10 * 10**9, checkpoint_ns_per_gpu=1)
    jobs = Jobs.of(job_id=["long", "wide", "late"], arrival_s=[0, 0.1, 7], gpus=[1, 3, 2], work_s=[18, 16, 6])
    policy = Policy(order="las2d")
    predicted = simulate(cluster, jobs, FreeCommunication(), policy)
    with local_slurm(cluster, tmp_path / "slurm") as environment:
        run = drive_leases(jobs, cluster, policy, FreeCommunication(), environment, resuming(tmp_path), patience_s=200)
        said = run_slurm(["scontrol", "--oneliner", "show", "job"], environment)

    counts = [np.bincount(one.segments["job"], minlength=3) for one in (predicted, run)]
    assert predicted.num_preempted.tolist() == [1, 1, 0]
    assert (counts[1] >= counts[0]).all()
    assert ((run.end_ns - predicted.end_ns) / 1e9 < 6 * counts[1]).all()
    assert run.first_ns.argsort().tolist() == predicted.first_ns.argsort().tolist() == [0, 1, 2]
    # what each says of itself: it went on where it was stopped, and no longer than its work
    assert [float((tmp_path / name).read_text()) / 1e6 for name in jobs.job_id] == pytest.approx([18, 16, 6], abs=0.3)
    rows = {row["JobName"]: row for row in map(fields_of, said.splitlines())}
    wide = rows["windtunnel.wide.1"]
    assert ("3", "m[0-1]", "CANCELLED") == (wide["NumCPUs"], wide["NodeList"], wide["JobState"])
    assert len(rows) == len(run.segments)
