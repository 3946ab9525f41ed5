"""The hot loops of Piper's dynamic program, compiled: costs of stages, and the best of them.

In: plain arrays. Out: plain arrays. Their meaning is defined in ``piper``; the lattice is that of ``downsets``.

The state is another than that of ``search.minmax``: what a stage holds depends on the microbatches under way, and so on
the data degrees of all stages behind it, which is the third index:

    best[I, K, D] = min over J within I, t, d of max(load(I - J, t, d, D), best[J, K - t d, D - d])

A layer also chooses its variant so that the stage fits (``choose``). With one degree, one variant and memory for all,
both programs find the same; ``tests/search/test_stage_programs.py`` shows it.
"""

# N layers, T tensor degrees, V variants, E edges, I downsets, J a downset inside of I, S = I \ J a stage
# K devices in use, D data degrees summed over a stage and all behind it

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from windtunnel.search.downset_kernels import fill_inside, has, longer

__all__ = ["choose", "level", "node_times"]

_LESS = 1e-9  # relative: differences of sums may be off by it
_SAME = 1e-13  # relative: sums of the same times in another order


@numba.njit(cache=True)
def _multiplier(time_NV: Any, memory_NV: Any, limit: float, choice_N: Any) -> float:
    """Return the price of memory (s per byte) at which the cheapest variants just fit; fill ``choice_N`` with them."""
    # Lagrangian dual of ``choose``: used(rate) falls as the rate rises. Double the rate until the choice fits, then
    # bisect. ``high`` always fits, so the final choice is feasible.
    num, num_variants = time_NV.shape
    low, high = 0.0, 1e-18
    is_found = False
    for _ in range(400):
        rate = high if not is_found else 0.5 * (low + high)
        used = 0.0
        for n in range(num):
            best = 0
            for v in range(1, num_variants):
                if time_NV[n, v] + rate * memory_NV[n, v] < time_NV[n, best] + rate * memory_NV[n, best]:
                    best = v
            used += memory_NV[n, best]
        if used <= limit:
            is_found, high = True, rate
        elif is_found:
            low = rate
        else:
            low, high = high, 4.0 * high
        if is_found and high - low <= 1e-9 * high:
            break
    for n in range(num):
        choice_N[n] = 0
        for v in range(1, num_variants):
            if time_NV[n, v] + high * memory_NV[n, v] < time_NV[n, choice_N[n]] + high * memory_NV[n, choice_N[n]]:
                choice_N[n] = v
    return high


@numba.njit(cache=True)
def choose(time_NV: Any, memory_NV: Any, limit: float, choice_N: Any) -> float:
    """Return the minimum total time with one variant of each layer within the memory limit.

    Exact: a front of (memory, time) grows layer by layer, and what the dual says cannot win is dropped. A variant that
    does not exist has an infinite time. Infinite where none fits; ``choice_N`` is filled where one does.
    """
    # 1. all quickest variants, if they fit; 2. none, if even the smallest do not; 3. the exact front
    num, num_variants = time_NV.shape
    total, used, least = 0.0, 0.0, 0.0
    for n in range(num):
        best, small = 0, -1
        for v in range(num_variants):
            if time_NV[n, v] < time_NV[n, best] or (
                time_NV[n, v] == time_NV[n, best] and memory_NV[n, v] < memory_NV[n, best]
            ):
                best = v
            if time_NV[n, v] < np.inf and (small < 0 or memory_NV[n, v] < memory_NV[n, small]):
                small = v
        if small < 0:
            return np.inf
        choice_N[n] = best
        total += time_NV[n, best]
        used += memory_NV[n, best]
        least += memory_NV[n, small]
    if used <= limit:
        return total
    if least > limit:
        return np.inf
    rate = _multiplier(time_NV, memory_NV, limit, choice_N)
    best_time = 0.0
    for n in range(num):
        best_time += time_NV[n, choice_N[n]]
    behind_time, behind_memory = np.zeros(num + 1), np.zeros(num + 1)  # of the layers from n on: dual, least memory
    for n in range(num - 1, -1, -1):
        cheap, small_bytes = np.inf, np.inf
        for v in range(num_variants):
            if time_NV[n, v] < np.inf:
                cheap = min(cheap, time_NV[n, v] + rate * memory_NV[n, v])
                small_bytes = min(small_bytes, memory_NV[n, v])
        behind_time[n] = behind_time[n + 1] + cheap
        behind_memory[n] = behind_memory[n + 1] + small_bytes
    return _front(time_NV, memory_NV, limit, choice_N, rate, best_time, behind_time, behind_memory)


