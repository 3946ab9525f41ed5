"""How much of this host's cores is left for a new program.

In: nothing. Out: a share. Not here: what to do about it.
"""

from __future__ import annotations

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor

from windtunnel.hardware import machine

__all__ = ["free_share"]

_CHUNK_BYTES = 4 << 20  # milliseconds of work for which a thread lets go of the interpreter


def free_share(duration_s: float = 0.3) -> float:
    """Share of the time that a thread on every core gets to run, the least lucky one's: 1 on a quiet host.

    Parameters
    ----------
    duration_s : float
        How long to keep all cores busy.
    """
    num_cores = machine().num_cores
    chunk = bytes(_CHUNK_BYTES)
    until_s = time.perf_counter() + duration_s
    with ThreadPoolExecutor(num_cores) as threads:
        return min(threads.map(lambda _: _run_until(until_s, chunk), range(num_cores)))


def _run_until(until_s: float, chunk: bytes) -> float:
    begun_s, begun_cpu_s = time.perf_counter(), time.thread_time()
    while time.perf_counter() < until_s:
        hashlib.sha256(chunk)
    elapsed_s = time.perf_counter() - begun_s
    return min(1.0, (time.thread_time() - begun_cpu_s) / elapsed_s) if elapsed_s > 0 else 1.0
