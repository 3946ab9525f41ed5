"""The exact programme and the integer one find what trying every assignment finds, on small random problems.

500 graphs of up to nine nodes: colors, memory limits, CPUs, nodes that only a CPU runs, training with backward
partners, four ways to add up compute and transfers. The integer programme (contiguous, proven to 1e-6) on those that
add up.
"""

import argparse
import math

import numpy as np
from tests.search.problems import brute_force, random_problem

from benchmarks import bar
from windtunnel.errors import InfeasibleError
from windtunnel.search.placement.throughput import exact, solve_linearization
from windtunnel.search.placement.throughput_ilp import integer_plan

COMBINES = ("sum", "overlap", "duplex", "overlap-duplex")
TARGET = "= 0 of 500 differ, programme or ILP"


def value(solver, one, **options) -> float:
    """What a solver reaches; infinite where it says that nothing fits."""
    try:
        return solver(one, **options).value_ns
    except InfeasibleError:
        return math.inf


def from_a_start(one):
    """The integer programme where a plan is known, which bars nodes from devices; without one where no chain fits."""
    try:
        start = solve_linearization(one, orders=["depth-first"])
    except InfeasibleError:
        start = None
    return integer_plan(one, start, gap=1e-6, time_limit_s=30.0)


def main() -> None:
    """Print the bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verbose", action="store_true", help="print what differs")
    parser.add_argument("--graphs", type=int, default=500)
    options = parser.parse_args()
    wrong, num_integer, num_infeasible = [], 0, 0
    for seed in range(options.graphs):
        rng = np.random.default_rng(seed)
        is_training = seed % 3 == 0
        most = 4 if is_training else 9
        one = random_problem(
            rng, int(rng.integers(2, most + 1)), is_training=is_training,
            num_colors=5 if seed % 4 == 1 or most == 9 else None,
        )  # fmt: skip
        combine = COMBINES[seed % 4]
        truth = brute_force(one, combine=combine)
        num_infeasible += math.isinf(truth)
        found = {"dp": value(exact, one, combine=combine)}
        if combine == "sum":
            found["ilp"] = value(integer_plan, one, gap=1e-6, time_limit_s=30.0)
            found["ilp from a start"] = value(from_a_start, one)
            num_integer += 1
        wrong += [
            {"seed": seed, "solver": name, "found": number, "truth": truth}
            for name, number in found.items()
            if not math.isclose(number, truth, rel_tol=1e-9 if name == "dp" else 1e-6, abs_tol=1e-9)
        ]
    if options.verbose:
        for row in wrong:
            print(row)
    bar.report(
        "placement_property",
        len(wrong),
        TARGET,
        not wrong and options.graphs >= 500,
        num_graphs=options.graphs,
        num_integer=num_integer,
        num_infeasible=num_infeasible,
        wrong=wrong[:5],
    )


if __name__ == "__main__":
    main()
