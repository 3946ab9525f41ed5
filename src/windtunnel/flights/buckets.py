"""Other buckets in a job that averages its gradients (flight of "gradient-buckets").

In: a live program in each of several processes. Out: its ``DistributedDataParallel`` made with these caps.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from windtunnel import registry
from windtunnel.flights.proof import differs, proven_by
from windtunnel.sources.torch.live import LiveProgram, at_start, swap
from windtunnel.whatifs.buckets import caps_of

__all__ = ["gradient_buckets"]

_MIB = 2**20


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
