"""The space of accelerators and both programmes of PHAZE are exact (room benchmarks).

Claims: the templates that are enumerated are the published candidates, row for row, with their areas; operators of a
layer are scheduled as the best of all schedules by the published integer programme and by the constraint solver; the
stages that are planned for chains are the best of all plans. Random inputs, seeds in order.
"""

import csv
import gzip
import sys
from pathlib import Path

import numpy as np
from tests.shared_data import find_shared
from tests.systems.chips.brute import exhaustive, least_cycles, random_job, random_network, random_operations

from benchmarks.bar import is_verbose, report, table
from benchmarks.peers.operator_cp_sat import constraint_schedules
from benchmarks.peers.operator_ilp import integer_schedule
from benchmarks.peers.operator_schedules import list_schedule
from windtunnel.errors import InfeasibleError
from windtunnel.hardware.templates import template_space
from windtunnel.systems.chips.stages import Stages

NUM_SCHEDULES, NUM_CHAINS = 200, 120
_COLUMNS = ("num_tc", "width", "depth", "num_vc", "width_vc", "GLB_Buffer")


def candidates(path: Path) -> tuple[int, int, float]:
    """How many are published, how many differ, the largest relative error of an area."""
    with gzip.open(path, "rt") as file:
        rows = list(csv.DictReader(file))
    published = {tuple(int(row[one]) for one in _COLUMNS): float(row["area"]) for row in rows}
    space = template_space()
    fields = ("num_tensor_cores", "width", "depth", "num_vector_cores", "vector_width", "sram_bytes")
    found = dict(
        zip(zip(*(getattr(space, one).tolist() for one in fields), strict=True), space.area_um2.tolist(), strict=True)
    )
    both = published.keys() & found.keys()
    errors = [abs(found[one] / published[one] - 1) for one in both]
    return len(rows), len(published.keys() ^ found.keys()), max(errors)


def schedules() -> dict[str, int]:
    """Graphs whose shortest schedule each solver finds, and those of which a list schedule is proven to be."""
    tasks = [random_operations(seed) for seed in range(NUM_SCHEDULES)]
    best = [least_cycles(*task) for task in tasks]
    by_constraints = constraint_schedules(tasks, gap=0.0)
    by_programme = [integer_schedule(*task, gap=0.0) for task in tasks]
    by_lists = [list_schedule(*task) for task in tasks]
    return {
        "integer programme": sum(int(one.cycles == least) for one, least in zip(by_programme, best, strict=True)),
        "constraint solver": sum(int(one.cycles == least) for one, least in zip(by_constraints, best, strict=True)),
        "list schedule": sum(int(one.cycles == least) for one, least in zip(by_lists, best, strict=True)),
        "bounds above the best": sum(int(one.bound_cycles > least) for one, least in zip(by_lists, best, strict=True)),
    }


def chains() -> tuple[int, int]:
    """How many chains were planned, and how many plans are the best there is."""
    right = 0
    for seed in range(NUM_CHAINS):
        num = int(np.random.default_rng(seed).integers(1, 9))
        network, forward, backward = random_network(seed, num)
        job = random_job(seed)
        expected = exhaustive(network, job, forward, backward)
        try:
            plan = Stages.of(network, job).best(forward, backward)
        except InfeasibleError:
            plan = None
        found = np.inf if plan is None else plan.batch_s
        right += bool(found == expected or abs(found / expected - 1) <= 1e-9)
    return NUM_CHAINS, right


def main() -> int:
    """Run all three."""
    path = find_shared("placement/phaze/cores.csv.gz")
    if path is None:
        report("phaze_space", 0, "all exact", False, reason="the published candidates are not here")
        return 1
    num, wrong, error = candidates(path)
    solved = schedules()
    num_chains, right = chains()
    is_exact = num == len(template_space()) and wrong == 0 and error <= 1e-9
    is_solved = solved["integer programme"] == solved["constraint solver"] == NUM_SCHEDULES
    holds = is_exact and is_solved and not solved["bounds above the best"] and right == num_chains
    if is_verbose():
        print(table([{"what": name, "graphs": count, "of": NUM_SCHEDULES} for name, count in solved.items()]))
    report(
        "phaze_space",
        num - wrong,
        f"= {num} candidates, areas to 1e-9, {NUM_SCHEDULES} schedules and {num_chains} chains the best of all",
        holds,
        candidates=num,
        area_error=error,
        schedules=solved,
        chains=[right, num_chains],
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
