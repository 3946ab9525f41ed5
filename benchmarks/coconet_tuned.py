"""Schedules of CoCoNet run for real: a product with its all-reduce, and optimizers, in processes on this host.

Products: A[2048, 4096/k] B[4096/k, 1024] in float32 on k = 2 and 4 processes, over emulated links that make the
all-reduce as long as the product. All schedules take turns in one run. Overlapped in the order of the ring, a step
takes little more than the longer of the two; in natural order the ring waits. Optimizers: Adam and LAMB on k = 2
processes over shared memory; a rank stores 1/k of the sliced states. Every schedule's result is compared with that of
the program as written.
"""

import argparse

import numpy as np

from benchmarks import bar
from windtunnel.hardware import Link
from windtunnel.measure.turns import quiet_rows
from windtunnel.systems.collectives.build import Builder
from windtunnel.systems.collectives.executor import Executor
from windtunnel.systems.collectives.grouping import fuse, overlap
from windtunnel.systems.collectives.lower import lower
from windtunnel.systems.collectives.reference import assemble, random_inputs
from windtunnel.systems.collectives.schedules import closure
from windtunnel.systems.collectives.transforms import dead, movable, reorder, split
from windtunnel.systems.collectives.workloads import adam, lamb, tensor_parallel

ROWS, INNER, COLUMNS = 2048, 4096, 1024
LABELS = {
    adam: {"AR - fuse(C)": "AR-Opt", "RS - fuse(C) - AG": "RS-Opt-AG", "fuse(RS-C-AG)": "fuse(RS-Opt-AG)"},
    lamb: {
        "AR - fuse(C) - C - fuse(C)": "AR-Opt",
        "RS - C - fuse(C) - C - fuse(C) - AG": "RS-Opt-AG",
        "C - fuse(RS-C-AG)": "fuse(RS-Opt-AG)",
    },
}
TARGET = (
    "k = 2 and 4: overlap <= 1.15 x max(compute, communication), >= 1.5x sequential, natural order >= 15 % slower; "
    "equal results; states of exactly 1/k"
)


def collective(program, name):
    """Split an all-reduce, compute on slices, and the stages that a fused collective has."""
    halves = split(program, name)
    moved = dead(reorder(halves, movable(halves, f"{name}_ag"), f"{name}_ag"))
    kinds = {stage.name: stage.op for stage in moved.stages}
    return moved, tuple(stage for stage, op in kinds.items() if op not in ("matmul", "slice"))


