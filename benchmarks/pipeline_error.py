"""A schedule's replayed step against the really run one: schedules x partitions x numbers of processes.

A small language model is cut into as many stages as each schedule has, evenly and unevenly, and trains on 2 and on 4
gloo processes of this host, which take turns with one process that does it all. The replay knows the captured
microbatch, and of the flight what a message takes, what the schedule itself computes, what parts of a backward pass
take, how processes on fewer cores slow each other, and how they vary; it knows no pipeline. Error: replayed over
measured step, of all batches of a table, both relative to the one process of their own run.
``--case SCHEDULE`` and ``--ranks N`` for one, ``--time-limit SECONDS`` of rounds per schedule; all of them take about
forty minutes, so that ``run_all`` needs ``--timeout 3600``.
"""

import argparse
import statistics
from collections.abc import Sequence

from benchmarks import bar
from windtunnel.systems.pipelines.generate import generate
from windtunnel.systems.pipelines.schedules import Schedule

MEDIAN_ERROR, WORST_ERROR = 0.05, 0.12
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipev", "pipedream", "2bw")
NOT_EMPTIED = ("pipedream", "2bw")
RANKS, MICROBATCHES, BATCHES, ROUNDS = (2, 4), 8, 3, 24
WORKLOAD, PARAMETERS = "decoder-lm", {"size": "small", "batch_size": 8}  # four blocks of width 256
TARGET = f"median error <= {MEDIAN_ERROR:.0%}, worst <= {WORST_ERROR:.0%}"


def errors_of(table: Schedule, time_limit_s: float, num_random: int, parameters: dict) -> list[dict[str, object]]:
    """Predicted and measured steps of the even partition and of uneven ones, relative to one process."""
    from windtunnel.search.placement.baselines import even, random_cut
    from windtunnel.systems.pipelines.training.run import job_of, run_pipelines

    job = job_of(WORKLOAD, parameters, table.num_stages, table.num_microbatches, table=table)
    problem = job.layers.problem
    plans = [even(problem), *_uneven(random_cut, problem, table.num_stages, num_random)]
    runs = run_pipelines(job, plans, schedule=table, rounds=ROUNDS, time_limit_s=time_limit_s)
    return [
        {
            "schedule": table.name,
            "ranks": table.num_ranks,
            "partition": "even" if number == 0 else f"uneven {number}",
            "predicted_ms": run.predicted_ns / 1e6,
            "measured_ms": run.changed.value / 1e6,
            "error": run.predicted_ns / run.predicted_baseline_ns * run.speedup.value - 1,
            "rounds": run.num_rounds,
        }
        for number, run in enumerate(runs)
    ]


def _uneven(random_cut, problem, num_stages: int, number: int) -> list:
    """Random cuts that use every stage."""
    found = []
    for seed in range(1000):
        plan = random_cut(problem, seed)
        if len(plan.kind) == num_stages and plan.loads.is_allowed:
            found.append(plan)
        if len(found) == number:
            break
    return found


def tables(names: Sequence[str], ranks: Sequence[int]) -> list[Schedule]:
    """Those that go on for several batches are flown for several."""
    return [
        generate(name, number, MICROBATCHES, num_batches=BATCHES if name in NOT_EMPTIED else 1)
        for number in ranks for name in names
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=SCHEDULES, action="append")
    parser.add_argument("--ranks", type=int, choices=RANKS, action="append")
    parser.add_argument("--partitions", type=int, default=1, help="uneven ones")
    parser.add_argument("--time-limit", type=float, default=45.0)
    parser.add_argument("--batch-size", type=int, default=PARAMETERS["batch_size"])
    options, _ = parser.parse_known_args()
    rows: list[dict[str, object]] = []
    for table in tables(options.case or SCHEDULES, options.ranks or RANKS):
        parameters = PARAMETERS | {"batch_size": options.batch_size}
        rows += errors_of(table, options.time_limit, options.partitions, parameters)
        if bar.is_verbose():
            print(bar.table(rows[-1 - options.partitions :]), flush=True)
    found = [abs(float(row["error"])) for row in rows]
    error, worst = statistics.median(found), max(found)
    by_schedule = {
        name: statistics.median(abs(float(row["error"])) for row in rows if row["schedule"] == name)
        for name in dict.fromkeys(str(row["schedule"]) for row in rows)
    }
    bar.report(
        "pipeline_error", error, TARGET, error <= MEDIAN_ERROR and worst <= WORST_ERROR,
        worst=worst, num_runs=len(rows), **{f"median_{name}": value for name, value in by_schedule.items()},
        rows=rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
