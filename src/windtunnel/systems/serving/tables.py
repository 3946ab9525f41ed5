"""Dynamic programming over every smaller server and batch.

In: instances by threads and batch, each with a value. Out: the least value of all together, where values of instances
add up (memory) or the largest counts (latency): the authors' recurrence. Not here: what the values are (``search``,
``memory``).

References
----------
Packrat, ICML 2025, and its authors' program, which takes exactly all threads.
"""

# T threads, B inputs, C cells

from __future__ import annotations

from typing import Any, Literal

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["RULES", "Rule", "best_table"]

Rule = Literal["exact", "at-most", "ragged"]
RULES: dict[str, str] = {
    "exact": "all threads, whole batches, as published",
    "at-most": "threads may idle, whole batches",
    "ragged": "threads may idle, an instance may take less than its batch",
}

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def best_table(
    threads_C: Ints, batch_C: Ints, value_C: Floats, num_threads: int, batch: int, rule: Rule, *, adds: bool
) -> Floats:
    """Return the least value of a split of every smaller server and batch, float64 [T + 1, B + 1]. O(T B C).

    Infinite where threads or inputs do not add up, and for threads that idle without an input under ``exact``.

    Parameters
    ----------
    threads_C, batch_C : int64 [C]
    value_C : float64 [C]
    num_threads, batch : int
    rule : str
        A key of ``RULES``.
    adds : bool
        Whether values add up; else the largest is that of the split.
    """
    result: Floats = _table(threads_C, batch_C, value_C, num_threads, batch, rule != "exact", rule == "ragged", adds)
    return result


@numba.njit(cache=True)
def _table(
    threads_C: Ints,
    batch_C: Ints,
    value_C: Floats,
    num_threads: int,
    batch: int,
    may_idle: bool,
    is_ragged: bool,
    adds: bool,
) -> Any:
    #      best[t, b] = min over a cell c of value(c) combined with best[t - threads(c), b - batch(c)]
    #      combined: + for memory, max for latency
    # A cell may be used again for the same (t, b), as in an unbounded knapsack: t grows outside, and every
    # smaller server is final.
    best = np.full((num_threads + 1, batch + 1), np.inf)
    best[0, 0] = 0.0
    for t in range(num_threads + 1):
        if may_idle and t:
            best[t] = best[t - 1]
        for b in range(1, batch + 1):
            least = best[t, b]
            for c in range(threads_C.size):
                left = b - batch_C[c]
                if threads_C[c] > t or (left < 0 and not is_ragged):
                    continue
                rest = best[t - threads_C[c], max(left, 0)]
                least = min(least, rest + value_C[c] if adds else max(rest, value_C[c]))
            best[t, b] = least
    return best
