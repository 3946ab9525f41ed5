"""One process of a partial flight of gradient averaging (room cost, private; ``python -m``).

In: rank, number of ranks, path of a rendezvous file, sizes in bytes as JSON, rounds. Out, of rank 0: one JSON line with
the median ns of a backward pass without and with DistributedDataParallel, and the rounds' spread, per size.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from windtunnel.sources.allocator import hold_heap

_WARMUP, _NUM_PARAMETERS = 3, 8


class _Gradients(torch.autograd.Function):
    """Forward does nothing; backward makes a gradient for every parameter."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.shapes = [parameter.shape for parameter in parameters]
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> Any:
        return (None, *[torch.ones(shape) for shape in ctx.shapes])


class _Model(torch.nn.Module):
    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        count = max(1, size_bytes // 4 // _NUM_PARAMETERS)
        self.parts = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(count)) for _ in range(_NUM_PARAMETERS)])

    def forward(self, x: torch.Tensor) -> Any:
        return _Gradients.apply(x, *self.parts)


def main(rank: int, num_ranks: int, rendezvous: str, sizes_bytes: list[int], rounds: int) -> None:
    """Time both forms of every size in turns."""
    torch.set_num_threads(1)
    hold_heap()
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=num_ranks)
    found = [_timed(size_bytes, rounds) for size_bytes in sizes_bytes]
    dist.destroy_process_group()
    if rank == 0:
        print(json.dumps(found))  # noqa: T201 - the answer


def _timed(size_bytes: int, rounds: int) -> list[float]:
    forms = (_Model(size_bytes), torch.nn.parallel.DistributedDataParallel(_Model(size_bytes)))
    x = torch.zeros(1, requires_grad=True)
    samples: tuple[list[int], list[int]] = ([], [])
    for _ in range(_WARMUP + rounds):
        for form, kept in zip(forms, samples, strict=True):
            for parameter in form.parameters():
                parameter.grad = None
            loss = form(x).sum()
            dist.barrier()
            begun_ns = time.perf_counter_ns()
            loss.backward()
            kept.append(time.perf_counter_ns() - begun_ns)
    old, new = (statistics.median(kept[_WARMUP:]) for kept in samples)
    ratios = sorted(b / a for a, b in zip(*(kept[_WARMUP:] for kept in samples), strict=True))
    spread = (ratios[3 * len(ratios) // 4] - ratios[len(ratios) // 4]) / ratios[len(ratios) // 2]
    return [old, new, spread]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]), int(sys.argv[5]))
