"""The published tuner of delay timers against fixed pairs, and marginal timers against the best of them.

Four loads: the 500 jobs as they arrive (100 a day) and compressed, on 64 GPUs. Every pair of an 8 x 8 grid of timers
is simulated under the order of Dally. The published tuner is reproduced: its floors are 6 and 12 leases and its
ceilings 0.8 H and H, so what it chooses is known where no wait was recorded. Marginal timers, under the same order,
must come within 5 % of the best pair on each load, without anybody having searched.
"""

import argparse

from benchmarks import bar
from benchmarks.clusters import SETTINGS, outcome, setting, speeds_on
from windtunnel.systems.cluster.policy import Policy
from windtunnel.systems.cluster.search import tune

TARGET = "marginal timers <= 1.05 x the best fixed pair of 8 x 8 in mean JCT, on each of 4 loads"
LOADS = (0.5, 1.0, 1.5, 2.0)
MOST = 1.05


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--setting", type=int, default=2, choices=range(3))
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    rows = []
    name = list(SETTINGS)[options.setting]
    for load in LOADS:
        cluster, jobs = setting(name)
        jobs = jobs.speed_up_arrivals(load)
        found = tune(cluster, jobs, speeds_on(cluster), Policy(order="nw_sens"))
        _, marginal = outcome(cluster, jobs, Policy(order="nw_sens", timers="marginal"))
        best = found.pairs[found.best].mean_jct_h
        rows.append({
            "load": load, "best_pair_h": f"{found.best[0] / 3600:g} {found.best[1] / 3600:g}", "best_jct_h": best,
            "auto_ratio": found.auto.mean_jct_h / best, "marginal_ratio": marginal.mean_jct_h / best,
            "worst_ratio": max(one.mean_jct_h for one in found.pairs.values()) / best,
        })  # fmt: skip
        if options.verbose:
            print(rows[-1], flush=True)
    worst = max(row["marginal_ratio"] for row in rows)
    bar.report(
        "cluster_tuner", worst, TARGET, worst <= MOST, setting=name, loads=len(LOADS),
        auto_worst_ratio=max(row["auto_ratio"] for row in rows),
        grid_worst_ratio=max(row["worst_ratio"] for row in rows),
    )  # fmt: skip


if __name__ == "__main__":
    main()
