"""Workloads and clusters from files, good and bad, and new ones that look like them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.shared_data import shared_path
from windtunnel.errors import InputError
from windtunnel.systems.cluster.formats import read_jobs, write_jobs
from windtunnel.systems.cluster.generator import fit_mix, generate, with_models
from windtunnel.systems.cluster.gittins import gittins_index
from windtunnel.systems.cluster.jobs import Jobs
from windtunnel.systems.cluster.layout import read_cluster

TIERS = [
    {"name": "machine", "count": 4, "link": {"gbytes_s": 50}},
    {"name": "rack", "count": 2, "link": {"gbytes_s": 1.25, "latency_us": 5, "kind": "ring"}},
    {"name": "network", "count": 2, "link": {"gbytes_s": 0.125, "latency_us": 50}},
]


def written(folder, document):
    path = folder / "cluster.json"
    path.write_text(json.dumps(document))
    return path


def test_a_cluster_comes_back_from_its_file(tmp_path):
    made = read_cluster(written(tmp_path, {"tiers": TIERS, "lease_s": 60, "restart_s_per_gpu": 2}))

    assert (16, 60 * 10**9, 10**9, 2 * 10**9) == (
        made.num_gpus, made.lease_ns, made.checkpoint_ns_per_gpu, made.restart_ns_per_gpu
    )  # fmt: skip
    assert made == read_cluster(written(tmp_path, made.json()))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "a cluster has tiers"),
        ({"tiers": TIERS[:2]}, "the tiers are machine, rack"),
        ({"tiers": [{**TIERS[0], "count": 0}, *TIERS[1:]]}, "count must be 1 or more, not 0"),
        ({"tiers": [{**TIERS[0], "link": {"gbytes_s": 0}}, *TIERS[1:]]}, "a link of 0 GB/s"),
        (
            {"tiers": [{**TIERS[0], "link": {"gbytes_s": 1, "kind": "mesh"}}, *TIERS[1:]]},
            "'mesh' are not supported",
        ),
        ({"tiers": TIERS, "lease": 60}, "unknown field 'lease'"),
        ({"tiers": TIERS, "lease_s": -1}, "lease_s must be seconds"),
        ({"tiers": TIERS, "lease_s": 0}, "lease_ns must be 1 or more"),
        ([], "is not a JSON object"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(tmp_path, document, message):
    with pytest.raises(InputError, match=message) as refused:
        read_cluster(written(tmp_path, document))
    assert "cluster.json" in refused.value.where


OWN = "job_id,arrival_s,gpus,model,iterations,s_per_iteration\n"


def table(folder, text):
    path = folder / "jobs.csv"
    path.write_text(text)
    return path


def test_jobs_come_back_from_what_was_written(tmp_path):
    jobs = read_jobs(table(tmp_path, OWN + "b,5,2,vgg,100,0.5\na,0,1,,10,1\n")).jobs

    assert ["a", "b"] == jobs.job_id.tolist()
    assert [10.0, 25.0] == (jobs.work_ns / 1e9).tolist()
    again = read_jobs(write_jobs(jobs, tmp_path / "again.csv")).jobs
    assert np.allclose(jobs.work_ns, again.work_ns)
    assert jobs.arrival_ns.tolist() == again.arrival_ns.tolist()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a,-1,1,m,1,1", "'-1' is no number of 0 or more"),
        ("a,0,0,m,1,1", "'0' is no number of 1 or more"),
        ("a,0,1.5,m,1,1", "job a asks for 1.5 GPUs"),
        ("a,0,1,m,0,1", "job a runs for 0 s"),
        ("a,0,1,m,-3,1", "'-3' is no number"),
        ("a,0,1,m,,1", "'' is no number"),
        ("a,nan,1,m,1,1", "'nan' is no number"),
        ("a,0,1,m,1,1\na,0,1,m,1,1", "2 jobs have the id 'a'"),
        ("a,0,1,m", "not as many fields"),
        ("", "the file has no rows"),
    ],
)
def test_a_workload_that_cannot_be_is_refused(tmp_path, rows, message):
    with pytest.raises(InputError, match=message):
        read_jobs(table(tmp_path, OWN + rows + "\n"))


def test_columns_of_no_known_format_are_refused_with_those_that_are(tmp_path):
    with pytest.raises(InputError, match="no workload that is known") as refused:
        read_jobs(table(tmp_path, "a,b\n1,2\n"))
    assert "helios" in refused.value.fix


def test_a_helios_trace_has_gaps_that_are_counted(tmp_path):
    head = "job_id,user,vc,jobname,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
    rows = [
        "1,u,v,n,8,64,1,COMPLETED,2020-04-01 00:00:10,2020-04-01 00:00:12,2020-04-01 00:10:12,600,2",
        "2,u,v,n,0,8,1,COMPLETED,2020-04-01 00:00:11,,,5,0",
        "3,u,v,n,1,8,1,CANCELLED,2020-04-01 00:00:12,,,,0",
    ]
    trace = read_jobs(table(tmp_path, head + "\n".join(rows) + "\n"))

    assert ("helios", [8], [600.0]) == (trace.kind, trace.jobs.gpus.tolist(), (trace.jobs.work_ns / 1e9).tolist())
    assert trace.notes[:2] == ("1 rows were left out: they use no GPU", "1 rows were left out: they never ran")
    with pytest.raises(InputError, match="'-600' is no number"):
        read_jobs(table(tmp_path, head + rows[0].replace(",600,", ",-600,") + "\n"))
    with pytest.raises(InputError, match="'noon' is no time"):
        read_jobs(table(tmp_path, head + rows[0].replace("2020-04-01 00:00:10", "noon") + "\n"))


def test_a_pod_that_ends_before_it_begins_is_refused(tmp_path):
    head = "name,cpu_milli,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\n"
    with pytest.raises(InputError, match="ends 5 s before it begins"):
        read_jobs(table(tmp_path, head + "pod,1,1,1000,0,5,10\n"))


@pytest.mark.parametrize(
    ("name", "kind", "num", "arrivals"),
    [
        ("dally/jobs_500.csv", "dally", 500, "p50day"),
        ("tiresias/jobs_60.csv", "tiresias", 60, ""),
        ("philly/jobs.csv.gz", "philly", 62563, ""),
        ("alibaba/openb_pods.csv.gz", "alibaba", 3630, ""),
    ],
)
def test_public_traces_are_read_whole(name, kind, num, arrivals):
    trace = read_jobs(shared_path(f"cluster/{name}"), arrivals=arrivals)

    assert (kind, num) == (trace.kind, len(trace.jobs))


def test_the_shipped_workload_has_the_hours_that_its_readme_says():
    jobs = read_jobs(shared_path("cluster/dally/jobs_500.csv"), arrivals="batch").jobs

    assert 13053.88 == round(jobs.gpu_hours, 2)
    assert not jobs.arrival_ns.any()
    with pytest.raises(InputError, match="no arrivals 'monthly'"):
        read_jobs(shared_path("cluster/dally/jobs_500.csv"), arrivals="monthly")


def some_jobs(num=4000):
    chance = np.random.default_rng(0)
    arrival = np.cumsum(chance.exponential(300, num))
    return Jobs.of(
        arrival_s=arrival, gpus=chance.choice([1, 2, 4, 8, 16], num, p=[0.6, 0.1, 0.1, 0.15, 0.05]),
        work_s=chance.lognormal(7, 2, num), model=chance.choice(["vgg", "bert"], num, p=[0.3, 0.7]),
    )  # fmt: skip


def test_generated_jobs_have_the_demands_of_their_source():
    """Within sampling error: chi-square of 4 degrees of freedom below its 99.9th percentile."""
    jobs = some_jobs()
    mix = fit_mix(jobs)
    made = generate(mix, 5000, seed=3)

    expected = mix.demand_share * len(made)
    found = np.array([(made.gpus == demand).sum() for demand in mix.demands])
    assert ((found - expected) ** 2 / expected).sum() < 18.47
    assert np.log(np.median(made.work_ns) / np.median(jobs.work_ns)) == pytest.approx(0, abs=0.2)
    assert len(made) / (made.arrival_ns[-1] / 1e9) == pytest.approx(mix.arrivals_per_s, rel=0.1)
    assert generate(mix, 50, seed=3).work_ns.tobytes() == generate(mix, 50, seed=3).work_ns.tobytes()
    assert not generate(mix, 50, arrivals_per_s=0).arrival_ns.any()


def test_models_are_drawn_by_their_shares():
    made = with_models(some_jobs(), {"a": 1.0, "b": 3.0}, seed=1)

    assert 0.75 == pytest.approx((made.model == "b").mean(), abs=0.03)
    with pytest.raises(InputError, match="shares above 0"):
        with_models(made, {"a": 0.0})
    with pytest.raises(InputError, match="0 jobs"):
        generate(fit_mix(made), 0)


def test_the_gittins_index_prefers_who_is_about_to_end():
    """Half of the jobs need 1,000 GPU-s, the others 100,000: past 1,000 one has long to go."""
    ages, index = gittins_index([1000.0] * 50 + [100_000.0] * 50)

    at = dict(zip(ages, index, strict=True))
    assert at[0.0] == pytest.approx(0.5 / (0.5 * 1000 + 0.5 * 3250))
    assert at[1000.0] == 0.0
    with pytest.raises(InputError, match="above 0"):
        gittins_index([])


def test_compressed_arrivals_load_a_cluster_more():
    jobs = some_jobs(50)

    assert np.allclose(jobs.arrival_ns / 4, jobs.speed_up_arrivals(4).arrival_ns, atol=1)
    with pytest.raises(InputError, match="0 times as fast"):
        jobs.speed_up_arrivals(0)
