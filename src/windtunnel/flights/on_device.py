"""What only a GPU can do (flights of "tf32", "pinned-memory" and "non-blocking-copies").

In: a live program that computes on a GPU. Out: its products on matrix units; its batches in pinned memory, copied
while the program goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from windtunnel import registry
from windtunnel.flights.proof import proven_by, rises
from windtunnel.sources.torch.live import LiveProgram, at_start, swap

if TYPE_CHECKING:
    import torch

_MAX_PLACED = 2  # Tensor.to(device, dtype, non_blocking)


@registry.flight("tf32", source="NVIDIA A100 whitepaper, 2020")
@proven_by(rises("TF32 products"))
@contextmanager
def tf32(_program: LiveProgram) -> Iterator[None]:
    """Let float32 products and convolutions round their inputs to TensorFloat-32."""
    import torch

    backends: Any = torch.backends
    switches = backends.cuda.matmul, backends.cudnn
    precisions = backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn
    before = [precision.fp32_precision for precision in precisions], [_tf32_setting(item) for item in switches]
    for switch in switches:  # what both of torch's ways of asking understand
        switch.allow_tf32 = True
    try:
        yield
    finally:
        for switch, was in zip((*switches, *precisions), (*before[1], *before[0]), strict=True):
            if was is not None:
                setattr(switch, "fp32_precision" if isinstance(was, str) else "allow_tf32", was)


def _tf32_setting(backend: Any) -> bool | None:
    """Whether TF32 is on by the older way of asking; None where a program has used the newer one, which forbids it."""
    try:
        return bool(backend.allow_tf32)
    except RuntimeError:
        return None


@registry.flight("pinned-memory", source="CUDA best practices guide, section 9.1: pinned memory")
@proven_by(rises("copies from pinned memory"))
@at_start
@contextmanager
def pinned_memory(program: LiveProgram) -> Iterator[None]:
    """Let loaders put batches into pinned memory, and copy these to the device without waiting."""
    import torch

    to = torch.Tensor.to

    def without_waiting(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if len(args) <= _MAX_PLACED and tensor.device.type == "cpu" and tensor.is_pinned():
            kwargs.setdefault("non_blocking", True)
        return to(tensor, *args, **kwargs)

    restore = swap(torch.Tensor, "to", without_waiting)
    try:
        with program.each_loader(lambda arguments: arguments | {"pin_memory": True}):
            yield
    finally:
        restore()


@registry.flight("non-blocking-copies", source="PyTorch: non_blocking=True")
@proven_by(rises("copies from pinned memory"))
@at_start
@contextmanager
def non_blocking_copies(program: LiveProgram) -> Iterator[None]:
    """Copy batches to the device from pinned memory without waiting, as pinned-memory does."""
    with pinned_memory(program):
        yield
