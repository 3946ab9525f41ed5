"""Every schedule that we make can run, every accident is found, and torch's pipelining and we read each other's files.

All schedules for 2 to 8 ranks and as many to four times as many microbatches, in one batch and in two, pass the check
and a slow one that plays ranks and queues. Of random accidents (actions swapped, moved, lost, doubled, renamed, rows
turned) the slow check says which break something: a thousand of those must all be refused, and the others accepted.
Torch loads, validates and writes ours unchanged; so do we with those that torch makes.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from tests.systems.pipelines.schedule_rules import broken_rule, mutated

from benchmarks import bar
from benchmarks.peers.torch_schedules import NAMES, made_by_torch, through_torch
from windtunnel.errors import InputError
from windtunnel.systems.pipelines.generate import SCHEDULES, generate
from windtunnel.systems.pipelines.schedule_file import schedule_csv, schedule_of_csv
from windtunnel.systems.pipelines.schedules import Schedule
from windtunnel.systems.pipelines.verify import require_valid

TARGET = "all pass, all of 1000 accidents found, every file read by both"
NUM_ACCIDENTS = 1000
NOT_IN_TORCH = ("dualpipe", "forward-only")  # it has no second copy of a model, and no schedule without backward passes


def numbers() -> list[tuple[int, int]]:
    """Ranks and microbatches."""
    return [(p, m) for p in range(2, 9) for m in range(p, 4 * p + 1)]


def schedules() -> Iterator[Schedule]:
    """All that there are for these numbers; interleaved with two and with three chunks."""
    for p, m in numbers():
        for name in SCHEDULES:
            if (name == "interleaved" and m % p) or (name == "dualpipe" and (p % 2 or m % 2)):
                continue  # refused, as published
            for num_chunks in (2, 3) if name == "interleaved" else (None,):
                for num_batches in (1, 2):
                    yield generate(name, p, m, num_batches=num_batches, num_chunks=num_chunks)


def is_refused(schedule: Schedule) -> bool:
    """What the check says."""
    try:
        require_valid(schedule)
    except InputError:
        return True
    return False


def accidents() -> tuple[Counter[str], int, int, int]:
    """Rules that were broken, how often that went unnoticed, and how often nothing broke and it was refused."""
    random = np.random.default_rng(0)
    grid = [one for one in numbers() if one[1] % one[0] == 0 and one[1] % 2 == 0 and one[0] <= 6]
    broken: Counter[str] = Counter()
    missed = harmless = wrongly = 0
    while broken.total() < NUM_ACCIDENTS:
        p, m = grid[random.integers(len(grid))]
        name = SCHEDULES[random.integers(len(SCHEDULES))]
        if name == "dualpipe" and p % 2:
            continue
        one = mutated(generate(name, p, m, num_batches=int(random.integers(1, 3))), random)
        rule = broken_rule(one)
        if rule:
            broken[rule] += 1
            missed += not is_refused(one)
        else:
            harmless += 1
            wrongly += is_refused(one)
    return broken, missed, harmless, wrongly


def unlike_torch() -> tuple[int, list[str]]:
    """Files that went to torch and back, or the other way, and those that changed or were refused."""
    wrong, num = [], 0
    for schedule in schedules():
        if schedule.name in NOT_IN_TORCH:
            continue
        num += 1
        text = schedule_csv(schedule)
        try:
            back = through_torch(text, schedule.num_ranks, schedule.num_stages, schedule.num_passes)
        except (AssertionError, ValueError, RuntimeError) as error:
            back = str(error)
        if back.split() != text.split():
            wrong.append(f"{schedule.name} {schedule.num_ranks} x {schedule.num_microbatches}")
        again = schedule_of_csv(text, schedule.name, num_batches=schedule.num_batches, versions=schedule.versions)
        if again != replace(schedule, max_in_flight=()):
            wrong.append(f"{schedule.name} {schedule.num_ranks} x {schedule.num_microbatches}: read back")
    for name in NAMES:
        for p, m in numbers():
            if m % p or (name == "DualPipeV" and m < 2 * p):
                continue  # torch refuses some of these
            num += 1
            text = made_by_torch(name, p, m)
            schedule = schedule_of_csv(text, name)
            if is_refused(schedule) or schedule_csv(schedule).split() != text.split():
                wrong.append(f"torch's {name} {p} x {m}")
    return num, wrong


def main() -> None:
    num_valid, refused = 0, []
    for schedule in schedules():
        num_valid += 1
        if is_refused(schedule) or broken_rule(schedule):
            refused.append(f"{schedule.name} {schedule.num_ranks} x {schedule.num_microbatches}")
    broken, missed, harmless, wrongly = accidents()
    num_files, wrong = unlike_torch()
    if bar.is_verbose():
        print(bar.table([{"rule": rule, "broken": count} for rule, count in broken.most_common()]))
        print(*refused, *wrong, sep="\n")
    bar.report(
        "schedules_valid",
        (broken.total() - missed) / broken.total(),
        TARGET,
        not refused and not missed and not wrongly and not wrong,
        schedules=num_valid,
        refused=refused[:5],
        accidents=dict(broken),
        missed=missed,
        harmless=harmless,
        wrongly_refused=wrongly,
        files=num_files,
        files_that_changed=wrong[:5],
    )


if __name__ == "__main__":
    main()
