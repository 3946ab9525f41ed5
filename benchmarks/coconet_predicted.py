"""Plans of CoCoNet replayed and run: the instructions that processes run are the tasks of the simulated step.

Single instructions are measured in the processes that run them, on data in memory and in the cache; the replay puts
them together. Products with their all-reduce on 2 and 4 processes over emulated links, a pipeline's boundary on 2 + 2,
optimizers on 2 over shared memory. As the rate of memory varies, instructions and schedules are measured in turn, three
times. The replay has to say what each schedule takes, and which one is best.
"""

import argparse
import os

import numpy as np

from benchmarks import bar
from benchmarks.coconet_tuned import optimizer_schedules, plans_of, product_schedules
from windtunnel.hardware import Link
from windtunnel.measure.turns import quiet_rows
from windtunnel.simulate import replay
from windtunnel.systems.collectives.calibration import calibrate
from windtunnel.systems.collectives.executor import Executor
from windtunnel.systems.collectives.schedules import closure
from windtunnel.systems.collectives.simulated import build_plan_graph
from windtunnel.systems.collectives.workloads import adam, lamb, pipeline

MAX_ERROR, MAX_LOSS = 0.10, 1.03
NUM_PHASES, NUM_OPTIMIZER_ROUNDS = 3, 15
TARGET = f"median error <= {MAX_ERROR:.0%}; predicted best <= {MAX_LOSS} x measured best"
BOUNDARY = ("AR - fuse(C) - P2P", "RS - fuse(C) - P2P - AG", "RS - fuse(C-P2P) - AG", "overlap(RS, fuse(C-P2P), AG)")


def boundary_schedules():
    """Schedules of a pipeline's boundary, from what frameworks do to the published one."""
    programs = {schedule.label: schedule.program for schedule in closure(pipeline(2, 2, 512, 1024))}
    return {label: programs[label] for label in BOUNDARY}


def compare(schedules, link, rounds, whole=()):
    """Measured and predicted milliseconds of each schedule."""
    plans = plans_of(schedules, whole)
    num_cores = len(os.sched_getaffinity(0))
    with Executor(len(next(iter(plans.values())).ranks), link=link) as executor:
        numbers = [executor.load(plan) for plan in plans.values()]
        calibrations, samples = [], []
        for _ in range(NUM_PHASES):
            calibrations.append(calibrate(executor, numbers, num_cores=num_cores))
            samples.append(executor.time(numbers, rounds).max(axis=2))
    measured = quiet_rows(np.concatenate(samples)) / 1e6
    predicted = [
        float(np.median([
            replay(build_plan_graph(plan, calibration, link, num_cores=num_cores)).makespan_ns / 1e6
            for calibration in calibrations
        ]))
        for plan in plans.values()
    ]  # fmt: skip
    return {name: pair for name, *pair in zip(plans, measured.tolist(), predicted, strict=True)}


def loss(pairs):
    """Measured time of the schedule that is predicted to be best, over that of the best."""
    best = min(pairs.values(), key=lambda pair: pair[1])
    return best[0] / min(measured for measured, _ in pairs.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of a phase, of products")
    parser.add_argument("--rate", type=float, default=64e6, help="bytes per second of emulated links")
    arguments = parser.parse_args()
    link = Link(name="emulated", bandwidth_bytes_per_s=arguments.rate, latency_ns=20_000)
    flown = {
        f"product k={num_ranks}": compare(product_schedules(num_ranks), link, arguments.rounds, ("MM-AR-C",))
        for num_ranks in (2, 4)
    }
    flown["pipeline 2+2"] = compare(boundary_schedules(), link, arguments.rounds)
    for build in (adam, lamb):
        flown[f"{build.__name__} 2^22"] = compare(optimizer_schedules(build, 1 << 22), None, NUM_OPTIMIZER_ROUNDS)
    errors = [abs(pair[1] / pair[0] - 1) for pairs in flown.values() for pair in pairs.values()]
    contests = {
        name: {key: pair for key, pair in pairs.items() if key not in ("compute", "communication")}
        for name, pairs in flown.items()
    }
    losses = {name: loss(pairs) for name, pairs in contests.items()}
    error = float(np.median(errors))
    holds = error <= MAX_ERROR and max(losses.values()) <= MAX_LOSS
    bar.report(
        "coconet_predicted", error, TARGET, holds, max_error=max(errors), num_schedules=len(errors),
        predicted_best_over_best=losses, measured_and_predicted_ms=flown,
    )  # fmt: skip


if __name__ == "__main__":
    main()