@numba.njit(cache=True)
def _front(time_NV: Any, memory_NV: Any, limit: float, choice_N: Any, rate: float, best_time: float,
           behind_time: Any, behind_memory: Any) -> float:  # fmt: skip
    """Extend the Pareto front of (memory, time) layer by layer; return the least time and fill ``choice_N``."""
    # time                                  A point is dropped if
    #   ^  x                                - another one has less memory and no more time,
    #   |     x                             - its memory and the least memory of the layers behind exceed the limit,
    #   |        x   x                      - its dual bound (time + duals behind - rate x free memory) cannot win.
    #   +------------> memory
    # ``parent`` and ``variant`` keep all fronts in one growing array, so that the choice can be walked back.
    num, num_variants = time_NV.shape
    parent, variant = np.full(64, -1, np.int64), np.zeros(64, np.int64)
    first, count = 0, 1  # rows of the front
    memory, time = np.zeros(1), np.zeros(1)
    for n in range(num):
        made_memory, made_time = np.empty(count * num_variants), np.empty(count * num_variants)
        made_from = np.empty(count * num_variants, np.int64)
        num_made = 0
        for index in range(count):
            for v in range(num_variants):
                if time_NV[n, v] == np.inf:
                    continue
                one_memory, one_time = memory[index] + memory_NV[n, v], time[index] + time_NV[n, v]
                if one_memory + behind_memory[n + 1] > limit:
                    continue
                if one_time + behind_time[n + 1] - rate * (limit - one_memory) >= best_time * (1 - _SAME):
                    continue
                made_memory[num_made], made_time[num_made] = one_memory, one_time
                made_from[num_made] = index * num_variants + v
                num_made += 1
        if num_made == 0:
            return best_time
        order = np.argsort(made_memory[:num_made], kind="mergesort")
        next_memory, next_time = np.empty(num_made), np.empty(num_made)
        start, kept = first + count, 0
        if start + num_made > parent.size:
            capacity = 2 * (start + num_made)
            parent, variant = longer(parent, capacity), longer(variant, capacity)
        for row in order:
            if kept > 0 and made_time[row] >= next_time[kept - 1] * (1 - _SAME):
                continue
            if kept > 0 and made_memory[row] == next_memory[kept - 1]:
                kept -= 1
            next_memory[kept], next_time[kept] = made_memory[row], made_time[row]
            parent[start + kept] = first + made_from[row] // num_variants
            variant[start + kept] = made_from[row] % num_variants
            kept += 1
        memory, time, first, count = next_memory[:kept], next_time[:kept], start, kept
    best_time, index = time[count - 1], first + count - 1
    for n in range(num - 1, -1, -1):
        choice_N[n] = variant[index]
        index = parent[index]
    return best_time


@numba.njit(cache=True)
def node_times(inside_N: Any, t: int, time_NTV: Any, src: Any, dst: Any, sent_E: Any, sync_in_ETV: Any,
               sync_out_ETV: Any, bandwidth: float, time_NV: Any) -> None:  # fmt: skip
    """Time of each layer and variant of a stage on one pipeline, what crosses the stage's edges both ways with it."""
    num_variants = time_NV.shape[1]
    for n in range(time_NV.shape[0]):  # numba compiles loops many times faster than slices
        for v in range(num_variants):
            time_NV[n, v] = time_NTV[n, t, v]
    for e in range(src.size):
        if inside_N[src[e]] == inside_N[dst[e]]:
            continue
        for v in range(num_variants):
            if inside_N[dst[e]]:
                time_NV[dst[e], v] += 2.0 * (sent_E[e] + sync_in_ETV[e, t, v]) / bandwidth
            else:
                time_NV[src[e], v] += 2.0 * (sent_E[e] + sync_out_ETV[e, t, v]) / bandwidth


@numba.njit(cache=True)
def _helps(i: int, j: int, used: int, d: int, y: int, load: float, best_IKD: Any) -> bool:
    """Return whether a stage of this load, y-th from the end, improves any state."""
    # a stage of data degree d keeps y = ceil(D / d) microbatches, D = d + the degrees behind it: ``before`` is that sum
    num = best_IKD.shape[1]
    for devices in range(used, num):
        for before in range(max(0, (y - 2) * d + 1), min((y - 1) * d + 1, num - d)):
            if max(best_IKD[j, devices - used, before], load) < best_IKD[i, devices, before + d]:
                return True
    return False


