"""Search of the split of threads and inputs with the shortest batch latency.

In: a profile, threads, a batch. Out: a ``Split``, or why there is none. By the table of all smaller servers and batches
(the authors' recurrence) where instances take whole batches of the profile; by a binary search over latencies where an
instance may take less than a batch. Not here: what neighbors cost (``model``, which changes the profile).

References
----------
Packrat, ICML 2025: minimize the longest latency of instances whose threads and batches add up to the server's; the
program takes exactly all threads, the paper at most.
"""

# T threads, B inputs, C cells

from __future__ import annotations

import math
from collections.abc import Callable

import numba
import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InfeasibleError, InputError
from windtunnel.systems.serving.memory import min_bytes, soonest_within
from windtunnel.systems.serving.model import Instance, Split
from windtunnel.systems.serving.profile import Profile
from windtunnel.systems.serving.tables import RULES, Rule, best_table
from windtunnel.units import format_size

__all__ = ["RULES", "Rule", "best_split", "best_splits", "equal_split", "optimum_table", "shortlist", "soonest_ns"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def optimum_table(profile: Profile, num_threads: int, batch: int, rule: Rule = "at-most") -> Floats:
    """Return the shortest latency of every smaller server and batch, in ns, float64 [T + 1, B + 1].

    Infinite where threads or inputs do not add up, and in row and column 0. O(T B C).
    """
    _require(profile, num_threads, batch, rule)
    columns = profile.threads_C, profile.batch_C, profile.latency_ns_C
    result = best_table(*columns, num_threads, batch, rule, adds=False)
    result[0], result[:, 0] = np.inf, np.inf
    return result


def soonest_ns(profile: Profile, num_threads: int, batch: int) -> float:
    """Return the shortest latency if threads may idle and batches be ragged; infinite if none. O(T^2 log C).

    A latency will do if, with every instance at the largest batch that it answers in that time, as many inputs are
    answered as there are.
    """
    levels = np.unique(profile.latency_ns_C)
    return float(_soonest(profile.threads_C, profile.batch_C, profile.latency_ns_C, levels, num_threads, batch))


@numba.njit(cache=True)
def _soonest(threads_C: Ints, batch_C: Ints, latency_C: Floats, levels: Floats, num_threads: int, batch: int) -> float:
    # More time never answers fewer inputs, so that bisection over the profile's latencies is exact: the
    # optimum is the latency of some cell.
    if not _max_inputs(threads_C, batch_C, latency_C, levels[-1], num_threads) >= batch:
        return np.inf
    low, high = 0, levels.size - 1  # the last level will do
    while low < high:
        middle = (low + high) // 2
        if _max_inputs(threads_C, batch_C, latency_C, levels[middle], num_threads) >= batch:
            high = middle
        else:
            low = middle + 1
    return float(levels[low])


@numba.njit(cache=True)
def _max_inputs(threads_C: Ints, batch_C: Ints, latency_C: Floats, limit: float, num_threads: int) -> int:
    # An unbounded knapsack over threads: ``largest[t]`` is the most that an instance of t threads answers
    # within the limit, ``reach[t]`` the most that t threads answer together. Threads may idle, hence
    # ``reach`` starts from one thread fewer.
    largest = np.zeros(num_threads + 1, dtype=np.int64)
    for c in range(threads_C.size):
        if threads_C[c] <= num_threads and latency_C[c] <= limit:
            largest[threads_C[c]] = max(largest[threads_C[c]], batch_C[c])
    reach = np.zeros(num_threads + 1, dtype=np.int64)
    for t in range(1, num_threads + 1):
        reach[t] = reach[t - 1]
        for own in range(1, t + 1):
            if largest[own]:
                reach[t] = max(reach[t], reach[t - own] + largest[own])
    return int(reach[num_threads])


def best_split(
    profile: Profile, num_threads: int, batch: int, rule: Rule = "ragged", max_bytes: float = math.inf
) -> Split:
    """Return the split with the shortest latency; of several, the one whose other instances finish first.

    Parameters
    ----------
    profile : Profile
    num_threads : int
        Of the server.
    batch : int
        Inputs of all instances together.
    rule : str
        A key of ``RULES``. The published tables are those of ``exact``.
    max_bytes : float
        Memory of all instances together.

    Raises
    ------
    InputError
        The profile does not know a server of that size, or nothing of memory.
    InfeasibleError
        Nothing adds up to the batch, or fits into memory; names the nearest that does.

    Examples
    --------
    >>> profile = Profile.of({(1, 4): 30.0, (2, 4): 20.0, (2, 8): 38.0})
    >>> print(best_split(profile, 2, 8))
    2x<1,4>
    """
    _require(profile, num_threads, batch, rule)
    if max_bytes < math.inf:
        soonest = soonest_within(profile, num_threads, batch, rule)
        if soonest(num_threads, batch, max_bytes) == math.inf > soonest(num_threads, batch, math.inf):
            least = min_bytes(profile, math.inf, num_threads, batch, rule)[num_threads, batch]
            raise InfeasibleError(
                f"no instances that take {batch:,} inputs fit into {format_size(max_bytes)}",
                where=RULES[rule],
                fix=f"give them {format_size(least)} or more, or fewer inputs",
            )
        return _compose_split(profile, num_threads, batch, rule, soonest, max_bytes)
    if rule == "ragged":
        return _compose_split(profile, num_threads, batch, rule, lambda t, b, _: soonest_ns(profile, t, b))
    table = optimum_table(profile, num_threads, batch, rule)
    return _compose_split(profile, num_threads, batch, rule, lambda t, b, _: float(table[t, b]))


def best_splits(profile: Profile, num_threads: int, max_bytes: float = math.inf) -> dict[int, Split]:
    """Return the best split for every power-of-two batch that the server can answer."""
    result: dict[int, Split] = {}
    batch = 1
    while True:
        try:
            result[batch] = best_split(profile, num_threads, batch, max_bytes=max_bytes)
        except InfeasibleError:
            if not result:
                raise
            return result
        batch *= 2


def _compose_split(
    profile: Profile,
    num_threads: int,
    batch: int,
    rule: Rule,
    optimum: Callable[[int, int, float], float],
    max_bytes: float = math.inf,
) -> Split:
    """Compose the split from the slowest instance on, so that the rest keeps its own optimum at every step.

    Many splits share the slowest instance; the rest has its own optimum, which the published table shows.
    """
    instances: list[Instance] = []
    t, b, room = num_threads, batch, max_bytes
    sizes = profile.own_bytes or dict.fromkeys(profile.cells, 0)
    while b > 0:
        target = optimum(t, b, room)
        if target == np.inf:
            _raise_unreachable(profile, num_threads, batch, rule)
        choices = []
        for (threads, own), latency_ns in profile.cells.items():
            left, still = max(b - own, 0) if rule == "ragged" else b - own, room - sizes[threads, own]
            if latency_ns != target or threads > t or left < 0 or still < 0:
                continue
            rest = optimum(t - threads, left, still) if left else _rest_of_none(t - threads, rule)
            if rest <= target:
                choices.append((rest, -threads, own))
        # the best rest, then most threads, then the smallest batch: one split out of many equal ones, always the same
        _, minus_threads, own = min(choices)
        instances.append(Instance(-minus_threads, own, target))
        t, b, room = t + minus_threads, b - own, room - sizes[-minus_threads, own]
    return Split(tuple(instances), batch)


def _rest_of_none(threads_left: int, rule: Rule) -> float:
    return np.inf if threads_left and rule == "exact" else 0.0


def shortlist(
    profile: Profile, num_threads: int, batch: int, most: int = 8, max_bytes: float = math.inf
) -> list[Split]:
    """Return splits worth measuring, the best first, including one instance and one instance per thread.

    These are the best split, and for every number of equal instances the smallest sufficient batch of the profile.

    Raises
    ------
    InputError, InfeasibleError
        As for ``best_split``.
    """
    best = best_split(profile, num_threads, batch, max_bytes=max_bytes)
    result, ends = {best.cells: best}, []
    for count in range(1, min(num_threads, batch) + 1):
        split = equal_split(profile, num_threads, count, batch)
        if split is not None and (profile.bytes_of(split.cells) or 0) <= max_bytes:
            result.setdefault(split.cells, split)
            if count in (1, num_threads):
                ends.append(split.cells)
    ranked = sorted(result.values(), key=lambda split: (split.latency_ns, split.threads))
    return ranked[:most] + [item for item in ranked[most:] if item.cells in ends]


def equal_split(profile: Profile, num_threads: int, count: int, batch: int) -> Split | None:
    """Return ``count`` equal instances with the smallest sufficient batch of the profile; None if there is none."""
    threads = num_threads // count
    known = sorted((own, ns) for (t, own), ns in profile.cells.items() if t == threads and own * count >= batch)
    if not known or (count - 1) * known[0][0] >= batch:  # the last one would have nothing to do
        return None
    own, latency_ns = known[0]
    return Split((Instance(threads, own, latency_ns),) * count, batch)


def _require(profile: Profile, num_threads: int, batch: int, rule: str) -> None:
    if rule not in RULES:
        raise InputError(f"there is no rule {rule!r}", where="rule", fix=f"choose one of {', '.join(RULES)}")
    if num_threads < 1 or batch < 1:
        raise InputError(f"{num_threads} threads and a batch of {batch} serve nothing", fix="give 1 or more of both")
    if num_threads > profile.max_threads:
        raise InputError(
            f"the profile has instances of up to {profile.max_threads} threads, the server {num_threads}",
            fix=f"profile instances of up to {num_threads} threads",
        )


def _raise_unreachable(profile: Profile, num_threads: int, batch: int, rule: Rule) -> None:
    table = optimum_table(profile, num_threads, batch + int(profile.batch_C.max()), rule)[num_threads]
    reached = np.flatnonzero(np.isfinite(table))
    near = [reached[reached < batch][-1:], reached[reached > batch][:1]]
    words = " and ".join(f"{item:,}" for item in np.concatenate(near).tolist())
    what = f"{num_threads} threads" + (", all of them," if rule == "exact" else "")
    raise InfeasibleError(
        f"no instances of {what} take {batch:,} inputs at once",
        where=RULES[rule],
        fix=f"the nearest batches are {words}; or let an instance take less than its batch (ragged)"
        if words and rule != "ragged"
        else f"the nearest batch is {words}"
        if words
        else "profile more threads or batches",
    )
