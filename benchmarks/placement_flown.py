"""A placement's replayed step against the really run one, and the planner's split against other ones.

Workloads cut into 2 and 4 stages by the planner (the exact plan, improved by local search for the cores that stages
share), evenly, and at random; every split becomes stages of ``torch.distributed.pipelining``, which gloo processes of
this host run in turns, together with one process that does it all. The replay knows the captured microbatch, and of the
flight what a message takes, how processes slow each other and how they vary. Error: replayed over measured step, both
relative to the one process of their own run; its median over all splits. Then: the planner's median step over that of
the best other split, the worst of all cases.
``--splits N`` random ones, ``--time-limit SECONDS`` of rounds per case, ``--case NAME`` for one.
"""

import argparse
import statistics

import numpy as np

from benchmarks import bar

MOST_ERROR, MOST_BEHIND = 0.06, 1.05
CASES = {
    "vit": ("vit", {"size": "tiny", "batch_size": 256}),
    "decoder-lm": ("decoder-lm", {"size": "tiny", "batch_size": 512}),
}
STAGES, MICROBATCHES, ROUNDS = (2, 4), 8, 40
TARGET = f"median error <= {MOST_ERROR:.0%}, and the planner's split within {MOST_BEHIND - 1:.0%} of the best one flown"


def flown(workload: str, parameters: dict, num_stages: int, num_random: int, time_limit_s: float):
    """Receipts of all splits, the planner's first."""
    from windtunnel.search.placement.baselines import even, random_cut
    from windtunnel.search.placement.search import place
    from windtunnel.systems.pipelines.flight import fly_pipelines
    from windtunnel.systems.pipelines.training.run import job_of
    from windtunnel.systems.pipelines.training.search import improve

    job = job_of(workload, parameters, num_stages, MICROBATCHES)
    problem = job.layers.problem
    planned = improve(job, place(problem))
    plans = [planned, even(problem), *(random_cut(problem, seed) for seed in range(num_random))]
    return fly_pipelines(job, plans, rounds=ROUNDS, time_limit_s=time_limit_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--time-limit", type=float, default=240.0)
    parser.add_argument("--case", choices=tuple(CASES))
    options, _ = parser.parse_known_args()
    errors, behind, rows = [], {}, []
    for name in [options.case] if options.case else CASES:
        for stages in STAGES:
            receipts = flown(*CASES[name], stages, options.splits, options.time_limit)
            errors += [abs(one.error_ratio) for one in receipts]
            # speed-ups are paired with the one process of the same round: what drifts cancels
            best = max(receipts[1:], key=lambda one: one.measured)
            behind[f"{name}_{stages}"] = best.measured / receipts[0].measured
            rows += [
                [name, str(stages), one.parameters["solver"], f"{one.predicted:.2f}x", f"{one.measured:.2f}x",
                 f"{one.error_ratio:+.1%}", f"{one.measured_ns / 1e6:.0f} ms", str(one.num_rounds)]
                for one in (receipts[0], receipts[1], best)
            ]  # fmt: skip
            if bar.is_verbose():
                bar.table(["case", "stages", "split", "predicted", "measured", "error", "step", "rounds"], rows[-3:])
    error, worst = statistics.median(errors), max(behind.values())
    bar.report(
        "placement_flown", error, TARGET, error <= MOST_ERROR and worst <= MOST_BEHIND,
        planner_behind_best=worst, num_splits=len(errors), error_p90=float(np.quantile(errors, 0.9)),
        **{f"behind_{name}": value for name, value in behind.items()},
    )  # fmt: skip


if __name__ == "__main__":
    main()
