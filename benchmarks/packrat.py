"""Splits of a server's threads beside what was published, on the published profiles.

Three rows. ``packrat_exact``: the authors' tables cell by cell, their sixteen splits, and the binary search beside the
table on 1,000 random profiles and in speed. ``packrat_neighbors``: instances at once, predicted from runs of other
batches, and the three choices that change. ``packrat_few``: what is lost by profiles of few cells. No time of this host
but the speed is in them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks import bar
from windtunnel.systems.serving.few_shot import estimate_profile, measure_few_cells
from windtunnel.systems.serving.model import fit_slowdown
from windtunnel.systems.serving.profile import Cell, Profile, read_cells, read_profile
from windtunnel.systems.serving.search import best_split, optimum_table, soonest_ns

MODELS = ("bert", "gpt2", "resnet")
NUM_RANDOM, LARGE_THREADS, LARGE_BATCH, ROUNDS = 1000, 64, 4096, 5
CHOICES = {("gpt2", 8): "<16,8>", ("bert", 128): "4x<4,32>", ("resnet", 32): "4x<4,8>"}

Group = list[tuple[Cell, float]]


def profile_of(folder: Path, machine: str, model: str, max_threads: int = 99) -> Profile:
    from tests.systems.serving.test_search import PUBLISHED

    found = read_profile(folder / "profiles.csv.gz", {**PUBLISHED, "machine": machine, "model": model})
    return Profile.of({cell: ns for cell, ns in found.cells.items() if cell[0] <= max_threads})


def exact(folder: Path) -> None:
    from tests.systems.serving.test_search import TABLE_2

    wrong = worst = 0.0
    for model in MODELS:
        published = np.load(folder / f"published_opt_{model}.npz")["opt_latency_ms"]
        found = optimum_table(profile_of(folder, "skylake2x", model), 18, 1024, "exact") / 1e6
        reached = np.isfinite(published)
        wrong += int((reached != np.isfinite(found)).sum())
        worst = max(worst, float(np.abs(found[reached] / published[reached] - 1).max()))
    bert = profile_of(folder, "c6420", "bert")
    rows = [
        (words, milliseconds) == (str(split), round(split.latency_ns / 1e6, 3))
        for threads, table in TABLE_2.items()
        for batch, (words, milliseconds) in table.items()
        for split in [best_split(bert, threads, batch, "exact")]
    ]
    differing = sum(unlike(np.random.default_rng(seed)) for seed in range(NUM_RANDOM))
    ratio = speed()
    bar.report(
        "packrat_exact",
        worst,
        "every published cell to 1e-12, 16 of 16 splits, 0 of 1,000 profiles differ, >= 100 x the table's speed",
        worst <= 1e-12 and not wrong and sum(rows) == len(rows) == 16 and not differing and ratio >= 100,
        cells_infinite_elsewhere=int(wrong), splits=sum(rows), differing=differing, times_the_table=ratio,
    )  # fmt: skip


def unlike(random: np.random.Generator) -> bool:
    """Whether the binary search and the table say different things of a random profile, monotone or not."""
    threads, sizes = range(1, int(random.integers(2, 12))), 2 ** np.arange(int(random.integers(2, 6)))
    cells = {
        (t, int(b)): float(b / t ** random.uniform(0.3, 1) if random.random() < 0.5 else random.uniform(1, 30))
        for t in threads
        for b in sizes
        if t == threads[-1] or random.random() < 0.8
    }
    profile, most = Profile.of(cells), int(random.integers(2, 60))
    table = optimum_table(profile, threads[-1], most, "ragged")
    return any(table[t, b] != soonest_ns(profile, t, b) for t in threads for b in range(1, most + 1))


def speed() -> float:
    """Time of the table over that of the search, at a large server; both compiled before."""
    sizes = 2 ** np.arange(13)
    cells = {(t, int(b)): 5 + b / t**0.8 for t in range(1, LARGE_THREADS + 1) for b in sizes}
    profile = Profile.of(cells)
    ways: dict[str, Callable[[], object]] = {
        "table": lambda: optimum_table(profile, LARGE_THREADS, LARGE_BATCH, "ragged"),
        "search": lambda: soonest_ns(profile, LARGE_THREADS, LARGE_BATCH),
    }
    taken = bar.interleave(ways, ROUNDS)
    return taken["table"].median / taken["search"].median


def runs(folder: Path, model: str) -> list[Group]:
    """Instances that ran at once, group by group, of servers of 16 threads."""
    groups: list[Group] = []
    where = {"series": "fat-vs-thin", "model": model}
    for row in read_cells(folder / "concurrent_runs.csv.gz", where):
        if not groups or groups[-1][0][0] != row.cell or 16 // row.cell[0] == len(groups[-1]):
            groups.append([])
        groups[-1].append((row.cell, row.latency_ns))
    return groups


def neighbors(folder: Path) -> None:
    errors, alone, wrong = {}, {}, []
    for model in MODELS:
        profile, groups = profile_of(folder, "skylake2x", model), runs(folder, model)
        off, off_alone = [], []
        for group in groups:
            batch = sum(cell[1] for cell, _ in group)
            others = [row for one in groups if sum(cell[1] for cell, _ in one) != batch for row in one]
            cell, took_ns = group[0][0], float(np.mean([ns for _, ns in group]))
            predicted_ns = fit_slowdown(profile, others).factor_at(cell[0]) * profile.cells[cell]
            off.append(abs(predicted_ns / took_ns - 1))
            off_alone.append(abs(profile.cells[cell] / took_ns - 1))
        errors[model], alone[model] = float(np.mean(off)), float(np.mean(off_alone))
        changed = fit_slowdown(profile, [row for one in groups for row in one]).of(profile)
        for (name, batch), words in CHOICES.items():
            if name == model and str(best_split(changed, 16, batch, "exact")) != words:
                wrong.append(f"{model} {batch}")
    bar.report(
        "packrat_neighbors",
        max(errors.values()),
        "<= 4 % mean error per model on batches left out, three choices as the runs say",
        max(errors.values()) <= 0.04 and not wrong,
        errors=errors, as_if_alone=alone, choices_wrong=wrong,
    )  # fmt: skip


def few(folder: Path) -> None:
    shares, regrets, taken_s = {}, {}, 0.0
    for machine in ("skylake2x", "c6420"):
        for model in MODELS:
            whole = profile_of(folder, machine, model, 16)
            cells = whole.cells
            threads, batches = ({one[at] for one in cells} for at in (0, 1))
            began_s = time.perf_counter()
            found = measure_few_cells(cells.__getitem__, sorted(threads), sorted(batches), 16)
            taken_s += time.perf_counter() - began_s
            guessed = estimate_profile(found, list(cells))
            lost = [
                max(cells[cell] for cell in best_split(guessed, 16, batch).cells) / soonest_ns(whole, 16, batch) - 1
                for batch in batches
            ]
            shares[f"{model} {machine}"] = len(found) / len(cells)
            regrets[f"{model} {machine}"] = float(np.mean(lost))
    mean = float(np.mean(list(regrets.values())))
    bar.report(
        "packrat_few",
        mean,
        "<= 2 % lost in the mean over models, batches and two machines, with <= 25 % of the cells",
        mean <= 0.02 and max(shares.values()) <= 0.25,
        most_cells=max(shares.values()), regrets=regrets, shares=shares, choosing_s=taken_s,
    )  # fmt: skip


def main() -> None:
    from tests.shared_data import find_shared

    folder = find_shared("serve/packrat")
    if folder is None:
        raise SystemExit("the published profiles are not here; point WINDTUNNEL_SHARED at the folder that holds them")
    exact(folder)
    neighbors(folder)
    few(folder)


if __name__ == "__main__":
    main()
