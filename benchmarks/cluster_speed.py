"""Seconds of one core for the whole Philly trace, beside the naive simulator.

62,563 jobs, auto timers, leases of 1 h, on 512 and on 384 GPUs, after compilation. The naive simulator of the tests
runs the first jobs of the same trace. AccaSim, another simulator of clusters, is not compared yet.
"""

import argparse
import time

from tests.cluster.reference import Reference
from tests.shared_data import find_shared

from benchmarks import bar
from windtunnel.cluster import Cluster, policy_of, simulate
from windtunnel.cluster.formats import read_jobs
from windtunnel.cluster.speeds import FreeCommunication
from windtunnel.hardware import Link

TARGET = "<= 10 s on 512 GPUs, <= 30 s on 384, >= 50x a naive simulator"
WIRE = Link("wire", 1e9)


def cluster_of(racks):
    return Cluster(8, 4, racks, (WIRE, WIRE, WIRE))


def seconds(run):
    before = time.process_time()
    run()
    return time.process_time() - before


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--naive-jobs", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    trace = find_shared("cluster/philly/jobs.csv.gz")
    if trace is None:
        raise SystemExit(
            "the Philly trace is not here; point WINDTUNNEL_SHARED at the folder that holds cluster/philly"
        )
    jobs, speeds, auto = read_jobs(trace).jobs, FreeCommunication(), policy_of("dally")
    few = jobs.take(slice(0, options.naive_jobs))
    simulate(cluster_of(16), few, speeds, auto)  # compiles
    large, small = (
        min(seconds(lambda n=racks: simulate(cluster_of(n), jobs, speeds, auto)) for _ in range(options.rounds))
        for racks in (16, 12)
    )
    ours = min(seconds(lambda: simulate(cluster_of(16), few, speeds, auto)) for _ in range(options.rounds))
    naive = seconds(lambda: Reference(cluster_of(16), few, speeds, auto).run())
    holds = large <= 10 and small <= 30 and naive / ours >= 50
    bar.report("cluster_speed", large, TARGET, holds, seconds_384=small, naive_ratio=naive / ours,
               jobs=len(jobs), naive_jobs=len(few))  # fmt: skip


if __name__ == "__main__":
    main()