def product_schedules(num_ranks):
    """Programs by name; the parts alone come first."""
    program = tensor_parallel(num_ranks, batch=ROWS, sequence=1, hidden=COLUMNS, expansion=INNER // COLUMNS)
    moved, members = collective(program, "total")
    fused = fuse(moved, members, "collective")
    chain = ("product", fused.fusions[0].name)
    alone = Builder("product", num_ranks)
    x = alone.declare_sliced("x", (ROWS, INNER), 1)
    partial = alone.apply("matmul", x, alone.declare_sliced("w", (INNER, COLUMNS), 0), name="product")
    ring = Builder("ring", num_ranks)
    return {
        "compute": alone.program(partial),
        "communication": ring.program(ring.all_reduce(ring.declare_local("product", (ROWS, COLUMNS)))),
        "MM-AR-C": program,
        "MM-RS-C-AG": moved,
        "MM-fuse(RS-C-AG)": fused,
        "overlap, ring order": overlap(fused, chain),
        "overlap, natural order": overlap(fused, chain, "natural"),
    }


def optimizer_schedules(build, num_elements):
    """The published schedules, with as few passes as can be and states in slices."""
    labels, result = LABELS[build], {}
    for schedule in closure(build(2, num_elements)):
        is_sliced = all(schedule.program.inputs[name].layout.is_sliced for name in "mv")
        if schedule.label in labels and is_sliced == (not schedule.label.startswith("AR")):
            result.setdefault(labels[schedule.label], schedule.program)
    return dict(sorted(result.items()))


def plans_of(schedules, whole_products=("MM-AR-C",)):
    """Plans; a program as written multiplies whole matrices, as a library would."""
    return {name: lower(item, num_pieces=1 if name in whole_products else 0) for name, item in schedules.items()}


def outputs(executor, number, program, inputs):
    values = executor.run_program(number, program, inputs)
    return [assemble(program.types[name], values[name]) for name in program.outputs]


def measure(num_ranks, schedules, plans, link, rounds, inputs=None):
    """Seconds of each schedule, and the largest difference of a result from that of the program as written."""
    with Executor(num_ranks, link=link) as executor:
        numbers = {name: executor.load(plan) for name, plan in plans.items()}
        difference, first = 0.0, None
        for name, program in schedules.items():
            content = inputs if inputs is not None and name not in ("compute", "communication") else None
            result = outputs(executor, numbers[name], program, content or random_inputs(program, 3))
            if content:
                first = first or result
                difference = max(difference, *(float(np.abs(a - b).max()) for a, b in zip(first, result, strict=True)))
        times = executor.time(list(numbers.values()), rounds)
    seconds = quiet_rows(times.max(axis=2)) / 1e9
    return dict(zip(plans, seconds.tolist(), strict=True)), difference


def products(num_ranks, rounds):
    schedules = product_schedules(num_ranks)
    plans = plans_of(schedules)
    only = {"compute": schedules["compute"]}
    compute_s = measure(num_ranks, only, plans_of(only), None, 7)[0]["compute"]
    sent = plans["communication"].ranks[0].traffic_bytes()
    link = Link(name="emulated", bandwidth_bytes_per_s=sent / compute_s, latency_ns=0)
    seconds, difference = measure(num_ranks, schedules, plans, link, rounds, random_inputs(schedules["MM-AR-C"], 1))
    longer, best = max(seconds["compute"], seconds["communication"]), seconds["overlap, ring order"]
    return {
        "ms": {name: 1e3 * value for name, value in seconds.items()},
        "overlap_over_longer": best / longer,
        "speedup": seconds["MM-AR-C"] / best,
        "natural_over_ring": seconds["overlap, natural order"] / best,
        "max_difference": difference,
    }


def optimizer(build, num_elements, rounds):
    schedules = optimizer_schedules(build, num_elements)
    plans = plans_of(schedules, ())
    inputs = random_inputs(schedules["AR-Opt"], 2)
    seconds, difference = measure(2, schedules, plans, None, rounds, inputs)
    state = {name: plan.ranks[0].resident_bytes(["m", "v"]) for name, plan in plans.items()}
    return {"ms": {name: 1e3 * value for name, value in seconds.items()}, "max_difference": difference, "state": state}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--logs", type=int, nargs="+", default=[20, 22, 24], help="log2 of the optimizers' elements")
    arguments = parser.parse_args()
    flown = {f"k={num_ranks}": products(num_ranks, arguments.rounds) for num_ranks in (2, 4)}
    optimizers = {
        f"{build.__name__} 2^{log}": optimizer(build, 1 << log, 5) for build in (adam, lamb) for log in arguments.logs
    }
    is_fast = all(
        item["overlap_over_longer"] <= 1.15 and item["speedup"] >= 1.5 and item["natural_over_ring"] >= 1.15
        for item in flown.values()
    )
    is_exact = all(
        item["state"]["AR-Opt"] == 2 * item["state"][name]
        for item in optimizers.values()
        for name in ("RS-Opt-AG", "fuse(RS-Opt-AG)")
    )
    is_equal = all(item["max_difference"] < 1e-3 for item in flown.values())
    is_equal &= all(item["max_difference"] == 0 for item in optimizers.values())
    worst = max(item["overlap_over_longer"] for item in flown.values())
    bar.report("coconet_tuned", worst, TARGET, is_fast and is_exact and is_equal, **flown, optimizers=optimizers)


if __name__ == "__main__":
    main()
