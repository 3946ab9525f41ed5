"""Memory by category adds up, on every workload at its tiny size.

After every event of the allocator the bytes by category sum exactly to its own counter. The births of one step are
those that an independent observer sees, a tracker of dispatched operators, by size, phase and category; since such a
mode changes the step (autograd no longer adds gradients up in place), the step is logged beneath an empty one for that,
and what the mode changes is printed. The peak agrees within 2 % with torch's allocator, whose events are counted in a
run that nothing follows, from before the model is built. A perceptron with Adam holds exactly what paper says.
Following a step costs at most 25 % of it (processor time, one thread; two jobs of one seed in turn, so that both see
the same batches), and nothing afterwards; the one iteration in which source lines are learnt is a number of its own.
"""

import gc
import random
import statistics
import time
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import bar, jobs
from windtunnel.sources.memory.allocator_log import AllocatorLog
from windtunnel.sources.memory.profile import CATEGORIES, MemoryProfile
from windtunnel.sources.memory.storages import PHASES, all_storages
from windtunnel.sources.memory.tracker import StorageTracker
from windtunnel.sources.memory.tracking import track_memory
from windtunnel.sources.memory.watch import Watch

TOTAL_TARGET, OVERHEAD_TARGET = 0.02, 0.25
ROUNDS, LEARNING_ROUNDS, WARMUP = 9, 3, 3


class EmptyMode(TorchDispatchMode):
    """What any tracker of operators does to a step."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def seeded(function: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - whatever a workload may draw from
    return function()


def counted(name: str) -> tuple[int, int]:
    """The peak of one step by the allocator's own events, from before the model is built; and data from elsewhere.

    A tensor that lies in an array of numpy is a storage, but no block of torch's allocator. Only what rests there
    through the step counts: the batch before may still hang on a sparse gradient that the step lets go first.
    """
    gc.collect()
    before = {storage.data_ptr() for storage in all_storages()}
    with AllocatorLog() as opened:
        built = jobs.build(name)
        for _ in range(WARMUP):
            built.step()
        there = [weakref.ref(storage) for storage in all_storages()]
        begin_ns = time.time_ns()
        built.step()
        gc.collect()
        stayed = {storage.data_ptr(): storage.nbytes() for one in there if (storage := one()) is not None}
    log = opened.read()
    own = {change.address for change in log.changes} | before
    built.close()
    return log.peak_bytes(begin_ns), sum(size for address, size in stayed.items() if address not in own)


def row(name: str) -> jobs.Row:
    """Measure one workload."""
    torch.set_num_threads(1)
    allocated, elsewhere = counted(name)
    built = jobs.build(name)
    profile = track_memory(built.step, model=built.models, optimizer=built.optimizers, warmup=WARMUP)
    built.close()
    return {
        "peak": profile.peak_bytes,
        "allocator": allocated,
        "total_error": profile.meta["allocator_peak_bytes"] / (allocated + elsewhere) - 1,
        "workspace": profile.by_category()["workspace"] / profile.peak_bytes,
        "lines": shares_of_lines(profile),
        **audit(name),
        **agreement(name),
        **overhead(name),
    }


def shares_of_lines(profile: MemoryProfile) -> float:
    """Of the births of the step, those whose source line is known."""
    births = [one for one in profile.events.to_pylist() if one["event"] == "birth" and one["phase"] != "before"]
    lines = [one["line"] for one in births if one["category"] != "workspace"]
    return sum(map(bool, lines)) / len(lines)


def watch_of(built: Any) -> Watch:
    watch = Watch(workspace=True)
    watch.discovery.add(built.models, built.optimizers)
    return watch


def ready(name: str) -> tuple[Any, Watch]:
    """A job before its step number ``WARMUP``, with its lines learnt."""
    built = seeded(lambda: jobs.build(name))
    for _ in range(WARMUP - 1):
        built.step()
    watch = watch_of(built)
    with watch.learning():
        built.step()
    return built, watch


def audit(name: str) -> jobs.Row:
    """Books against the allocator's counter after every event of it."""
    built, watch = ready(name)
    with watch:
        built.step()
    built.close()
    profile = watch.profile()
    events, held = profile.events.to_pylist(), profile.held_bytes.sum(axis=1).tolist()
    log = watch.log.read()
    births = {one["storage"]: one for one in events if one["event"] == "birth"}
    outside = {number for number, one in births.items() if one["phase"] == "before"} | set(watch.foreign)
    resting, booked = 0, []
    for one, total in zip(events, held, strict=True):
        if one["storage"] in outside:
            sign = {"birth": 1, "death": -1}.get(one["event"], 0)
            resting += sign * births[one["storage"]]["size_bytes"]
        elif one["event"] in ("birth", "death"):
            booked.append(total - resting)
    counter = counted_by_allocator(log.changes)
    wrong = sum(a != b for a, b in zip(booked, counter, strict=False)) + abs(len(booked) - len(counter))
    return {"events": len(counter), "wrong": wrong}


def counted_by_allocator(changes: list[Any]) -> list[int]:
    """Its counter after every event; blocks of before, which it only counts if it was asked then, left out."""
    live: set[int] = set()
    base, found = changes[0].held_bytes - changes[0].size_bytes, []
    for change in changes:
        if change.size_bytes > 0:
            live.add(change.address)
        elif change.address in live:
            live.remove(change.address)
        else:
            base += change.size_bytes
            continue
        found.append(change.held_bytes - base)
    return found


