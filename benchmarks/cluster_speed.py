"""Seconds of one core for the whole Philly trace, beside the naive simulator of the tests and AccaSim.

62,563 jobs, auto timers, leases of 1 h, on 512 and on 384 GPUs, after compilation. The naive simulator runs the first
jobs of the same trace. AccaSim, a simulator of clusters in Python, runs them too: first come, first fit, a job that
does not fit lets others pass, no leases and no communication on either side, so that both come to one mean time.

    python -m benchmarks.cluster_speed --peer-python ENVIRONMENT/bin/python

The environment has ``accasim``; or ``WINDTUNNEL_PEER_ACCASIM`` names it.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from tests.shared_data import find_shared
from tests.systems.cluster.reference import Reference

from benchmarks import bar
from windtunnel.hardware import Link
from windtunnel.search.speeds import FreeCommunication
from windtunnel.systems.cluster.formats import read_jobs
from windtunnel.systems.cluster.jobs import Jobs
from windtunnel.systems.cluster.layout import Cluster
from windtunnel.systems.cluster.model import simulate
from windtunnel.systems.cluster.policy import Policy, policy_of

TARGET = "<= 10 s on 512 GPUs, <= 30 s on 384, >= 50x a naive simulator, >= 20x AccaSim at an equal mean JCT (0.1 %)"
WIRE = Link("wire", 1e9)


def cluster_of(racks):
    return Cluster(8, 4, racks, (WIRE, WIRE, WIRE))


def seconds(run):
    before = time.process_time()
    run()
    return time.process_time() - before


def in_whole_seconds(jobs: Jobs) -> Jobs:
    """As the peer's format has them, from time 0 on."""
    arrival_s = np.round((jobs.arrival_ns - jobs.arrival_ns.min()) / 1e9)
    return Jobs.of(arrival_s=arrival_s, gpus=jobs.gpus, work_s=np.maximum(1, np.round(jobs.work_ns / 1e9)))


def theirs(python: str, jobs: Jobs, cluster: Cluster) -> dict:
    """The peer's run of them."""
    rows = zip((jobs.arrival_ns // 10**9).tolist(), jobs.gpus.tolist(), (jobs.work_ns / 1e9).tolist(), strict=True)
    lines = [
        f"{at} {arrival} -1 {work:.0f} {gpus} -1 -1 {gpus} {work:.0f} -1 1 1 1 1 1 1 -1 -1"
        for at, (arrival, gpus, work) in enumerate(rows, 1)
    ]
    script = Path(__file__).parent / "peers" / "accasim_fifo.py"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.swf"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        size = [str(cluster.num_machines), str(cluster.gpus_per_machine)]
        command = [python, "-I", "-W", "ignore", str(script), str(path), *size]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the peer failed:\n{done.stderr[-2000:]}")
    found: dict = json.loads(done.stdout.splitlines()[-1])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--naive-jobs", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-python", default=os.environ.get("WINDTUNNEL_PEER_ACCASIM"), metavar="PATH")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    trace = find_shared("cluster/philly/jobs.csv.gz")
    if trace is None:
        raise SystemExit(
            "the Philly trace is not here; point WINDTUNNEL_SHARED at the folder that holds cluster/philly"
        )
    if options.peer_python is None:
        raise SystemExit("name a Python that has accasim: --peer-python ENVIRONMENT/bin/python")
    jobs, speeds, auto = read_jobs(trace).jobs, FreeCommunication(), policy_of("dally")
    few = jobs.take(slice(0, options.naive_jobs))
    simulate(cluster_of(16), few, speeds, auto)  # compiles
    large, small = (
        min(seconds(lambda n=racks: simulate(cluster_of(n), jobs, speeds, auto)) for _ in range(options.rounds))
        for racks in (16, 12)
    )
    ours = min(seconds(lambda: simulate(cluster_of(16), few, speeds, auto)) for _ in range(options.rounds))
    naive = seconds(lambda: Reference(cluster_of(16), few, speeds, auto).run())

    plain, whole = Policy(order="fifo", has_lease=False, fit="first"), in_whole_seconds(few)
    run = simulate(cluster_of(12), whole, speeds, plain)
    own = min(seconds(lambda: simulate(cluster_of(12), whole, speeds, plain)) for _ in range(options.rounds))
    peer = theirs(options.peer_python, whole, cluster_of(12))
    off = float(run.jct_ns.mean()) / 1e9 / peer["mean_jct_s"] - 1
    holds = (
        large <= 10 and small <= 30 and naive / ours >= 50 and peer["seconds"] / own >= 20 and abs(off) <= 1e-3
        and peer["jobs"] == len(whole)
    )  # fmt: skip
    bar.report("cluster_speed", large, TARGET, holds, seconds_384=small, naive_ratio=naive / ours,
               accasim_ratio=peer["seconds"] / own, mean_jct_off=off, jobs=len(jobs), naive_jobs=len(few))  # fmt: skip


if __name__ == "__main__":
    main()
