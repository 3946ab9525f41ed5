"""One process that averages tensors of several sizes with others, timed.

In: sizes in bytes, and rounds. Out, per size: the ns of an all-reduce for which all processes are ready, and how far
that may be off by chance.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from windtunnel.measure.host_state import hold_heap
from windtunnel.measure.turns import elapsed_ns, quiet, spread_of_quiet
from windtunnel.measure.workers import Place

_WARMUP = 2


def main(worker: Place) -> None:
    """Time all sizes in turns; the mean of all ranks counts."""
    sizes, rounds = worker.config
    torch.set_num_threads(1)
    hold_heap()
    worker.join()
    tensors = [torch.zeros(max(size // 4, 1)) for size in sizes]
    samples = []
    for _ in range(_WARMUP + rounds):
        times = []
        for tensor in tensors:
            dist.barrier()
            times.append(float(elapsed_ns(lambda: dist.all_reduce(tensor))))  # noqa: B023
        samples.append(times)
    means = torch.tensor(samples[_WARMUP:], dtype=torch.float64)
    dist.all_reduce(means)
    means /= worker.num_ranks
    dist.destroy_process_group()
    # rounds of short messages vary by more than themselves, the lower quartile of all rounds far less
    ones = [[1e9]] * rounds
    worker.tell([[quiet(times), spread_of_quiet(ones, [[time] for time in times])] for times in means.T.tolist()])
