"""One process that averages gradients with others, timed.

In: jobs (shapes of the parameters, how they are sent, sizes of the buckets) and rounds. Out, per job: the ns of a
forward and backward pass without and with DistributedDataParallel, and the rounds' spread.
"""

from __future__ import annotations

import statistics
from typing import Any

import torch
import torch.distributed as dist

from windtunnel.cost.rerun.sending import SENDERS, in_order
from windtunnel.measure.host_state import hold_heap
from windtunnel.measure.turns import elapsed_ns
from windtunnel.measure.workers import Place

_WARMUP = 4
_WIDTH, _NUM_PRODUCTS = 256, 10
_DEFAULT_BUCKET_BYTES = 25 * 2**20


class _Gradients(torch.autograd.Function):
    """Forward does nothing; backward makes a gradient for every parameter."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*parameters)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> Any:
        return (None, *[parameter.clone() for parameter in ctx.saved_tensors])


class _Model(torch.nn.Module):
    """Computes before its backward pass, where there are others: who computes comes late, and is waited for."""

    def __init__(self, shapes: list[list[int]]) -> None:
        super().__init__()
        self.square = torch.eye(_WIDTH)
        self.parts = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(shape)) for shape in shapes])

    def forward(self, x: torch.Tensor) -> Any:
        for _ in range(_NUM_PRODUCTS if dist.get_world_size() > 1 else 0):
            torch.mm(self.square, self.square)
        return _Gradients.apply(x, *self.parts)


def main(worker: Place) -> None:
    """Time both forms of every job, interleaved."""
    jobs, rounds = worker.config
    torch.set_num_threads(1)
    torch.manual_seed(0)
    hold_heap()
    worker.join()
    dist.all_reduce = in_order(dist.all_reduce)  # only hooks send through it; DDP's own reducer does not
    result = [_time_forms(job, rounds) for job in jobs]
    dist.destroy_process_group()
    worker.tell(result)


def _ddp_model(job: dict[str, Any]) -> torch.nn.Module:
    size_bytes = job["bucket_bytes"]
    dist._DEFAULT_FIRST_BUCKET_BYTES = job["first_bucket_bytes"]  # type: ignore[attr-defined]
    # DDP's first bucket is smaller only where the cap is its own default
    cap = None if size_bytes == _DEFAULT_BUCKET_BYTES else size_bytes / 2**20
    model = torch.nn.parallel.DistributedDataParallel(
        _Model(job["shapes"]), bucket_cap_mb=cap, forward_sync_buffers=False
    )
    if job["sender"]:
        model.register_comm_hook(*SENDERS[job["sender"]](**job["options"]))
    return model


def _time_forms(job: dict[str, Any], rounds: int) -> list[float]:
    forms = (_Model(job["shapes"]), _ddp_model(job))
    x = torch.zeros(1, requires_grad=True)
    samples: tuple[list[int], list[int]] = ([], [])
    for _ in range(_WARMUP + rounds):
        for form, kept in zip(forms, samples, strict=True):
            for parameter in form.parameters():
                parameter.grad = None
            dist.barrier()
            kept.append(elapsed_ns(lambda form=form: form(x).sum().backward()))  # type: ignore[misc]
    pairs = list(zip(*(kept[_WARMUP:] for kept in samples), strict=True))
    old = statistics.median(plain for plain, _ in pairs)
    # of one round, so that a host that is slow for a while is slow for both
    added = statistics.median(distributed - plain for plain, distributed in pairs)
    low, middle, high = statistics.quantiles(distributed / plain for plain, distributed in pairs)
    return [old, old + added, (high - low) / middle]
