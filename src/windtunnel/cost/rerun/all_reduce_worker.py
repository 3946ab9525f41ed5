"""One process that averages tensors of several sizes with others, timed.

In: sizes in bytes, and rounds. Out: the ns of a product without messages and with one under way; per size the ns of an
all-reduce for which all processes are ready; of each how far it may be off by chance.
"""

from __future__ import annotations

import statistics

import torch
import torch.distributed as dist

from windtunnel.measure.host_state import hold_heap
from windtunnel.measure.turns import elapsed_ns, quiet, spread_of_quiet
from windtunnel.measure.workers import Place

_WARMUP = 2
_WIDTH, _NUM_PRODUCTS = 256, 16


def main(worker: Place) -> None:
    """Time all sizes in turns; the mean of all ranks counts."""
    sizes, rounds = worker.config
    torch.set_num_threads(1)
    hold_heap()
    worker.join()
    tensors = [torch.zeros(max(size // 4, 1)) for size in sizes]
    square, result = torch.eye(_WIDTH), torch.empty(_WIDTH, _WIDTH)

    def multiply(count: int = 1) -> None:
        for _ in range(count):
            torch.mm(square, square, out=result)

    def multiply_while_sending() -> None:
        message = dist.all_reduce(tensors[-1], async_op=True)
        while not message.is_completed():
            multiply()
            done[-1] += 1
        message.wait()

    done: list[int] = []
    samples = []
    for _ in range(_WARMUP + rounds):
        dist.barrier()
        plain_ns = elapsed_ns(lambda: multiply(_NUM_PRODUCTS)) / _NUM_PRODUCTS
        done.append(0)
        dist.barrier()
        times = [plain_ns, elapsed_ns(multiply_while_sending) / max(done[-1], 1)]
        for tensor in tensors:
            dist.barrier()
            times.append(elapsed_ns(lambda: dist.all_reduce(tensor)))  # noqa: B023
        samples.append(times)
    means = torch.tensor(samples[_WARMUP:], dtype=torch.float64)
    dist.all_reduce(means)
    means /= worker.num_ranks
    dist.destroy_process_group()
    plain, slowed, *sent = means.T.tolist()
    # rounds of short messages vary by more than themselves, the lower quartile of all rounds far less
    ones = [[1e9]] * rounds
    messages = [[quiet(times), quiet(times), spread_of_quiet(ones, [[time] for time in times])] for times in sent]
    ratios = [new / old for old, new in zip(plain, slowed, strict=True)]
    low, middle, high = statistics.quantiles(ratios)
    worker.tell([[quiet(plain), quiet(plain) * middle, (high - low) / middle], *messages])
