"""Settings of the process (flights of "threads" and "gc-pauses").

In: a live program. Out: the same program with another number of threads, or without pauses of the garbage collector.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.flights.proof import becomes, proven_by
from windtunnel.sources.torch.live import LiveProgram


@registry.flight("threads", source="PyTorch intra-op parallelism")
@proven_by(becomes("threads", "threads"))
@contextmanager
def threads(_program: LiveProgram, *, threads: int = 1) -> Iterator[None]:
    """Run operators on another number of threads."""
    import torch

    if threads < 1:
        raise InputError(f"{threads} threads cannot run anything", fix="use 1 or more")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@registry.flight("gc-pauses", source="CPython garbage collector")
@proven_by(becomes("collector", 0.0))
@contextmanager
def gc_pauses(_program: LiveProgram) -> Iterator[None]:
    """Keep the garbage collector from running within iterations."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
