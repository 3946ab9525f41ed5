"""The dynamic program over stages, compiled.

In: pairs of downsets with what lies between them, times of layers. Out: the least time of a batch, and its stages. What
they mean is defined in ``stages``.

The state is another than that of ``search.minmax``: a batch takes its slowest stage times microbatches *and* stages, so
that fewer slower stages may win, and memory depends on how many stages are behind; both need the number of stages, and
downsets are walked from the last stage on:

    best[S, I, K] = min over J within I, t of max(load(I - J, t, S), best[S - 1, J, K - devices(I - J, t)])

One call takes microseconds and is made for each of many chips, from pairs that are made once (``nesting``). With many
microbatches and one degree it finds what ``search.minmax`` does; ``tests/search/test_stage_programs.py`` shows it.
"""

# I downsets, Q pairs by their larger downset, T tensor degrees, S stages from the last one, K devices of one pipeline
# C choices of data degree: devices of each pipeline, microbatches of each, sync factor

from __future__ import annotations

from typing import Any

import numba
import numpy as np

__all__ = ["best_plan", "load_of"]


@numba.njit(cache=True, nogil=True)
def load_of(forward: float, backward: float, in_s: float, out_s: float, is_recomputed: bool, stage: int) -> float:
    """Return the seconds of one microbatch on a stage; the last stage need not recompute its forward pass."""
    # recomputation hides behind the message to the next stage: max(out_s, forward)
    if is_recomputed and stage > 1:
        return in_s + forward + max(out_s, forward) + backward
    return in_s + forward + out_s + backward


@numba.njit(cache=True, nogil=True)
def best_plan(ptr_I: Any, small_Q: Any, in_QT: Any, out_QT: Any, max_QT: Any, devices_QT: Any, sync_QT: Any,
              forward_IT: Any, backward_IT: Any, is_recomputed: bool, max_stages: int, choices: Any, upper: float,
              best_SIK: Any) -> Any:  # fmt: skip
    """Return the least time of a batch below ``upper``, its choice, and pair and degree of each stage, first to last.

    ``best_SIK`` is scratch; ``best_SIK[s, i, k]`` is the least largest load of downset i on s + 1 stages and k devices.
    """
    # downset  0 ............. j .......... i ...... num - 1    0 is empty; downsets grow from the last layer on
    #          | stages behind |   stage    |
    #
    # Rows of ``best_SIK`` are monotone in k: more devices never hurt. Loads above ``cap`` cannot beat ``upper`` in a
    # plan with that many stages, so they are skipped. The full downset (``last``) needs no row: it is priced by choice.
    devices_C, batches_C, factor_C = choices
    num, num_degrees = ptr_I.size - 1, forward_IT.shape[1]
    max_devices = best_SIK.shape[2] - 1
    widest = 1
    for pair in range(small_Q.size):
        for degree in range(num_degrees):
            widest = max(widest, devices_QT[pair, degree])
    cap_S = np.empty(max_stages + 1)
    for stage in range(1, max_stages + 1):
        least = np.inf  # a plan with that many stages or more runs that many loads at least
        for choice in range(devices_C.size):
            if devices_C[choice] >= stage:
                least = min(least, batches_C[choice] + stage - 1.0)
        cap_S[stage] = upper / least
    result, at_choice, at_stage, at_pair, at_degree = upper, -1, 0, -1, -1
    last = num - 1
    for stage in range(1, max_stages + 1):
        cap = cap_S[stage]
        is_any = False
        reach = min(max_devices, stage * widest)  # more devices than that bring nothing
        reach_before = min(max_devices, (stage - 1) * widest)
        for i in range(1, num):
            row = best_SIK[stage - 1, i]
            if i < last:
                for devices in range(reach + 1):
                    row[devices] = np.inf
            for pair in range(ptr_I[i], ptr_I[i + 1]):
                j = small_Q[pair]
                if (j == 0) != (stage == 1):
                    continue
                for degree in range(num_degrees):
                    if max_QT[pair, degree] < stage:
                        continue
                    load = load_of(forward_IT[i, degree] - forward_IT[j, degree],
                                   backward_IT[i, degree] - backward_IT[j, degree], in_QT[pair, degree],
                                   out_QT[pair, degree], is_recomputed, stage)  # fmt: skip
                    if load > cap:
                        continue
                    used = devices_QT[pair, degree]
                    if i == last:
                        for choice in range(devices_C.size):
                            left = min(devices_C[choice], max_devices) - used
                            if left < 0:
                                continue
                            value = load if stage == 1 else max(load, best_SIK[stage - 2, j, min(left, reach_before)])
                            total = value * (batches_C[choice] + stage - 1) + factor_C[choice] * sync_QT[pair, degree]
                            if total < result:
                                result, at_choice, at_stage, at_pair, at_degree = total, choice, stage, pair, degree
                        continue
                    is_any = True
                    if stage == 1:
                        for k in range(used, reach + 1):
                            row[k] = min(row[k], load)
                        continue
                    before = best_SIK[stage - 2, j]
                    for k in range(used, reach + 1):
                        row[k] = min(row[k], max(load, before[min(k - used, reach_before)]))
        if not is_any:
            break
    # walk back from the best state: only values are stored, so each step searches for a stage that reaches its value
    stages = np.full((at_stage, 2), -1, np.int64)
    if at_choice >= 0:
        stages[0, 0], stages[0, 1] = at_pair, at_degree
        left = min(devices_C[at_choice], max_devices) - devices_QT[at_pair, at_degree]
        i, index = small_Q[at_pair], 1
        for stage in range(at_stage - 1, 0, -1):
            left = min(left, stage * widest)
            target = best_SIK[stage - 1, i, left]
            pair, degree = _step(i, stage, left, target, ptr_I, small_Q, in_QT, out_QT, max_QT, devices_QT,
                                 forward_IT, backward_IT, is_recomputed, (stage - 1) * widest, best_SIK)  # fmt: skip
            stages[index, 0], stages[index, 1] = pair, degree
            left -= devices_QT[pair, degree]
            i = small_Q[pair]
            index += 1
    return result, at_choice, stages


@numba.njit(cache=True, nogil=True)
def _step(i: int, stage: int, left: int, target: float, ptr_I: Any, small_Q: Any, in_QT: Any, out_QT: Any,
          max_QT: Any, devices_QT: Any, forward_IT: Any, backward_IT: Any, is_recomputed: bool, reach_before: int,
          best_SIK: Any) -> Any:  # fmt: skip
    """Return the stage of a downset that reaches its value with the fewest devices, as (pair, degree)."""
    result, found_degree, fewest = -1, -1, 1 << 30
    for pair in range(ptr_I[i], ptr_I[i + 1]):
        j = small_Q[pair]
        if (j == 0) != (stage == 1):
            continue
        for degree in range(forward_IT.shape[1]):
            used = devices_QT[pair, degree]
            if max_QT[pair, degree] < stage or used > left or used >= fewest:
                continue
            load = load_of(forward_IT[i, degree] - forward_IT[j, degree],
                           backward_IT[i, degree] - backward_IT[j, degree], in_QT[pair, degree],
                           out_QT[pair, degree], is_recomputed, stage)  # fmt: skip
            value = load if stage == 1 else max(load, best_SIK[stage - 2, j, min(left - used, reach_before)])
            if value <= target:
                result, found_degree, fewest = pair, degree, used
    return result, found_degree
