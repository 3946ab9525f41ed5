"""What causality allows clocks to be.

In: for pairs of hosts, how much later one clock may be set against the other before an effect comes before its cause.
Out: the interval of every offset, the nearest offsets that are allowed, or the hosts that contradict each other. These
are difference constraints, offset[s] - offset[d] <= limit[s, d]: shortest paths answer all three. Not here: where the
limits are from (``clocks``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["contradiction", "intervals", "nearest", "tightest"]

# H hosts; limit_HH float [H, H], infinite where no cause of s has an effect on d
Floats = NDArray[np.float64]
_SWEEPS = 2_000
_CLOSE_NS = 1.0


def tightest(limit_HH: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """All limits that follow from these: lengths of the shortest paths [H, H], and the host after s on the way to d.

    A negative length on the diagonal is a contradiction.
    """
    length = limit_HH.copy()
    num_hosts = len(length)
    after = np.tile(np.arange(num_hosts), (num_hosts, 1))
    np.fill_diagonal(length, np.minimum(np.diagonal(length), 0.0))
    for middle in range(num_hosts):
        through = length[:, middle, None] + length[middle]
        better = through < length
        length[better] = through[better]
        after[better] = np.broadcast_to(after[:, middle, None], after.shape)[better]
        if (np.diagonal(length) < 0).any():
            break
    return length, after


def contradiction(limit_HH: Floats) -> list[int]:
    """Hosts of a cycle of causes and effects that no offsets can put in order; empty if all is well."""
    length, after = tightest(limit_HH)
    wrong = np.flatnonzero(np.diagonal(length) < 0)
    if not len(wrong):
        return []
    cycle = [int(wrong[0])]
    while len(cycle) <= len(length):
        host = int(after[cycle[-1], cycle[0]])
        if host in cycle:
            return cycle[cycle.index(host) :]
        cycle.append(host)
    return cycle


def intervals(limit_HH: Floats) -> tuple[Floats, Floats]:
    """Least and most that each offset [H] may be against the first host's; infinite where nothing limits it."""
    length, _ = tightest(limit_HH)
    return -length[0], length[:, 0]


def nearest(offset: Floats, limit_HH: Floats) -> Floats:
    """The allowed offsets that are about the nearest to these: projections onto one limit after the other.

    The limits must not contradict each other.
    """
    source, target = np.nonzero(np.isfinite(limit_HH) & ~np.eye(len(limit_HH), dtype=bool))
    placed = offset.copy()
    for _ in range(_SWEEPS):
        excess = placed[source] - placed[target] - limit_HH[source, target]
        if not len(excess) or excess.max() <= _CLOSE_NS:
            break
        for row in np.flatnonzero(excess > 0).tolist():
            one, other = source[row], target[row]
            over = placed[one] - placed[other] - limit_HH[one, other]
            if over > 0:
                placed[one] -= over / 2
                placed[other] += over / 2
    result: Floats = placed - placed[0]
    return result
