"""Real jobs on real links under the policy object that the simulator runs: completion times predicted and measured.

Two racks of two machines of two slots, each a process in its machine's namespace; cables of 125 MB/s within a rack and
12.5 MB/s between them. Ten jobs of two models arrive over about a minute; each model is measured alone on each shape
first. Jobs that send over one link slow each other down in the prediction; beside it stands what it says without that.
Three runs of each of three policies. ``--repeats N``. Needs network namespaces.
"""

import argparse
import statistics
from dataclasses import replace

import numpy as np

from benchmarks import bar

TARGET = "mean JCT within 10 %, each job within 20 %, same order of starts in >= 80 % of pairs, in each of 3 runs"
GRADIENTS = {"vgg": 1_000_000, "resnet": 100_000}
POLICIES = ("dally-nowait", "dally-manual:rack_timer_h=0.0005,network_timer_h=0.001", "fifo")


def the_jobs():
    from windtunnel.systems.cluster.jobs import Jobs

    random = np.random.default_rng(5)
    num = 10
    return Jobs.of(
        job_id=[f"job{at}" for at in range(num)], arrival_s=np.cumsum(random.exponential(4.0, num)),
        gpus=[3, 2, 4, 1, 2, 3, 1, 4, 2, 2], work_s=random.uniform(6, 16, num), iteration_s=[0.1] * num,
        model=[str(one) for one in random.choice(list(GRADIENTS), num)],
    )  # fmt: skip


def ordered(one, other) -> float:
    """Share of pairs that start in the same order."""
    pairs = [(a, b) for a in range(len(one)) for b in range(a) if other[a] != other[b]]
    return statistics.mean(float((one[a] < one[b]) == (other[a] < other[b])) for a, b in pairs)


def main() -> None:
    from windtunnel.hardware import Link
    from windtunnel.systems.cluster.layout import Cluster
    from windtunnel.systems.cluster.model import simulate
    from windtunnel.systems.cluster.policy import read_policy
    from windtunnel.systems.cluster.real.drive import drive, measure_speeds
    from windtunnel.systems.cluster.real.slots import real_slots

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    wires = (
        Link("machine", 1e9, latency_ns=0),
        Link("rack", 125e6, latency_ns=0),
        Link("network", 12.5e6, latency_ns=0),
    )
    cluster = Cluster(2, 2, 2, wires, lease_ns=20 * 10**9, checkpoint_ns_per_gpu=0, shares_links=True)
    jobs, rows = the_jobs(), []
    with real_slots(cluster) as slots:
        speeds = measure_speeds(slots, jobs, cluster, GRADIENTS)
        for text in POLICIES:
            policy = read_policy(text)
            predicted = simulate(cluster, jobs, speeds, policy)
            alone = simulate(replace(cluster, shares_links=False), jobs, speeds, policy)
            for _ in range(given.repeats):
                run = drive(slots, jobs, cluster, policy, speeds, GRADIENTS)
                each = predicted.jct_ns / run.jct_ns - 1
                rows.append(
                    {
                        "policy": text, "mean_off": float(predicted.jct_ns.mean() / run.jct_ns.mean() - 1),
                        "worst_off": float(np.abs(each).max()), "order": ordered(predicted.first_ns, run.first_ns),
                        "mean_jct_s": float(run.jct_ns.mean() / 1e9),
                        "mean_off_alone": float(alone.jct_ns.mean() / run.jct_ns.mean() - 1),
                        "worst_off_alone": float(np.abs(alone.jct_ns / run.jct_ns - 1).max()),
                    }
                )  # fmt: skip
    worst = max(abs(row["mean_off"]) for row in rows)
    holds = worst <= 0.1 and max(row["worst_off"] for row in rows) <= 0.2 and min(row["order"] for row in rows) >= 0.8
    speeds_of = {f"{model} {shape}": value for (model, shape), value in speeds.rows.items()}
    bar.report("cluster_flown", worst, TARGET, holds, rows=rows, speeds=speeds_of)


if __name__ == "__main__":
    main()
