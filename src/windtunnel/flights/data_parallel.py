"""Several processes that average their gradients, in other buckets or other forms.

Flights of "data-parallel", "fp16-gradients", "powersgd" and "gradient-buckets".

In: a live program in each of several processes. Out: its models wrapped in DistributedDataParallel over gloo, on a
link that can be made slow: a token bucket holds back each message until the link would have carried it; or its
``DistributedDataParallel`` made with other caps.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from windtunnel import registry
from windtunnel.cost.collective import ring_all_reduce_ns, ring_ratio
from windtunnel.cost.rerun import in_order, thin_factors
from windtunnel.errors import FlightError
from windtunnel.flights.proof import DISTRIBUTED, becomes, differs, proven_by, rises
from windtunnel.hardware import Link
from windtunnel.measure.links import Bucket, sleep_until
from windtunnel.sources.torch.live import LiveProgram, Undo, at_start, on_ranks, swap
from windtunnel.whatifs.buckets import caps_of

if TYPE_CHECKING:
    import torch

__all__ = ["SlowLink", "data_parallel", "fp16_gradients", "gradient_buckets", "powersgd"]

_MIB = 2**20
_HOOK = "communication hook"


@registry.flight("data-parallel", source="Li et al., PyTorch Distributed, VLDB 2020")
@proven_by(becomes("ranks", "num_ranks"), rises("averaged models"))
@on_ranks("num_ranks")
@contextmanager
def data_parallel(
    program: LiveProgram,
    *,
    num_ranks: int = 2,
    bandwidth_bytes_per_s: float | None = None,
    latency_ns: int | None = None,
    bucket_bytes: int = 25 * _MIB,
    first_bucket_bytes: int = _MIB,
) -> Iterator[None]:
    """Train in several gloo processes on this host."""
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    dist.init_process_group(
        "gloo", init_method=f"file://{program.kept['rendezvous']}", rank=program.rank, world_size=num_ranks
    )
    with ExitStack() as stack:
        stack.callback(dist.destroy_process_group)
        stack.callback(swap(dist, "_DEFAULT_FIRST_BUCKET_BYTES", first_bucket_bytes))
        if bandwidth_bytes_per_s or latency_ns:
            link = SlowLink(num_ranks, bandwidth_bytes_per_s or float("inf"), latency_ns or 0)
            stack.callback(swap(dist, "all_reduce", link.throttle(dist.all_reduce)))
            program.kept[_HOOK] = lambda _model: (None, allreduce_hook)
        stack.enter_context(program.each_model(lambda model: _distribute(program, model, bucket_bytes)))
        yield


@registry.flight("fp16-gradients", source="PyTorch DDP communication hooks")
@proven_by(rises("models averaged in half precision"))
@contextmanager
def fp16_gradients(program: LiveProgram) -> Iterator[None]:
    """Send gradients in half precision; only together with data-parallel."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    _ask_for_hook(program, lambda _model: (None, fp16_compress_hook))
    yield


@registry.flight("powersgd", source="Vogels et al., PowerSGD, NeurIPS 2019")
@proven_by(rises("models averaged by factors"))
@contextmanager
def powersgd(program: LiveProgram, *, rank: int = 2) -> Iterator[None]:
    """Send two thin factors of each gradient matrix; only together with data-parallel."""
    import torch.distributed as dist

    _ask_for_hook(program, lambda _model: thin_factors(rank))
    restore = swap(dist, "all_reduce", in_order(dist.all_reduce))
    try:
        yield
    finally:
        restore()


def _ask_for_hook(program: LiveProgram, make: Callable[[torch.nn.Module], tuple[Any, Any]]) -> None:
    if program.num_ranks < 2:
        raise FlightError("there is one process and nothing is sent", fix="put it behind data-parallel, with a +")
    program.kept[_HOOK] = make


def _distribute(program: LiveProgram, model: torch.nn.Module, bucket_bytes: int) -> Undo | None:
    """Let the model's own ``forward`` go through DistributedDataParallel, around a module that does what it did."""
    import torch

    if not any(parameter.requires_grad for parameter in model.parameters()):
        return None

    class Original(torch.nn.Module):
        """The model as it was."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.plain_forward = model.forward

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.plain_forward(*args, **kwargs)

    # DDP's first bucket is smaller only where the cap is its own default
    cap = None if bucket_bytes == 25 * _MIB else bucket_bytes / _MIB
    distributed = torch.nn.parallel.DistributedDataParallel(Original(), bucket_cap_mb=cap, forward_sync_buffers=False)
    if _HOOK in program.kept:  # else DDP sends from C++, without calling Python
        distributed.register_comm_hook(*program.kept[_HOOK](model))
    program.kept.setdefault(DISTRIBUTED, []).append(distributed)
    return swap(model, "forward", lambda *args, **kwargs: distributed(*args, **kwargs))


class SlowLink:
    """A ring of links of a given rate that carries one message after the other.

    Every message takes as long as ``cost.collective.ring_all_reduce_ns`` says, behind those that were ready before.
    """

    def __init__(self, num_ranks: int, bandwidth_bytes_per_s: float, latency_ns: int) -> None:
        self._sent_ratio = ring_ratio(num_ranks)
        self._latency_ns = ring_all_reduce_ns(0, num_ranks, Link("ring", bandwidth_bytes_per_s, latency_ns))
        self._bucket = Bucket(bandwidth_bytes_per_s)

    def due_ns(self, size_bytes: int, now_ns: int) -> int:
        """Reserve the ring for a message that is ready now; when it will have arrived."""
        return self._bucket.due_ns(self._sent_ratio * size_bytes, now_ns, self._latency_ns)

    def throttle(self, all_reduce: Callable[..., Any]) -> Callable[..., Any]:
        """An ``all_reduce`` that ends no earlier than the link allows."""

        def slow(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            due_ns = self.due_ns(tensor.numel() * tensor.element_size(), time.monotonic_ns())
            work = all_reduce(tensor, *args, **kwargs)
            if work is None:
                sleep_until(due_ns)
                return None
            return _LateWork(work, due_ns)

        return slow


class _LateWork:
    """Work that is done when it is done and its message could have arrived."""

    def __init__(self, work: Any, due_ns: int) -> None:
        self._work, self._due_ns = work, due_ns

    def wait(self, *args: Any) -> bool:
        """Wait for both."""
        done = bool(self._work.wait(*args))
        sleep_until(self._due_ns)
        return done

    def get_future(self) -> Any:
        """A future of both."""

        def late(future: Any) -> Any:
            sleep_until(self._due_ns)
            return future.value()

        return self._work.get_future().then(late)


@registry.flight("gradient-buckets", source="PyTorch DDP, bucket_cap_mb_list")
@proven_by(differs("averaged messages"))
@at_start
@contextmanager
def gradient_buckets(program: LiveProgram, *, caps_bytes: str = "25MiB") -> Iterator[None]:
    """Close each bucket of gradients once it reaches its size limit."""
    from torch.nn.parallel import DistributedDataParallel as Reducing

    del program
    caps = [cap / _MIB for cap in caps_of(caps_bytes)]
    original: Any = Reducing.__init__

    @functools.wraps(original)
    def construct(model: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("bucket_cap_mb", None)
        original(model, *args, **{**kwargs, "bucket_cap_mb_list": caps})

    restore = swap(Reducing, "__init__", construct)
    try:
        yield
    finally:
        restore()
