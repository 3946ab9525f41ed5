"""A server whose instances change while it answers: nothing is lost, and full batches take what was foretold.

First a small network whose answers name their requests: 12 clients ask all the time, then 96, an instance is killed,
then 12 again; every request has to be answered once, with its own answer, and some instance has to be ready at any
time. Then ResNet-50: profiled, its neighbors' cost flown, and asked by 6 and then 24 clients; full batches of the
splits that the queue led to are compared with their predictions. ``--requests N`` at least, ``--rounds``, ``--budget``
seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import bar
from benchmarks.packrat_flown import JOBS
from windtunnel.systems.serving.adapt import adapt_to_queue
from windtunnel.systems.serving.live import LiveServer
from windtunnel.systems.serving.model import Instance, Split, fit_slowdown
from windtunnel.systems.serving.run import fly_splits, measure_cells
from windtunnel.systems.serving.search import best_splits, equal_split
from windtunnel.systems.serving.tail import Server

WIDTH = 256
STEPS = (12, 96, 96, 12)  # clients; an instance is killed in the third
ERROR = 0.1
BATCHES = (1, 2, 4, 8, 16)


def network() -> object:
    """A perceptron of half a million weights that leaves the first number of its input as it is."""
    import torch

    from windtunnel.systems.serving.job import Served

    class Named(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(8)]
            self.body = torch.nn.Sequential(*layers)

        def forward(self, given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return given[:, 0], self.body(given)

    def preprocess(bodies: list[int]) -> tuple[torch.Tensor]:
        given = torch.ones(len(bodies), WIDTH)
        given[:, 0] = torch.tensor(bodies, dtype=torch.float32)
        return (given,)

    torch.manual_seed(0)
    return Served(
        Named(), lambda batch: (torch.ones(batch, WIDTH),), preprocess, lambda out: [int(one) for one in out[0]]
    )


class Clients:
    """Each asks for a number of its own, waits for the answer, and asks again."""

    def __init__(self, live: LiveServer, named: bool) -> None:
        self.live, self.named = live, named
        self.lock = threading.Lock()
        self.asked, self.answers, self.lost, self.wrong, self.twice = 0, 0, 0, 0, 0
        self.seen: set[int] = set()

    def ask(self, is_over: threading.Event) -> None:
        while not is_over.is_set():
            with self.lock:
                self.asked += 1
                number = self.asked
            try:
                output = self.live.submit(number if self.named else None).result(timeout=120).output
            except Exception as error:
                print(error, file=sys.stderr)
                with self.lock:
                    self.lost += 1
                continue
            with self.lock:
                self.answers += 1
                if self.named:
                    self.wrong += output != number
                    self.twice += output in self.seen
                    self.seen.add(output)

    @contextmanager
    def asking(self, count: int) -> Iterator[None]:
        """So many of them."""
        is_over = threading.Event()
        threads = [threading.Thread(target=self.ask, args=(is_over,)) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            is_over.set()
            for thread in threads:
                thread.join()


def nothing_lost(num_requests: int) -> dict[str, object]:
    """Clients come and go, instances change and die."""
    job = f"{Path(__file__).resolve()}:network"
    whole = {batch: Split((Instance(2, batch, 1e6),), batch) for batch in (1, 2, 4)}
    halves = {batch: Split((Instance(1, batch // 2, 1e6),) * 2, batch) for batch in (8, 16, 32, 64)}
    splits = {**whole, **halves}
    least_ready, batches = [], []
    with LiveServer(job, Server(splits[1], 2_000_000), max_inputs=64) as live, adapt_to_queue(live, splits, 0.5):
        clients = Clients(live, named=True)
        for step, count in enumerate(STEPS):
            aim = (step + 1) * num_requests // len(STEPS)
            with clients.asking(count):
                begun = time.monotonic()
                killed = step != 2
                # long enough that the queue's length is seen, and the change has taken place
                while clients.answers < aim or time.monotonic() - begun < 15:
                    if not killed and time.monotonic() - begun > 3 and live.state == "serving":
                        kill_one()
                        killed = True
                    least_ready.append(live.num_ready)
                    time.sleep(0.005)
                batches.append(live.split.batch)
        changes = list(live.changes)
    return {"asked": clients.asked, "answered": clients.answers, "lost": clients.lost, "wrong": clients.wrong,
            "twice": clients.twice, "least_ready": min(least_ready), "batches": batches,
            "changes": [f"{one.before} to {one.after}" for one in changes if one.before.cells != one.after.cells],
            "mended": sum(one.before is one.after for one in changes),
            "failed_changes": sum(bool(one.failed) for one in changes),
            "longest_change_s": max((one.ended_ns - one.begun_ns) / 1e9 for one in changes)}  # fmt: skip


def kill_one() -> None:
    """An instance of this server, as a system that runs out of memory would."""
    mine = f"/proc/{os.getpid()}/task"
    children = [int(one) for task in Path(mine).iterdir() for one in (task / "children").read_text().split()]
    told = [one for one in children if b"windtunnel.measure.worker" in Path(f"/proc/{one}/cmdline").read_bytes()]
    os.kill(told[0], signal.SIGKILL)


def foretold(rounds: int, budget_s: float) -> list[dict[str, object]]:
    """ResNet-50, profiled and served: full batches beside their predictions."""
    job, _ = JOBS["resnet50"]
    cells = [(t, b) for t in (1, 2) for b in BATCHES]
    alone = measure_cells(job, cells, rounds=rounds, budget_s=budget_s)
    seen = fly_splits(
        job,
        [one for count in (1, 2) if (one := equal_split(alone, 2, count, 8)) is not None],
        rounds=rounds,
        budget_s=budget_s / 2,
    )
    slowdown = fit_slowdown(alone, [row for one in seen for row in one.cells_ns])
    splits = best_splits(slowdown.of(alone), 2)
    rows = []
    with (
        LiveServer(job, Server(splits[1], 20_000_000), max_inputs=max(splits)) as live,
        adapt_to_queue(live, splits, 2.0),
    ):
        for count in (6, 24):
            clients = Clients(live, named=False)
            with clients.asking(count):
                time.sleep(45)
                since = len(live.batches)
                time.sleep(30)
                late = [one for one in list(live.batches)[since:] if one.inputs == one.split.batch]
                split = Counter(one.split for one in late).most_common(1)[0][0]
                taken = [one for one in late if one.split == split]
            full_ns = statistics.median(one.answered_ns - one.begun_ns for one in taken)
            row = {"clients": count, "split": str(split), "batch": split.batch, "full_batches": len(taken),
                   "predicted_ms": split.latency_ns / 1e6, "measured_ms": full_ns / 1e6,
                   "error": split.latency_ns / full_ns - 1, "lost": clients.lost}  # fmt: skip
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--budget", type=float, default=60.0)
    options = parser.parse_args()
    kept = nothing_lost(options.requests)
    print(json.dumps(kept), file=sys.stderr, flush=True)
    rows = foretold(options.rounds, options.budget)
    worst = max(abs(float(row["error"])) for row in rows)  # type: ignore[arg-type]
    bar.report(
        "packrat_server",
        worst,
        "0 of >= 10,000 requests lost, wrong or answered twice over changes and a killed instance, some instance ready "
        "all the time, batches follow 12, 96, 12 clients; full batches within 10 % of what was foretold",
        kept["answered"] >= 10_000
        and not any(kept[name] for name in ("lost", "wrong", "twice", "failed_changes"))
        and kept["answered"] == kept["asked"]
        and kept["least_ready"] >= 1
        and kept["mended"] >= 1
        and kept["batches"] == [8, 64, 64, 8]
        and worst <= ERROR,
        **kept,
        rows=rows,
    )


if __name__ == "__main__":
    main()
