"""One process that multiplies while it averages a tensor with others, timed.

In: bytes of the tensor and rounds. Out: the ns of a product without messages and with them, and the rounds' spread.
"""

from __future__ import annotations

import statistics

import torch
import torch.distributed as dist

from windtunnel.measure.host_state import hold_heap
from windtunnel.measure.turns import elapsed_ns
from windtunnel.measure.workers import Place

_WARMUP = 2
_WIDTH, _NUM_PRODUCTS = 512, 16  # of three matrices of 1 MiB, which caches share with messages


def main(worker: Place) -> None:
    """Time both forms in turns; the mean of all ranks counts."""
    size_bytes, rounds = worker.config
    torch.set_num_threads(1)
    hold_heap()
    worker.join()
    square, result, message = torch.eye(_WIDTH), torch.empty(_WIDTH, _WIDTH), torch.zeros(size_bytes // 4)

    def multiply(count: int = 1) -> None:
        for _ in range(count):
            torch.mm(square, square, out=result)

    def multiply_while_sending() -> None:
        work = dist.all_reduce(message, async_op=True)
        multiply()
        done.append(1)
        while not work.is_completed():
            multiply()
            done[-1] += 1
        work.wait()

    done: list[int] = []
    pairs = []
    for _ in range(_WARMUP + rounds):
        dist.barrier()
        plain = elapsed_ns(lambda: multiply(_NUM_PRODUCTS)) / _NUM_PRODUCTS
        dist.barrier()
        sending = elapsed_ns(multiply_while_sending)
        pairs.append((plain, sending / done[-1]))
    ratios = torch.tensor([sending / plain for plain, sending in pairs[_WARMUP:]])
    dist.all_reduce(ratios)  # the mean of the ranks
    ratios /= worker.num_ranks
    old = statistics.median(plain for plain, _ in pairs[_WARMUP:])
    low, middle, high = statistics.quantiles(ratios.tolist())
    dist.destroy_process_group()
    worker.tell([old, old * middle, (high - low) / middle])
