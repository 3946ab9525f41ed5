"""Every schedule computes what its program does: random programs, all reachable schedules, 2, 3 and 4 ranks.

Each schedule runs stage by stage in float64 against the program; its plan, the instructions of processes, is run in
one process: in float64 against the program, in float32 against the plans of all other schedules that add in the same
order, bit for bit. To see that the check bites, one stage of a schedule is changed, and the difference has to be found.
"""

import argparse
import random
from dataclasses import replace

import numpy as np
from tests.systems.collectives.programs import random_program

from benchmarks import bar
from windtunnel.errors import InputError
from windtunnel.systems.collectives.interpret import interpret
from windtunnel.systems.collectives.lower import lower
from windtunnel.systems.collectives.reference import assemble, random_inputs
from windtunnel.systems.collectives.schedules import apply_steps, closure, difference

RANKS, TOLERANCE = (2, 3, 4), 1e-12
MAX_SCHEDULES, NUM_BITWISE_SEEDS = 120, 25
SWAPS = {"add": "sub", "sub": "add", "mul": "add", "div": "mul", "maximum": "add", "relu": "neg", "sqrt": "square"}
CHOICES = ("maximum", "select", "greater", "relu", "dropout")
TARGET = (
    ">= 200 random programs x all schedules x k = 2, 3, 4 within 1e-12; plans bit for bit in float32; "
    "every planted mistake found"
)


def programs(count):
    """Seeds and schedules of programs that have few enough of them to run all."""
    seed = 0
    while count:
        try:
            schedules = closure(random_program(seed), MAX_SCHEDULES)
        except InputError:
            schedules = []
        if len(schedules) > 1:
            yield seed, schedules
            count -= 1
        seed += 1


def by_reference(seed, schedules):
    """Largest relative error of all schedules on all numbers of ranks."""
    worst = 0.0
    for num_ranks in RANKS:
        base = random_program(seed, num_ranks)
        for schedule in schedules[1:]:
            worst = max(worst, difference(base, apply_steps(base, schedule.steps), seed))
    return worst


def results(program, inputs):
    """Full arrays of outputs and updated inputs, by a plan that is run in one process."""
    values = interpret(lower(program), program, inputs)
    names = [*program.outputs, *program.updates]
    return [assemble(program.types[name], values[name]) for name in names]


def by_plan(seed, schedules):
    """Schedules whose float32 results differ from those of the program by a bit, and the largest float64 error."""
    wrong, worst = 0, 0.0
    for num_ranks in RANKS:
        base = random_program(seed, num_ranks)
        single, double = random_inputs(base, seed, "float32"), random_inputs(base, seed, "float64")
        wide = replace(base, inputs={name: replace(item, dtype="float64") for name, item in base.inputs.items()})
        expected, exact = results(base, single), results(wide, double)
        for schedule in schedules[1:]:
            got = results(apply_steps(base, schedule.steps), single)
            wrong += not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(expected, got, strict=True))
            precise = results(apply_steps(wide, schedule.steps), double)
            for a, b in zip(exact, precise, strict=True):
                worst = max(worst, float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-300)))
    return wrong, worst


def shown(program):
    """Stages whose values reach an output or an update without a choice, which could hide a change of them."""
    result = {*program.outputs, *(stage.name for stage in program.updates.values())}
    for stage in reversed(program.stages):
        if stage.name in result and stage.op not in CHOICES:
            result.update(stage.reads)
    return result


def planted(seed, schedules):
    """Whether a mistake in a stage of a schedule is found; None where there is none that must show."""
    rng = random.Random(seed)
    base = random_program(seed, 3)
    right = apply_steps(base, rng.choice(schedules[1:]).steps)
    visible = shown(right)
    places = [index for index, stage in enumerate(right.stages) if stage.op in SWAPS and stage.name in visible]
    if not places:
        return None
    index = rng.choice(places)
    stage = right.stages[index]
    wrong = replace(stage, op=SWAPS[stage.op])
    changed = replace(right, stages=(*right.stages[:index], wrong, *right.stages[index + 1 :]))
    return any(difference(base, changed, other) > TOLERANCE for other in (seed, seed + 1, seed + 2))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=200)
    count = parser.parse_args().programs
    worst, num_schedules, bits, plans, found, num_planted, plan_error = 0.0, 0, 0, 0, 0, 0, 0.0
    for index, (seed, schedules) in enumerate(programs(count)):
        worst = max(worst, by_reference(seed, schedules))
        num_schedules += len(schedules) - 1
        if index % max(1, count // NUM_BITWISE_SEEDS) == 0:
            wrong, error = by_plan(seed, schedules)
            bits, plan_error, plans = bits + wrong, max(plan_error, error), plans + len(RANKS) * (len(schedules) - 1)
        if (outcome := planted(seed, schedules)) is not None:
            found, num_planted = found + outcome, num_planted + 1
    holds = max(worst, plan_error) <= TOLERANCE and not bits and found == num_planted >= count // 4
    bar.report(
        "coconet_exact", max(worst, plan_error), TARGET, holds, num_programs=count, num_schedules=num_schedules,
        num_plans=plans, plans_differing_by_a_bit=bits, planted=num_planted, found=found,
    )  # fmt: skip


if __name__ == "__main__":
    main()
