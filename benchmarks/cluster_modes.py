"""Fluid time against quanta of 1,000 iterations, as the published simulator has them, on the 500 jobs.

Between two scheduling events a job advances at its speed; with quanta it ends or gives way only after whole ones.
Mean completion time and makespan must agree; the fluid run must handle far fewer events. Without leases nothing else
happens. With leases, who gets which GPUs after one depends on seconds: beside the difference stands how far fluid
runs differ among themselves when the lease is a few seconds longer or shorter.
"""

import argparse
from dataclasses import replace

from benchmarks import bar
from benchmarks.clusters import SETTINGS, outcome, setting
from windtunnel.systems.cluster.policy import policy_of

TARGET = "<= 1 % in mean JCT and makespan, >= 50x fewer events, three settings"
QUANTUM, MOST_OFF, LEAST_RATIO = 1000, 0.01, 50
SECONDS = (-3, -2, -1, 1, 2, 3)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", default="dally-consolidated")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    rows = []
    for name in SETTINGS:
        cluster, jobs = setting(name)
        (fluid, one), (whole, other) = (
            outcome(cluster, jobs, policy_of(options.policy), quantum=quantum) for quantum in (0, QUANTUM)
        )
        means = [outcome(replace(cluster, lease_ns=cluster.lease_ns + off * 10**9), jobs, policy_of(options.policy))[1]
                 for off in SECONDS]  # fmt: skip
        spread = max(near.mean_jct_h for near in means) / min(near.mean_jct_h for near in means) - 1
        (_, plain), (_, rounded) = (outcome(cluster, jobs, "fifo", quantum=quantum) for quantum in (0, QUANTUM))
        rows.append({
            "setting": name, "jct_off": other.mean_jct_h / one.mean_jct_h - 1,
            "makespan_off": other.makespan_h / one.makespan_h - 1, "fluid_events": fluid.num_events,
            "quantum_events": whole.num_events, "ratio": whole.num_events / fluid.num_events,
            "fluid_spread": spread, "fifo_off": rounded.mean_jct_h / plain.mean_jct_h - 1,
        })  # fmt: skip
    if options.verbose:
        print(bar.table(rows))
    worst = max(max(abs(row["jct_off"]), abs(row["makespan_off"])) for row in rows)
    ratio = min(row["ratio"] for row in rows)
    bar.report("cluster_modes", worst, TARGET, worst <= MOST_OFF and ratio >= LEAST_RATIO, policy=options.policy,
               least_event_ratio=ratio, settings=len(rows),
               fluid_spread=max(row["fluid_spread"] for row in rows),
               without_leases=max(abs(row["fifo_off"]) for row in rows))  # fmt: skip


if __name__ == "__main__":
    main()
