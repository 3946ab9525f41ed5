"""What a device did not begin work for, in each gap between its tasks, compiled.

In: the gaps of a device, and the binding constraint of every task. Out: the time of each gap by what ran on the host
meanwhile, and the host call that returned only when the gap began. Not here: which tasks there are (``whatifs``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["BETWEEN_KERNELS", "HOST", "LOADER", "NUM_CAUSES", "ON_DEVICE", "UNEXPLAINED", "walk_gaps"]

# T tasks, G gaps
Ints = NDArray[Any]

HOST, LOADER, BETWEEN_KERNELS, UNEXPLAINED = 0, 1, 2, 3
NUM_CAUSES = 4
ON_DEVICE = 2  # in role_T, where the others are HOST and LOADER


@njit(cache=True, nogil=True)
def walk_gaps(
    begin_G: Ints,
    end_G: Ints,
    task_G: Ints,  # that ends each gap; of the last gap of a device the task that ends the run
    start: Ints,
    finish: Ints,
    binding_task: Ints,
    binding_edge: Ints,
    from_start: Ints,
    role_T: Ints,  # HOST, LOADER or ON_DEVICE
) -> tuple[Ints, Ints]:
    """Walk from the end of each gap back to its begin, along what each task waited for.

    Returns
    -------
    cause_ns : int64 [G, NUM_CAUSES]
        Sums to the lengths of the gaps.
    waiting_call : int64 [G]
        Host task that waited for the device until the gap began; -1 where the walk met none.
    """
    cause_ns = np.zeros((begin_G.size, NUM_CAUSES), dtype=np.int64)
    waiting_call = np.full(begin_G.size, -1, dtype=np.int64)
    for i in range(begin_G.size):
        begin, now, v = begin_G[i], end_G[i], task_G[i]
        if start[v] < now:  # the end of the run: that task itself comes first
            low = max(start[v], begin)
            cause_ns[i, LOADER if role_T[v] == LOADER else HOST] += now - low
            now = low
        while now > begin or (now == begin and start[v] == begin):  # calls that only wait take no time
            u = binding_task[v]
            if u < 0:
                cause_ns[i, UNEXPLAINED] += now - begin
                break
            e = binding_edge[v]
            at_start = e >= 0 and from_start[e]
            left = start[u] if at_start else finish[u]
            if role_T[u] == ON_DEVICE and role_T[v] == ON_DEVICE:
                cause_ns[i, BETWEEN_KERNELS] += now - begin
                break
            low = max(left, begin)
            cause_ns[i, LOADER if role_T[v] == LOADER else HOST] += now - low
            now = low
            if left < begin and role_T[u] != ON_DEVICE:
                break
            if role_T[u] == ON_DEVICE:  # the host went on when the device had come this far
                waiting_call[i] = v
                cause_ns[i, HOST] += now - begin
                break
            if not at_start:
                low = max(start[u], begin)
                cause_ns[i, LOADER if role_T[u] == LOADER else HOST] += now - low
                now = low
            v = u
    return cause_ns, waiting_call
