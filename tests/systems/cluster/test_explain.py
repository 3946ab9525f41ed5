"""Why a job ended when it did: offers that it declined, and what taking them would have given."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.cli.command import windtunnel
from tests.systems.cluster.test_inputs import TIERS
from tests.systems.cluster.worlds import INF, POLICIES, ShapeSpeeds, cluster, world
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.systems.cluster.explain import explain_job
from windtunnel.systems.cluster.formats import read_jobs
from windtunnel.systems.cluster.jobs import Jobs
from windtunnel.systems.cluster.model import Watch, simulate
from windtunnel.systems.cluster.policy import Policy


class HalfOverMachines:
    """Half as fast on two machines."""

    def speed(self, model, batch, shape):
        return 1.0 if sum(map(len, shape)) == 1 else 0.5


def test_a_job_that_waits_for_one_machine_is_told_what_two_would_have_given():
    """The spec's golden case: consolidated, the third job ends at 110 s; taken at once over two machines, at 100 s."""
    jobs = Jobs.of(job_id=["one", "two", "three"], arrival_s=[0, 0, 0], gpus=[3, 3, 2], work_s=[60, 150, 50])
    made = cluster(4, 2, lease_s=10_000)
    policy = Policy(order="fifo", fit="first", rack_timer_s=INF, network_timer_s=INF)

    found = explain_job(made, jobs, HalfOverMachines(), policy, "three")

    assert 110 * 10**9 == found.run.end_ns[2]
    (offer,) = found.declined
    assert (0, 1, 2, 0.5, 100 * 10**9) == (
        offer.time_ns, offer.tier, offer.num_machines, offer.speed, offer.end_ns
    )  # fmt: skip
    assert found.best == offer
    assert offer.mean_jct_ns == pytest.approx((60 + 150 + 100) / 3 * 1e9)


@pytest.mark.parametrize("name", ["consolidated", "timers", "auto", "marginal", "late timers"])
@pytest.mark.parametrize("seed", range(6))
def test_looking_changes_nothing_and_taking_starts_what_was_offered(name, seed):
    """A watched run is the run, bit for bit; with one offer taken, the job starts then, there, at that speed."""
    made, jobs = world(seed)
    plain = simulate(made, jobs, ShapeSpeeds(), POLICIES[name])
    for job in range(0, len(jobs), 5):
        watch = Watch(job)
        seen = simulate(made, jobs, ShapeSpeeds(), POLICIES[name], watch=watch)
        assert plain.segments.tobytes() == seen.segments.tobytes()
        own = plain.segments[plain.segments["job"] == job]
        assert not set(watch.declined["time"].tolist()) & set(own["start"].tolist())
        for offer in watch.declined[:3]:
            taken = simulate(made, jobs, ShapeSpeeds(), POLICIES[name], watch=Watch(job, int(offer["time"])))
            segments = taken.segments[taken.segments["job"] == job]
            first = segments[segments["start"] == offer["time"]]
            assert [(offer["tier"], offer["machines"], offer["speed"])] == first[["tier", "width", "speed"]].tolist()


def test_a_job_that_nobody_knows_and_a_policy_of_ones_own_are_refused():
    made, jobs = world(1)
    with pytest.raises(InputError, match="no job '99'"):
        explain_job(made, jobs, ShapeSpeeds(), POLICIES["auto"], "99")
    own = Policy(has_lease=False, decide=lambda state: ())
    with pytest.raises(NotApplicableError, match="a function of yours decides"):
        explain_job(made, jobs, ShapeSpeeds(), own, str(jobs.job_id[0]))


ACCOUNTS = """JobID|Submit|Start|End|AllocTRES
11|2026-11-01T08:00:00|2026-11-01T08:00:00|2026-11-01T09:00:00|billing=8,cpu=8,gres/gpu=3,mem=32G,node=1
11.batch|2026-11-01T08:00:00|2026-11-01T08:00:00|2026-11-01T09:00:00|cpu=8,gres/gpu=3
12|2026-11-01T08:00:00|2026-11-01T08:00:00|2026-11-01T10:30:00|gres/gpu=3
13_1|2026-11-01T08:00:00|2026-11-01T09:00:00|2026-11-01T09:50:00|gres/gpu=2,gres/gpu:a100=2
14|2026-11-01T08:00:00|2026-11-01T08:10:00|2026-11-01T09:00:00|cpu=4,mem=8G
15|2026-11-01T08:00:00|Unknown|Unknown|gres/gpu=4
"""


def test_what_slurm_keeps_of_its_jobs_is_read(tmp_path):
    path = tmp_path / "accounts.txt"
    path.write_text(ACCOUNTS)
    trace = read_jobs(path)

    assert "slurm" == trace.kind
    assert ["11", "12", "13_1"] == trace.jobs.job_id.tolist()
    assert [3, 3, 2] == trace.jobs.gpus.tolist()
    assert np.allclose([3600, 9000, 3000], trace.jobs.work_ns / 1e9)
    notes = " ".join(trace.notes)
    for words in ("1 rows were left out: they are steps", "they use no GPU", "they never ran"):
        assert words in notes
    path.write_text(ACCOUNTS.replace("2026-11-01T10:30:00", "half past ten"))
    with pytest.raises(InputError, match="'half past ten' is no time") as refused:
        read_jobs(path)
    assert "line 4, column End" in refused.value.where
    path.write_text(ACCOUNTS.replace("2026-11-01T10:30:00", "2026-11-01T07:30:00"))
    with pytest.raises(InputError, match="the job ends 1800 s before it begins"):
        read_jobs(path)


def test_the_command_says_what_the_longest_waiting_job_declined(tmp_path):
    accounts, tiers, speeds = tmp_path / "accounts.txt", tmp_path / "cluster.json", tmp_path / "speeds.csv"
    accounts.write_text(ACCOUNTS)
    tiers.write_text(json.dumps({"tiers": [*TIERS[:2], {**TIERS[2], "count": 1}], "lease_s": 36000}))
    rows = [f"net,{shape},{gpus},1.0,{wait},test\n" for shape, gpus, wait in
            (("3", 3, 0), ("2", 2, 0), ("1+1", 2, 1.0), ("2+1", 3, 1.0))]  # fmt: skip
    speeds.write_text("model,shape,gpus,seconds_compute,seconds_exposed,source\n" + "".join(rows))
    how = ("cluster", "show", str(accounts), "--cluster", str(tiers), "--policy", "dally-consolidated",
           "--models", "net=1", "--speeds", str(speeds))  # fmt: skip
    shown, document = windtunnel(*how), windtunnel(*how, "--json")

    assert 0 == shown.code, shown.stderr
    for words in ("job 13_1 of 2 GPUs", "one rack", "0.50", "min sooner"):
        assert words in shown.stdout
    found = json.loads(document.stdout)
    assert "windtunnel.cluster-explain/1" == found["schema"]
    assert found["declined"][0]["end_ns"] < found["end_ns"]
