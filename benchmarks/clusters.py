"""The three settings and the workload by which policies of clusters are compared, for several scripts.

In: the shared data. Out: clusters, jobs, speeds, runs. Not here: any claim.
"""

from tests.shared_data import find_shared

from benchmarks.bar import ROOT  # noqa: F401 - lets tests/ be imported
from windtunnel.hardware import Link
from windtunnel.search.speeds import LayerSpeeds, read_profiles
from windtunnel.systems.cluster.formats import read_jobs
from windtunnel.systems.cluster.layout import Cluster
from windtunnel.systems.cluster.metrics import summarize
from windtunnel.systems.cluster.model import simulate
from windtunnel.systems.cluster.policy import policy_of

INNER = Link("machine", 50e9)
TEN, ONE = 1.25e9, 0.125e9  # bytes per s of 10 and of 1 Gbit/s
SETTINGS = {
    "batch, 256 GPUs, outer 1 Gbit/s": ((8, 4, 8), ONE, "batch"),
    "p100day, 64 GPUs, outer 1 Gbit/s": ((4, 4, 4), ONE, "p100day"),
    "p100day, 64 GPUs, all 10 Gbit/s": ((8, 4, 2), TEN, "p100day"),
}


def folder():
    found = find_shared("cluster/dally")
    if found is None:
        raise SystemExit("the 500 jobs are not here; point WINDTUNNEL_SHARED at the folder that holds cluster/dally")
    return found


HELD_OUT = {  # on which no setting of ours was chosen: arrivals, and how many times as fast
    "p50day, 64 GPUs, outer 1 Gbit/s": ((4, 4, 4), ONE, "p50day", 1.0),
    "p100week x 3, 64 GPUs, outer 1 Gbit/s": ((4, 4, 4), ONE, "p100week", 3.0),
    "p50day, 64 GPUs, all 10 Gbit/s": ((8, 4, 2), TEN, "p50day", 1.0),
    "p100week x 3, 64 GPUs, all 10 Gbit/s": ((8, 4, 2), TEN, "p100week", 3.0),
    "p100day x 4, 256 GPUs, outer 1 Gbit/s": ((8, 4, 8), ONE, "p100day", 4.0),
}


def setting(name):
    """Cluster and jobs."""
    sizes, outer, arrivals, *faster = (SETTINGS | HELD_OUT)[name]
    cluster = Cluster(*sizes, (INNER, Link("rack", TEN, 5000), Link("network", outer, 50_000)))
    return cluster, read_jobs(folder() / "jobs_500.csv", arrivals=arrivals).jobs.speed_up_arrivals(*faster or (1.0,))


def speeds_on(cluster, rule="exact", overlap=False):
    return LayerSpeeds(read_profiles(folder() / "layers"), cluster.links, rule=rule, overlap=overlap)


def outcome(cluster, jobs, policy, rule="exact", quantum=0):
    """Run and summary of a policy or of one by name."""
    policy = policy_of(policy) if isinstance(policy, str) else policy
    run = simulate(cluster, jobs, speeds_on(cluster, rule), policy, quantum=quantum)
    return run, summarize(run)


def row(setting_name, rule, policy, run, summary):
    """One line of a table."""
    return {
        "setting": setting_name, "shapes": rule, "policy": policy, "makespan_h": summary.makespan_h,
        "mean_jct_h": summary.mean_jct_h, "p99_jct_h": summary.jct_h[99], "multi_jct_h": summary.mean_jct_multi_h,
        "single_jct_h": summary.mean_jct_single_h, "communication": summary.communication_share,
        "most_queueing_h": float(run.queueing_ns.max() / 3.6e12),
    }  # fmt: skip
