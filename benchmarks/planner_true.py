"""PipeDream-2BW's planner against every plan of a small grid, really run.

A workload of equal blocks on up to four processes of this host: every width, depth, microbatch, with and without
computing again, never emptied and emptied. Each plan trains for some steps, all plans in turns, twice and more, and
once with every storage followed. Then: the measured step of the planner's pick (the first by replay) over that of the
quickest plan; the rank correlation of predicted and measured steps; the predicted peak of the worker that holds most
against the measured one, the worst of all plans.
``--rounds N`` turns, ``--steps N`` per turn, ``--workers N``, ``--no-memory``, ``--case NAME``, ``--verbose``.
"""

import argparse
import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks import bar

MOST_BEHIND, LEAST_CORRELATION, MOST_MEMORY_ERROR = 1.05, 0.9, 0.05
WORKERS = 4
CASES: dict[str, tuple[str, dict[str, Any], int, tuple[int, ...]]] = {
    "mlp": ("mlp", {"width": 768, "depth": 9}, 128, (8, 32)),
    "decoder-lm": ("decoder-lm", {"size": "small"}, 16, (2, 4)),
}
TARGET = (
    f"pick within {MOST_BEHIND - 1:.0%} of the best, rank correlation >= {LEAST_CORRELATION}, "
    f"peak memory within {MOST_MEMORY_ERROR:.0%}"
)


class Case:
    """A workload with all its plans, and what they were predicted to take."""

    def __init__(self, name: str, num_workers: int = WORKERS) -> None:
        from windtunnel.systems.pipelines.training.profiled import (
            capture_blocks,
            conditions_for,
            links_of,
            rank_on_host,
        )
        from windtunnel.systems.pipelines.two_bw import Job, plan_2bw

        self.workload, self.parameters, self.batch, sizes = CASES[name]
        self.profiles = capture_blocks(self.workload, self.parameters, self.batch, sizes)
        conditions = conditions_for(self.workload, self.parameters, self.profiles, num_workers, self.batch)
        job = Job(num_workers, float("inf"), self.batch, links_of(conditions, num_workers))
        self.played = rank_on_host(plan_2bw(self.profiles, job).feasible, self.profiles, conditions)
        self.conditions = conditions

    def run(self, which: int, num_steps: int, *, watches_memory: bool = False) -> Any:
        """Really train by a plan."""
        from windtunnel.systems.pipelines.training.profiled import pipeline_of
        from windtunnel.systems.pipelines.training.train import train_pipeline

        planned = pipeline_of(self.played[which], self.profiles, self.workload, self.parameters, self.batch)
        return train_pipeline(planned.orders(num_steps, watches_memory=watches_memory))


def measured_ns(case: Case, rounds: int, num_steps: int) -> list[float]:
    """The median over rounds of each plan's median step; all plans in every round, in an order of its own."""
    steps: list[list[float]] = [[] for _ in case.played]
    random = np.random.default_rng(0)
    for _ in range(rounds):
        for which in random.permutation(len(case.played)).tolist():
            steps[which].append(case.run(which, num_steps).step_ns.value)
    return [statistics.median(one) for one in steps]


def memory_errors(case: Case) -> Iterator[float]:
    """Predicted over measured peak of each plan's worker that holds most, less one."""
    for which, one in enumerate(case.played):
        reports = case.run(which, 3, watches_memory=True).reports
        yield one.row.peak_bytes / max(report.memory["peak"] for report in reports) - 1.0


def main() -> None:
    """Print the bar, and with --verbose every plan."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--case", choices=tuple(CASES), default="mlp")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    case = Case(options.case, options.workers)
    found_ns = measured_ns(case, options.rounds, options.steps)
    errors = [0.0] * len(found_ns) if options.no_memory else list(memory_errors(case))
    predicted_ns = [one.step_ns for one in case.played]
    behind = found_ns[0] / min(found_ns)
    related = bar.rank_correlation(predicted_ns, found_ns)
    worst_memory = max(map(abs, errors))
    if options.verbose:
        print(bar.table([
            {"plan": str(one.row), "planner_ms": one.row.step_ns / 1e6, "predicted_ms": one.step_ns / 1e6,
             "measured_ms": step / 1e6, "error": one.step_ns / step - 1.0, "memory_error": error}
            for one, step, error in zip(case.played, found_ns, errors, strict=True)
        ]))  # fmt: skip
    bar.report(
        "planner_true", behind, TARGET,
        behind <= MOST_BEHIND and related >= LEAST_CORRELATION and worst_memory <= MOST_MEMORY_ERROR,
        rank_correlation=related, worst_memory_error=worst_memory, num_plans=len(found_ns),
        correlation_of_cost_functions=bar.rank_correlation([one.row.step_ns for one in case.played], found_ns),
        median_step_error=statistics.median(
            abs(one / step - 1.0) for one, step in zip(predicted_ns, found_ns, strict=True)
        ),
        slowdown=list(case.conditions.slowdown), pick=str(case.played[0].row), case=options.case,
    )  # fmt: skip


if __name__ == "__main__":
    main()
