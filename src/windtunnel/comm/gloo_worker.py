"""One process that sends and reduces with others, timed.

In: (operation, bytes) of each job, and bytes to send before each message. Out, per job: its quiet time in ns, the
rounds' spread and their number. A message is half of its way there and back; behind bytes that were sent before, so
that a shaped link gives no more than its rate, it is one of two that cross: while it waited for its turn it would have
saved up for a burst.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from windtunnel.measure.host_state import hold_heap
from windtunnel.measure.turns import elapsed_ns, quiet, spread_ratio
from windtunnel.measure.workers import Place

_WARMUP = 3
_LARGE_BYTES, _MANY, _FEW = 1 << 20, 21, 7


def main(worker: Place) -> None:
    """Time every job, all ranks in step."""
    torch.set_num_threads(1)
    hold_heap()
    worker.join()
    result = []
    jobs, before_bytes = worker.config
    for op, size_bytes in jobs:
        result.append(_time_collective(op, size_bytes, before_bytes))
        if worker.rank == 0:
            worker.tell((op, size_bytes))
    dist.destroy_process_group()
    worker.tell(result)


def _time_collective(op: str, size_bytes: int, before_bytes: int) -> tuple[float, float, int]:
    crosses = before_bytes > 0
    action, ways = _action(op, torch.ones(max(1, size_bytes // 4)), crosses=crosses)
    before, _ = _action(op, torch.ones(max(1, before_bytes // 4)), crosses=crosses)
    rounds = _MANY if size_bytes <= _LARGE_BYTES else _FEW
    samples = []
    for _ in range(_WARMUP + rounds):
        dist.barrier()
        if before_bytes:
            before()
        samples.append(elapsed_ns(action) / ways)
    return quiet(samples[_WARMUP:]), spread_ratio(samples[_WARMUP:]), rounds


def _action(op: str, data: torch.Tensor, *, crosses: bool) -> tuple[Callable[[], object], int]:
    """What this rank does, and how many times the message goes over the link."""
    if op == "all_reduce":
        return lambda: dist.all_reduce(data), 1
    arrived, peer = torch.empty_like(data), 1 - dist.get_rank()

    def cross() -> None:
        if peer in (0, 1):
            for sent in (dist.irecv(arrived, peer), dist.isend(data, peer)):
                sent.wait()  # type: ignore[union-attr]

    if crosses:
        return cross, 1

    def there_and_back() -> None:
        if dist.get_rank() == 0:
            dist.send(data, 1)
            dist.recv(data, 1)
        elif dist.get_rank() == 1:
            dist.recv(data, 0)
            dist.send(data, 0)

    return there_and_back, 2
