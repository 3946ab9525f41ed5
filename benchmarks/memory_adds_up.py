"""Memory by category adds up, on every workload at its tiny size.

After every event the bytes by category sum exactly to those of all storages that are alive, asked of the storages one
by one. The peak agrees within 2 % with torch's CPU allocator, whose events are counted in a run without the tracker
from before the model is built. A perceptron with Adam holds exactly what paper says. Following a step costs at most
25 % of it (processor time, one thread), and nothing afterwards.
"""

import gc
import statistics
import time
from itertools import pairwise

import torch
from torch import nn

from benchmarks import bar, jobs
from windtunnel.sources._memory_storages import all_storages
from windtunnel.sources._memory_watch import Watch
from windtunnel.sources._memory_workspace import AllocatorLog
from windtunnel.sources.memory import track_memory

TOTAL_TARGET, OVERHEAD_TARGET = 0.02, 0.25
ROUNDS, WARMUP = 7, 3


def counted(name: str) -> tuple[int, int]:
    """The peak of one step by the allocator's own events, from before the model is built; and data from elsewhere.

    A tensor that lies in an array of numpy is a storage, but no block of torch's allocator.
    """
    gc.collect()
    before = {storage.data_ptr() for storage in all_storages()}
    with AllocatorLog() as log:
        built = jobs.build(name)
        for _ in range(WARMUP):
            built.step()
        there = {storage.data_ptr(): storage.nbytes() for storage in all_storages()}
        begin_ns = time.time_ns()
        built.step()
    own = {address for _, _, address, _, _ in log.changes()} | before
    built.close()
    return log.peak_bytes(begin_ns), sum(size for address, size in there.items() if address not in own)


def row(name: str) -> jobs.Row:
    """Measure one workload."""
    torch.set_num_threads(1)
    allocated, elsewhere = counted(name)
    built = jobs.build(name)
    profile = track_memory(built.step, model=built.models, optimizer=built.optimizers, warmup=WARMUP)
    row = {
        "peak": profile.peak_bytes,
        "allocator": allocated,
        "total_error": profile.meta["allocator_peak_bytes"] / (allocated + elsewhere) - 1,
        "workspace": profile.by_category()["workspace"] / profile.peak_bytes,
        **audit(built),
        **overhead(built),
    }
    built.close()
    return row


def watch_of(built: object, **options: bool) -> Watch:
    watch = Watch(**options)
    watch.discovery.add(built.models, built.optimizers)
    return watch


def audit(built: object) -> jobs.Row:
    """Books against storages after every event; inputs that are found at their first use were there before."""
    watch, alive, first_seen = watch_of(built), [], []
    with watch:

        def compare(tracker: object) -> None:
            alive.append(sum(storage.nbytes() for _, storage in tracker.storages_alive()))
            first_seen.append(len(tracker.ledger.initial))

        watch.tracker.audit = compare
        built.step()
    profile, ledger = watch.profile(), watch.tracker.ledger
    late = [ledger.first_sizes[number] for number in ledger.initial]
    sums = [sum(late[count:]) for count in first_seen]
    booked = profile.total_bytes[len(ledger.initial) :].tolist()
    wrong = sum(book - unseen != real for book, unseen, real in zip(booked, sums, alive, strict=True))
    by_category = profile.held_bytes.sum(axis=1)[len(ledger.initial) :].tolist()
    return {"events": len(alive), "wrong": wrong + sum(a != b for a, b in zip(booked, by_category, strict=True))}


def overhead(built: object) -> jobs.Row:
    """Processor time of followed steps over bare ones, in turn."""
    seconds: dict[str, list[float]] = {"bare": [], "followed": [], "with_log": [], "after": []}

    def clocked(kind: str) -> None:
        gc.collect()
        before = time.thread_time()
        built.step()
        seconds[kind].append(time.thread_time() - before)

    for _ in range(ROUNDS):
        clocked("bare")
        for kind in ("followed", "with_log"):
            with watch_of(built, workspace=kind == "with_log"):
                clocked(kind)
        clocked("after")
    median = {kind: statistics.median(values) for kind, values in seconds.items()}
    ratios = {kind: median[kind] / median["bare"] - 1 for kind in ("followed", "with_log", "after")}
    return {"step_ms": 1e3 * median["bare"], **ratios}


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
    is_exact = analytic()
    if bar.is_verbose():
        print(bar.table(good))
    bar.report(
        "memory_adds_up",
        total,
        f"0 events off, peak within {TOTAL_TARGET:.0%} of the allocator, paper exact, costs <= {OVERHEAD_TARGET:.0%}",
        wrong == 0 and total <= TOTAL_TARGET and is_exact and costs[-1] <= OVERHEAD_TARGET and len(good) == len(found),
        num_workloads=len(good),
        num_events=sum(int(str(entry["events"])) for entry in good),
        num_wrong=wrong,
        analytic=is_exact,
        overhead_median=statistics.median(costs),
        overhead_worst=costs[-1],
        overheads={str(entry["workload"]): entry["followed"] for entry in good},
        overhead_after=statistics.median(float(str(entry["after"])) for entry in good),
        total_errors={str(entry["workload"]): entry["total_error"] for entry in good},
        failed={str(entry["workload"]): entry["failed"] for entry in found if "failed" in entry},
    )


if __name__ == "__main__":
    main()