def agreement(name: str) -> jobs.Row:
    """Births by the tracker of operators against those by the log, of the same step."""
    built, watch = ready(name)
    tracker = StorageTracker(watch.discovery)
    gc.collect()
    tracker.start()
    seeded(built.step)
    tracker.stop()
    built.close()
    beneath, plain = logged(name, EmptyMode()), logged(name, nullcontext())
    sized, full = tracked_births(tracker)
    by_size = Counter({key[:2]: 0 for key in beneath})
    for key, number in beneath.items():
        by_size[key[:2]] += number
    return {
        "births": sized.total(),
        "differing": ((sized - by_size) + (by_size - sized) + (full - beneath)).total(),
        "by_mode": ((beneath - plain) + (plain - beneath)).total(),
    }


def logged(name: str, mode: AbstractContextManager[object]) -> Counter[tuple[Any, ...]]:
    built, watch = ready(name)
    with watch, mode:
        seeded(built.step)
    built.close()
    last: dict[int, dict[str, Any]] = {}
    for one in watch.profile().events.to_pylist():
        if one["event"] != "death":
            last[one["storage"]] = one
    found = ((one["size_bytes"], one["phase"], one["category"]) for one in last.values())
    return Counter(key for key in found if key[2] != "workspace")


def tracked_births(tracker: StorageTracker) -> tuple[Counter[tuple[Any, ...]], Counter[tuple[Any, ...]]]:
    """By size and phase; and, of those that it saw being made, by category too."""
    ledger = tracker.ledger
    sized = [number for number, size in enumerate(ledger.first_sizes) if size]
    keys = {number: (ledger.first_sizes[number], PHASES[ledger.phases[number]]) for number in sized}
    made = [number for number in sized if not isinstance(ledger.makers[number], str)]
    return Counter(keys.values()), Counter((*keys[number], CATEGORIES[ledger.categories[number]]) for number in made)


def overhead(name: str) -> jobs.Row:
    """Processor time of followed steps over those of another job with the same batches, in turn."""
    bare, followed = (seeded(lambda: jobs.build(name)) for _ in range(2))
    for built in (bare, followed):
        for _ in range(WARMUP):
            seeded(built.step)
    ratios: dict[str, list[float]] = {"followed": [], "after": [], "learning": []}
    bare_s: list[float] = []
    watch = watch_of(followed)
    for kind, rounds in (("followed", ROUNDS), ("after", ROUNDS), ("learning", LEARNING_ROUNDS)):
        for turn in range(rounds):
            around = watch if kind == "followed" else watch.learning() if kind == "learning" else nullcontext()
            pairs = [(bare, nullcontext()), (followed, around)]
            seconds = {id(built): clocked(built, within) for built, within in (pairs, pairs[::-1])[turn % 2]}
            ratios[kind].append(seconds[id(followed)] / seconds[id(bare)] - 1)
            bare_s.append(seconds[id(bare)])
    bare.close()
    followed.close()
    return {"step_ms": 1e3 * statistics.median(bare_s), **{kind: statistics.median(ratios[kind]) for kind in ratios}}


def clocked(built: Any, within: AbstractContextManager[object]) -> float:
    gc.collect()
    gc.disable()
    with within:
        torch.manual_seed(0)
        before = time.thread_time()
        built.step()
        passed = time.thread_time() - before
    gc.enable()
    return passed


def analytic() -> bool:
    """Weights 4 sum (d_i + 1) d_(i+1); gradients the same; Adam twice that and a count each; ReLU's results saved."""
    widths, batch = [784, 512, 256, 128, 10], 64
    layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
    model = nn.Sequential(*layers[:-1])
    optimizer = torch.optim.Adam(model.parameters())
    inputs = torch.randn(batch, widths[0])

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()

    most = track_memory(step, model=model, optimizer=optimizer).at_most()
    weights = 4 * sum((d + 1) * e for d, e in pairwise(widths))
    expected = {
        "weight": weights,
        "gradient": weights,
        "optimizer state": 2 * weights + 4 * 2 * (len(widths) - 1),
        "input": 4 * batch * widths[0],
        "feature map": 4 * batch * sum(widths[1:-1]),
    }
    return all(most[name] == size for name, size in expected.items())


def main() -> None:
    """Print the bar, and with --verbose its table."""
    found = jobs.rows("memory_adds_up", row)
    good = [entry for entry in found if "failed" not in entry]
    total = max(abs(float(str(entry["total_error"]))) for entry in good)
    costs = sorted(float(str(entry["followed"])) for entry in good)
    wrong = sum(int(str(entry["wrong"])) for entry in good)
    differing = sum(int(str(entry["differing"])) for entry in good)
    is_exact = analytic()
    if bar.is_verbose():
        print(bar.table(good))
    bar.report(
        "memory_adds_up",
        total,
        f"0 events off, 0 births differ, peak within {TOTAL_TARGET:.0%} of the allocator, paper exact, "
        f"costs <= {OVERHEAD_TARGET:.0%}",
        wrong + differing == 0
        and total <= TOTAL_TARGET
        and is_exact
        and costs[-1] <= OVERHEAD_TARGET
        and len(good) == len(found),
        num_workloads=len(good),
        num_events=sum(int(str(entry["events"])) for entry in good),
        num_wrong=wrong,
        num_births=sum(int(str(entry["births"])) for entry in good),
        num_differing=differing,
        analytic=is_exact,
        overhead_median=statistics.median(costs),
        overhead_worst=costs[-1],
        overheads={str(entry["workload"]): entry["followed"] for entry in good},
        overhead_after=statistics.median(float(str(entry["after"])) for entry in good),
        learning={str(entry["workload"]): entry["learning"] for entry in good},
        births_changed_by_mode={str(entry["workload"]): entry["by_mode"] for entry in good},
        lines_known={str(entry["workload"]): entry["lines"] for entry in good},
        total_errors={str(entry["workload"]): entry["total_error"] for entry in good},
        failed={str(entry["workload"]): entry["failed"] for entry in found if "failed" in entry},
    )


if __name__ == "__main__":
    main()
