"""Find tasks that any replay treats alike, compiled.

In: a graph in *position* order, as the fixed-order engine has it. Out: the class of each task, and per class what its
members wait for. Not here: what may be folded (``folding.py``).

A task gets the class of an earlier one if both have the same durations, earliest start and label, and wait for the same
*set* of (class, lag, sense): a maximum does not ask how often. Classes are found by hash and always compared in full.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

# T tasks, E edges, C classes, K variants of the durations
Ints = NDArray[Any]

NONE = np.int32(-1)


@njit(inline="always")
def _mix_hash(seed: np.uint64, value: Any) -> np.uint64:
    # Multiply and shift, as in Fibonacci hashing: enough, as equal hashes are always compared in full.
    mixed = (seed ^ np.uint64(value)) * np.uint64(0x9E3779B97F4A7C15)
    return mixed ^ (mixed >> np.uint64(29))


@njit(cache=True, nogil=True)
def _gather(first: int, stop: int, source: Ints, lag: Ints, member: Ints, tokens: Ints, lags: Ints) -> int:
    """The set of what a task waits for, sorted, as (2 * class + sense, lag); returns its size."""
    # Insertion sort with removal of duplicates. Sets are small (a task has few predecessors), and two
    # tasks wait for the same set exactly if these sorted lists are equal.
    #      token = 2 * class of the predecessor + (1 if its start is waited for)
    size = 0
    for e in range(first, stop):
        u = source[e]
        token = 2 * np.int64(member[u]) if u >= 0 else 2 * np.int64(member[~u]) + 1
        wait = lag[e]
        index = size
        while index > 0 and (tokens[index - 1] > token or (tokens[index - 1] == token and lags[index - 1] > wait)):
            index -= 1
        if index > 0 and tokens[index - 1] == token and lags[index - 1] == wait:
            continue
        for i in range(size, index, -1):
            tokens[i] = tokens[i - 1]
            lags[i] = lags[i - 1]
        tokens[index] = token
        lags[index] = wait
        size += 1
    return size


@njit(cache=True, nogil=True)
def fold_pass(
    indptr: Ints,  # [T+1] incoming edges of each position
    source: Ints,  # [E] position of the predecessor, complemented for from_start
    lag: Ints,  # [E]
    earliest: Ints,  # [T]
    label: Ints,  # [T] tasks of different labels are never alike
    order: Ints,  # [T] row of each position
    durations_TK: Ints,  # [T, K] by row
    max_classes: int,  # give up beyond
    member: Ints,  # [T] out: class of each position
    first: Ints,  # [T] out: first position of each class
    set_indptr: Ints,  # [T+1] out: set of each class
    set_token: Ints,  # [E] out: 2 * class waited for + whether for its start
    set_lag: Ints,  # [E] out
) -> int:
    """Give every task its class, in topological order; returns how many classes there are, -1 if too many."""
    # Two tasks are alike if label, earliest start and all K durations agree, and they wait for the same set of (class,
    # from start or not, lag). Predecessors come earlier in the order, so their classes are known, and alike tasks
    # start at the same time in every variant, by induction. Classes lie in a hash table with linear probing, at most
    # half full.
    num_tasks = order.size
    num_variants = durations_TK.shape[1]
    bits = 10
    while (1 << bits) < 2 * min(num_tasks, max_classes + 1):
        bits += 1
    table = np.full(1 << bits, NONE)
    hashes = np.empty(min(num_tasks, max_classes + 1), dtype=np.uint64)
    mask = np.uint64((1 << bits) - 1)
    most = 0
    for p in range(num_tasks):
        most = max(most, indptr[p + 1] - indptr[p])
    tokens = np.empty(most + 1, dtype=np.int64)
    lags = np.empty(most + 1, dtype=np.int64)
    num_classes = 0
    set_indptr[0] = 0
    for p in range(num_tasks):
        size = _gather(indptr[p], indptr[p + 1], source, lag, member, tokens, lags)
        row = order[p]
        hashed = _mix_hash(_mix_hash(np.uint64(size), earliest[p]), label[p])
        for k in range(num_variants):
            hashed = _mix_hash(hashed, durations_TK[row, k])
        for i in range(size):
            hashed = _mix_hash(_mix_hash(hashed, tokens[i]), lags[i])
        slot = (hashed ^ (hashed >> np.uint64(32))) & mask
        result = table[slot]
        while result >= 0:
            other = first[result]
            base = set_indptr[result]
            # hashes may collide, so everything is compared
            same = (
                hashes[result] == hashed
                and set_indptr[result + 1] - base == size
                and label[other] == label[p]
                and earliest[other] == earliest[p]
            )
            if same:
                for k in range(num_variants):
                    same = same and durations_TK[order[other], k] == durations_TK[row, k]
                for i in range(size):
                    same = same and set_token[base + i] == tokens[i] and set_lag[base + i] == lags[i]
            if same:
                break
            slot = (slot + np.uint64(1)) & mask
            result = table[slot]
        if result < 0:
            if num_classes == max_classes:
                return -1
            result = np.int32(num_classes)
            table[slot] = result
            hashes[result] = hashed
            first[result] = p
            base = set_indptr[result]
            for i in range(size):
                set_token[base + i] = tokens[i]
                set_lag[base + i] = lags[i]
            num_classes += 1
            set_indptr[num_classes] = base + size
        member[p] = result
    return num_classes


@njit(cache=True, nogil=True)
def alike_lists(indptr: Ints, values: Ints, kind: Ints) -> tuple[Ints, int]:
    """Number lists so that equal ones of one kind have equal numbers, int64 [R]; returns how many numbers there are."""
    # Hash table with linear probing over list numbers, at most half full, so that probes stay short.
    # A list gets the number of the first equal one, so that numbers follow the order of the input.
    num_lists = kind.size
    bits = 4
    while (1 << bits) < 2 * num_lists:
        bits += 1
    table = np.full(1 << bits, NONE)
    mask = np.uint64((1 << bits) - 1)
    number = np.empty(num_lists, dtype=np.int64)
    count = 0
    for r in range(num_lists):
        length = indptr[r + 1] - indptr[r]
        hashed = _mix_hash(np.uint64(length), kind[r])
        for i in range(indptr[r], indptr[r + 1]):
            hashed = _mix_hash(hashed, values[i])
        slot = (hashed ^ (hashed >> np.uint64(32))) & mask
        while table[slot] >= 0:
            other = table[slot]
            same = kind[other] == kind[r] and indptr[other + 1] - indptr[other] == length
            if same:
                for i in range(length):
                    same = same and values[indptr[other] + i] == values[indptr[r] + i]
            if same:
                break
            slot = (slot + np.uint64(1)) & mask
        if table[slot] >= 0:
            number[r] = number[table[slot]]
        else:
            table[slot] = np.int32(r)
            number[r] = count
            count += 1
    return number, count
