"""A search over a kernel's IR: every candidate has a class, equal seeds are equal, fronts are right, and its rate.

Ten thousand random candidates of two kernels are really run, most of them wrong, many of them crashing or endless.
Held: at least 99.9 % end as one of the classes and the processes that hold the originals live; edit lists drawn in two
other processes are the same to the byte, and every stored one applies again to the same text; fronts and crowding of
the published populations and of random ones are pymoo's. The rate is candidates per second of a core that they really
took (processor time, with all that was started and thrown away); it is lower beside other programs, so take it alone.
"""

from __future__ import annotations

import gzip
import json
import resource
import subprocess
import sys
import time
from collections import Counter

import numpy as np
from pymoo.operators.survival.rank_and_crowding.metrics import calc_crowding_distance
from pymoo.util.nds.non_dominated_sorting import NonDominatedSorting
from tests.shared_data import find_shared

from benchmarks import bar
from windtunnel.errors import InputError
from windtunnel.systems.kernels.edits import apply, from_json, key, to_json
from windtunnel.systems.kernels.model import CLASSES, Kernel
from windtunnel.systems.kernels.nsga2 import rank_and_crowding
from windtunnel.systems.kernels.operators import draw_edit
from windtunnel.systems.kernels.run import Bench
from windtunnel.systems.kernels.shelf import shelf_kernel

NUM_CANDIDATES = 10_000
KERNELS = ("pathfinder", "softmax")
MOST_EDITS = 4
OPERATORS = "crismph"
FEWEST_CLASSIFIED, FEWEST_PER_S = 0.999, 40.0
NUM_REPLAYED, NUM_RANDOM = 300, 200
TARGET = ">= 99.9 % of 10,000 candidates classified, replay to the byte, fronts of pymoo, >= 40 candidates/s/core"


def main() -> int:
    """Draw, run, count, print the bar; 1 if it does not hold."""
    kernels = [shelf_kernel(name) for name in KERNELS]
    if "--draw" in sys.argv:
        print(json.dumps([_drawn(kernel) for kernel in kernels]))
        return 0
    said = [subprocess.run([sys.executable, "-m", "benchmarks.gevo_search", "--draw"], capture_output=True, text=True,
                           check=True).stdout for _ in range(2)]  # fmt: skip
    lost = sum(_lost(kernel, rows) for kernel, rows in zip(kernels, json.loads(said[0]), strict=True))
    unlike = _unlike_pymoo()
    before = _processor_s()
    begun_s = time.perf_counter()
    kinds: Counter[str] = Counter()
    num_restarts = repeated = same = asked = 0
    for kernel in kernels:
        bench, number, deaths = _run(kernel, NUM_CANDIDATES // len(kernels))
        kinds.update(bench.counts.kinds)
        kinds["same program"] += bench.counts.same_program
        repeated, same, asked = repeated + bench.counts.repeated, same + bench.counts.same_program, asked + number
        num_restarts += deaths
    wall_s, taken_s = time.perf_counter() - begun_s, _processor_s() - before
    classified = sum(kinds[kind] for kind in (*CLASSES, "same program")) / asked
    checks = {
        "classified": classified >= FEWEST_CLASSIFIED and asked >= NUM_CANDIDATES,
        "alive": num_restarts == 0,
        "same_draws": said[0] == said[1],
        "replayed": lost == 0,
        "pymoo": unlike == 0,
        "rate": asked / taken_s >= FEWEST_PER_S,
    }
    holds = all(checks.values())
    bar.report("gevo_search", classified, TARGET, holds, candidates_per_core_s=asked / taken_s, asked=asked,
               kinds=dict(kinds), memo_hits=repeated, same_program=same, restarts=num_restarts, wall_s=wall_s,
               unlike_pymoo=unlike, not_replayed=lost, checks=checks)  # fmt: skip
    return 0 if holds else 1


def _processor_s() -> float:
    """Seconds of cores that this process and those that have ended took."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in found)


def _sets(kernel: Kernel, count: int, seed: int) -> list[frozenset]:
    """So many different sets of one to four edits, each drawn on top of the others, as a search draws them."""
    found: dict[str, frozenset] = {}
    number = 0
    while len(found) < count:
        number += 1
        draw = np.random.default_rng([seed, number])
        edits: frozenset = frozenset()
        for _ in range(1 + number % MOST_EDITS):
            try:
                edit = draw_edit(apply(kernel.function, edits), draw, OPERATORS)
                if edit is not None:
                    apply(kernel.function, edits | {edit})
                    edits |= {edit}
            except InputError:
                continue
        if edits:
            found[key(edits)] = edits
    return list(found.values())


def _drawn(kernel: Kernel) -> list[dict[str, object]]:
    return [
        {"edits": to_json(edits), "key": key(edits), "text": apply(kernel.function, edits).render()}
        for edits in _sets(kernel, NUM_REPLAYED, 1)
    ]


def _lost(kernel: Kernel, rows: list[dict[str, object]]) -> int:
    """Stored edit lists that do not come to the text that they came to elsewhere."""
    again = [from_json(row["edits"]) for row in rows]
    return sum(
        apply(kernel.function, edits).render() != row["text"] or key(edits) != row["key"]
        for edits, row in zip(again, rows, strict=True)
    )


def _run(kernel: Kernel, count: int) -> tuple[Bench, int, int]:
    """Run so many; how many were asked for, and how many processes had to be begun anew."""
    sets = _sets(kernel, count, 2)
    with Bench(kernel, num_workers=2) as bench:
        first = bench.workers
        for at in range(0, len(sets), 500):
            bench.evaluate(sets[at : at + 500])
            print(f"{kernel.name}: {at + 500} of {len(sets)}", file=sys.stderr)
        bench.evaluate(sets[:200])  # asked again: remembered
        deaths = sum(one is not other for one, other in zip(first, bench.workers, strict=True))
    return bench, len(sets), deaths


def _unlike_pymoo() -> int:
    """Populations whose fronts or crowding differ from pymoo's."""
    tables = []
    for name in ("gen0", "gen1"):
        path = find_shared(f"kernels_hw/gevo/nw_population_{name}.json.gz")
        if path is not None:
            with gzip.open(path, "rt") as file:
                tables.append(np.asarray([one["fitness"] for one in json.load(file)]))
    tables += [np.random.default_rng(seed).permutation(200).reshape(-1, 2).astype(float) for seed in range(NUM_RANDOM)]
    wrong = 0
    for goals in tables:
        front, alone = rank_and_crowding(goals)
        theirs = NonDominatedSorting().do(goals)
        is_same = len(theirs) == front.max() + 1
        for number, members in enumerate(theirs):
            mine = np.flatnonzero(front == number)
            is_same &= set(members.tolist()) == set(mine.tolist())
            points = goals[mine]
            if len(mine) > 2 and all(len(np.unique(points[:, goal])) == len(points) for goal in range(2)):
                is_same &= np.allclose(alone[mine] / 2, calc_crowding_distance(points, filter_out_duplicates=False))
        wrong += not is_same
    return wrong


if __name__ == "__main__":
    sys.exit(main())
