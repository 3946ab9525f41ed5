"""One process that multiplies while its ring carries messages, timed.

In: bytes, two numbers of messages that carry them, and rounds. Out: ns and spread of a product, without messages and
with them; of reduce-scatters and of all-gathers, in few messages and in many.
"""

from __future__ import annotations

import statistics

import torch
import torch.distributed as dist

from windtunnel.measure.host_state import hold_heap
from windtunnel.measure.turns import elapsed_ns
from windtunnel.measure.workers import Place
from windtunnel.systems.collectives.background import BackgroundRing

_WARMUP = 2
_WIDTH, _NUM_PRODUCTS = 512, 16  # of three matrices of 1 MiB, which caches share with messages


def main(worker: Place) -> None:
    """Time all forms in turns; the mean of all ranks counts."""
    size_bytes, counts, rounds = worker.config
    torch.set_num_threads(1)
    hold_heap()
    worker.join()
    ring = BackgroundRing(dist.new_group(backend="gloo"))
    square, result, flat = torch.eye(_WIDTH), torch.empty(_WIDTH, _WIDTH), torch.zeros(size_bytes // 4)

    def multiply(count: int = 1) -> None:
        for _ in range(count):
            torch.mm(square, square, out=result)

    def multiply_while_sending(is_gather: bool, count: int) -> None:
        send = ring.all_gather if is_gather else ring.reduce_scatter
        jobs = [send(part) for part in flat.chunk(count)]
        while not jobs[-1].is_done:
            multiply()
            done[-1] += 1
        for job in jobs:
            job.wait()

    done: list[int] = []
    samples = []
    for _ in range(_WARMUP + rounds):
        dist.barrier()
        plain = elapsed_ns(lambda: multiply(_NUM_PRODUCTS)) / _NUM_PRODUCTS
        done.append(0)
        times = []
        for is_gather in (False, True):
            for count in counts:
                dist.barrier()
                times.append(elapsed_ns(lambda: multiply_while_sending(is_gather, count)))  # noqa: B023
        samples.append([plain, sum(times) / max(done[-1], 1) / plain, *times])
    means = torch.tensor(samples[_WARMUP:], dtype=torch.float64)
    dist.all_reduce(means)
    means /= worker.num_ranks
    plain, ratios, *halves = means.T.tolist()
    ring.close()
    dist.destroy_process_group()
    old = statistics.median(plain)
    low, middle, high = statistics.quantiles(ratios)
    answers = [[old, old * middle, (high - low) / middle]]
    for few, many in (halves[:2], halves[2:]):
        low, middle, high = statistics.quantiles(second / first for first, second in zip(few, many, strict=True))
        answers.append([statistics.median(few), statistics.median(few) * middle, (high - low) / middle])
    worker.tell(answers)