@numba.njit(cache=True)
def _may_help(i: int, j: int, degree: int, data_D: Any, compute: float, best_IKD: Any) -> bool:
    """Return whether a stage of at least this compute can improve any state, with any data degree."""
    # A test by compute alone, before communication and memory are priced. It is optimistic for every data
    # degree, so that a stage that fails it can be left out without losing the optimum.
    num = best_IKD.shape[1]
    for d in data_D:
        if degree * d >= num:
            break
        for y in range(1, num // d + 2):
            if _helps(i, j, degree * d, d, y, compute / d, best_IKD):
                return True
    return False


@numba.njit(cache=True)
def _relax(i: int, j: int, used: int, d: int, y: int, load: float, best_IKD: Any, code: int, choice_IKD: Any) -> None:
    """Update all states that a stage improves."""
    #      best[i, k, D] = min over stages of max(load, best[j, k - used, D - d])
    # D, the sum of data degrees behind, decides how many microbatches the stage keeps: y = ceil(D / d) + 1.
    # All D of one y share a load, hence the range of ``before``.
    num = best_IKD.shape[1]
    for devices in range(used, num):
        for before in range(max(0, (y - 2) * d + 1), min((y - 1) * d + 1, num - d)):
            value = max(best_IKD[j, devices - used, before], load)
            if value < best_IKD[i, devices, before + d]:
                best_IKD[i, devices, before + d] = value
                choice_IKD[i, devices, before + d] = code


@numba.njit(cache=True, parallel=True)
def level(num_threads: int, first: int, last: int, best_IKD: Any, choice_IKD: Any, words_IW: Any, parent_I: Any,
          added_I: Any, quickest_IT: Any, none_IT: Any, degrees_T: Any, data_D: Any, time_NTV: Any, weights_NTV: Any,
          kept_NTV: Any, fixed_NTV: Any, src: Any, dst: Any, sent_E: Any, sync_in_ETV: Any, sync_out_ETV: Any,
          limit: float, bandwidth: float, num_microbatches: int) -> None:  # fmt: skip
    """Compute the minimum time of the slowest stage for downsets ``first`` to ``last``, all of one size.

    The results are by maximum number of devices and by sum of data degrees; smaller downsets are final. A stage with y
    microbatches in flight is y-th from the end, counted in its own data degrees; ``quickest_IT`` sums each layer's
    quickest variant, ``none_IT`` counts layers without one. A choice is coded as (downset inside,
    tensor degree, data degree).
    """
    # Downsets of one size do not contain each other, so threads write disjoint rows of ``best_IKD`` and read smaller,
    # final ones. Tests run from cheap to expensive: a bound by compute, one with data parallelism, the exact choice.
    num_layers, num_degrees, num_variants = time_NTV.shape
    num = best_IKD.shape[1]
    for thread in numba.prange(num_threads):
        inside_I = np.zeros(last, np.bool_)
        inside_N = np.zeros(num_layers, np.bool_)
        all_NV = np.empty((num_layers, num_variants))
        for i in range(first + thread, last, num_threads):
            fill_inside(i, words_IW, parent_I, added_I, inside_I)
            for j in range(i):
                if not inside_I[j]:
                    continue
                is_priced = False
                for t in range(num_degrees):
                    if degrees_T[t] >= num:
                        break
                    if none_IT[i, t] != none_IT[j, t]:
                        continue
                    compute = (quickest_IT[i, t] - quickest_IT[j, t]) * (1 - _LESS)
                    if not _may_help(i, j, degrees_T[t], data_D, compute, best_IKD):
                        continue
                    if not is_priced:
                        is_priced = True
                        for n in range(num_layers):
                            inside_N[n] = has(words_IW[i], n) and not has(words_IW[j], n)
                        rows = np.flatnonzero(inside_N)
                        one_NV, memory_NV = np.empty((rows.size, num_variants)), np.empty((rows.size, num_variants))
                        choice_N = np.zeros(rows.size, np.int64)
                    node_times(inside_N, t, time_NTV, src, dst, sent_E, sync_in_ETV, sync_out_ETV, bandwidth, all_NV)
                    for d in data_D:
                        used = degrees_T[t] * d
                        if used >= num:
                            break
                        fastest = 0.0
                        # as ``piper.stage_of`` prices it, which says by which rule
                        sync = 4.0 * (d - 1) / (d * num_microbatches * bandwidth)
                        for index in range(rows.size):
                            quick = np.inf
                            for v in range(num_variants):
                                one_NV[index, v] = all_NV[rows[index], v] / d + sync * weights_NTV[rows[index], t, v]
                                quick = min(quick, one_NV[index, v])
                            fastest += quick
                        for y in range(1, num // d + 2):
                            if not _helps(i, j, used, d, y, fastest, best_IKD):
                                continue
                            for index in range(rows.size):
                                for v in range(num_variants):
                                    memory_NV[index, v] = kept_NTV[rows[index], t, v] * y + fixed_NTV[rows[index], t, v]
                            load = choose(one_NV, memory_NV, limit, choice_N)
                            if load == np.inf:  # more microbatches in flight need even more memory
                                break
                            _relax(i, j, used, d, y, load, best_IKD, (j * num_degrees + t) * num + d, choice_IKD)
