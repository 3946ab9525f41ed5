"""The hot loops over downsets, compiled: enumeration, and a min-max program over nested pairs.

In: plain arrays. Out: plain arrays. ``downsets`` and ``minmax`` document their meaning; nothing here knows of
devices, graphs or files.
"""

# N nodes, W words of 64 bits, I downsets, J a downset inside of I, S = I \ J a contiguous set
# G groups (what one node sends to one set of others), C channels of communication, E entries by downset
# T device types, O options (a type and how many replicas), V states (device counts), X transitions between them

from __future__ import annotations

from typing import Any

import numba
import numpy as np

__all__ = [
    "IN_BACKWARD",
    "IN_FORWARD",
    "OUT_BACKWARD",
    "OUT_FORWARD",
    "WORD",
    "count_pairs",
    "entries_of",
    "fill_inside",
    "grow",
    "has",
    "level",
    "level_part",
    "longer",
    "nesting",
    "row",
]

WORD = 64
OUT_FORWARD, IN_FORWARD, OUT_BACKWARD, IN_BACKWARD = range(4)
SUM, OVERLAP, DUPLEX, OVERLAP_DUPLEX = range(4)
OWN, FREE, LEFT = range(3)  # what an entry says: the sender leaves S; a receiver does, the sender is not in J; it is


@numba.njit(cache=True)
def has(words: Any, node: int) -> Any:
    """Whether a downset holds a node."""
    # Node n is bit n % 64 of word n // 64.
    return (words[node >> 6] >> np.uint64(node & 63)) & np.uint64(1) == np.uint64(1)


@numba.njit(cache=True)
def _hash(words: Any) -> Any:
    value = np.uint64(0x9E3779B97F4A7C15)
    for word in words:
        value ^= word
        value *= np.uint64(0xFF51AFD7ED558CCD)
        value ^= value >> np.uint64(32)
    return value


@numba.njit(cache=True)
def grow(level_IW: Any, before_NW: Any, limit: int) -> Any:
    """All downsets with one node more than those of a level: words, the downset that each came from, the node added.

    ``before_NW`` holds each node's predecessors. Every downset appears once, with the first parent that reaches it.
    Returns as soon as there are more than ``limit``.
    """
    # A downset is a set of nodes that holds all predecessors of its members: what can be finished while
    # the rest has not started. The lattice of all downsets is enumerated level by level, by size:
    #      {}  ->  {a} {b}  ->  {a,b} {a,c}  ->  ...  ->  all nodes
    # A node may be added if its predecessors are all inside. Two parents often reach the same downset;
    # an open-addressing hash table (power of two, at most half full) tells those apart that are new.
    num_nodes, num_words = before_NW.shape
    capacity = 64
    result = np.empty((capacity, num_words), np.uint64)
    parent, added = np.empty(capacity, np.int32), np.empty(capacity, np.int32)
    table = np.full(256, -1, np.int32)
    count = 0
    new = np.empty(num_words, np.uint64)
    for index in range(level_IW.shape[0]):
        words = level_IW[index]
        for node in range(num_nodes):
            if has(words, node):
                continue
            # Predecessors outside of the set: any bit of before & ~words.
            is_open = True
            for word in range(num_words):
                if before_NW[node, word] & ~words[word]:
                    is_open = False
                    break
            if not is_open:
                continue
            for word in range(num_words):  # numba compiles loops many times faster than slices
                new[word] = words[word]
            new[node >> 6] |= np.uint64(1) << np.uint64(node & 63)
            position = np.int64(_hash(new) & np.uint64(table.size - 1))
            is_known = False
            while table[position] >= 0:
                is_known = True
                for word in range(num_words):
                    if result[table[position], word] != new[word]:
                        is_known = False
                        break
                if is_known:
                    break
                position = (position + 1) & (table.size - 1)
            if is_known:
                continue
            if count == limit:
                return result[:count], parent[:count], added[:count], True
            if count == capacity:
                capacity *= 2
                result = _longer(result, capacity)
                parent, added = longer(parent, capacity), longer(added, capacity)
            # Each downset remembers one parent and the node that was added: sums over its nodes then take one
            # addition (``Lattice.sums``), and membership is inherited (``fill_inside``).
            for word in range(num_words):
                result[count, word] = new[word]
            parent[count], added[count] = index, node
            table[position] = count
            count += 1
            if 2 * count > table.size:
                table = _rehash(result, count, 2 * table.size)
    return result[:count], parent[:count], added[:count], False


@numba.njit(cache=True)
def _longer(old: Any, capacity: int) -> Any:
    new = np.empty((capacity, old.shape[1]), old.dtype)
    for i in range(old.shape[0]):  # numba compiles loops many times faster than a slice
        for word in range(old.shape[1]):
            new[i, word] = old[i, word]
    return new


@numba.njit(cache=True)
def longer(old: Any, capacity: int) -> Any:
    """A copy with room for more."""
    new = np.empty(capacity, old.dtype)
    for i in range(old.shape[0]):
        new[i] = old[i]
    return new


@numba.njit(cache=True)
def _rehash(downsets: Any, count: int, size: int) -> Any:
    table = np.full(size, -1, np.int32)
    for index in range(count):
        position = np.int64(_hash(downsets[index]) & np.uint64(size - 1))
        while table[position] >= 0:
            position = (position + 1) & (size - 1)
        table[position] = index
    return table


@numba.njit(cache=True)
def fill_inside(i: int, words_IW: Any, parent_I: Any, added_I: Any, inside_I: Any) -> None:
    """Which downsets before ``i`` lie within it: those whose parent does, and whose further node it has."""
    # Testing J within I would compare W words for each J. J is its parent plus one node, and parents come
    # before their children, so that one bit and the parent's answer are enough.
    words = words_IW[i]
    inside_I[0] = True
    for j in range(1, i):
        inside_I[j] = inside_I[parent_I[j]] and has(words, added_I[j])


@numba.njit(cache=True, parallel=True)
def count_pairs(words_IW: Any, parent_I: Any, added_I: Any, num_threads: int) -> int:
    """Pairs J within I, I itself not counted."""
    # Larger downsets have more below them: threads take every n-th one instead of consecutive blocks, so
    # that each gets large and small ones.
    total = 0
    num = words_IW.shape[0]
    for thread in numba.prange(num_threads):
        inside = np.zeros(num, np.bool_)
        local = 0
        for i in range(thread, num, num_threads):
            fill_inside(i, words_IW, parent_I, added_I, inside)
            for j in range(1, i):
                local += inside[j]
            local += i > 0
        total += local
    return total


@numba.njit(cache=True)
def nesting(words_IW: Any, parent_I: Any, added_I: Any) -> Any:
    """Whether the first is a proper part of the second, bool [I, I]."""
    # The same induction as in ``fill_inside``, for all I at once. A square table: only for small lattices.
    num = parent_I.size
    inside_II = np.zeros((num, num), np.bool_)
    for i in range(1, num):
        inside_II[0, i] = True
        for j in range(1, i):
            inside_II[j, i] = inside_II[parent_I[j], i] and has(words_IW[i], added_I[j])
    return inside_II


@numba.njit(cache=True)
def entries_of(words_IW: Any, parent_I: Any, added_I: Any, ptr_N: Any, group_X: Any, is_own_X: Any, own_G: Any,
            target_ptr: Any, targets: Any) -> Any:  # fmt: skip
    """What ``row`` needs of every downset: the groups of its last node, with their targets in its parent."""
    # What changes in the communication of S = I \ J when J grows by one node depends on I only through
    # counts; everything else is prepared here once per J, so that ``row`` touches a few groups per pair.
    #      entry = one group that the added node sends to (OWN) or receives from (FREE, LEFT)
    #      count = its targets that J's parent holds
    num = parent_I.size
    entry_ptr = np.zeros(num + 1, np.int64)
    for j in range(1, num):
        entry_ptr[j + 1] = entry_ptr[j] + ptr_N[added_I[j] + 1] - ptr_N[added_I[j]]
    group, count = np.empty(entry_ptr[num], np.int32), np.empty(entry_ptr[num], np.int32)
    kind = np.empty(entry_ptr[num], np.int8)
    for j in range(1, num):
        above = words_IW[parent_I[j]]
        entry = entry_ptr[j]
        for index in range(ptr_N[added_I[j]], ptr_N[added_I[j] + 1]):
            g = group_X[index]
            group[entry], count[entry] = g, 0
            for target in range(target_ptr[g], target_ptr[g + 1]):
                count[entry] += has(above, targets[target])
            kind[entry] = OWN if is_own_X[index] else LEFT if has(above, own_G[g]) else FREE
            entry += 1
    return entry_ptr, group, count, kind


@numba.njit(cache=True)
def row(i: int, words_IW: Any, parent_I: Any, added_I: Any, groups: Any, entries: Any, inside_I: Any, comm_IC: Any,
        reached_G: Any, has_own_G: Any) -> None:  # fmt: skip
    """Which downsets lie within downset ``i``, and what the difference to each communicates, by channel.

    Every J costs what its parent costs, changed by the few groups that its one further node is part of: it has left S.
    ``inside_I`` and ``comm_IC`` are filled up to ``i``; the last two are scratch.
    """
    #      all nodes:  |---- J ----|------- S = I \ J -------|---- outside of I ----|
    # A group costs once if data leaves S (its sender is inside, some target is not) and once if data
    # enters S (its sender is outside, some target is inside), whatever the number of targets.
    # J = {} first: S is all of I, and each group is counted from the bits.
    own_G, num_targets_G, target_ptr, targets, cost_G, out_channel_G, in_channel_G = groups
    entry_ptr, entry_group, entry_count, entry_kind = entries
    words = words_IW[i]
    has_comm = own_G.size > 0
    num_channels = comm_IC.shape[1]
    inside_I[0] = True
    if has_comm:
        for channel in range(num_channels):
            comm_IC[0, channel] = 0.0
        for g in range(own_G.size):
            reached = 0
            for index in range(target_ptr[g], target_ptr[g + 1]):
                reached += has(words, targets[index])
            reached_G[g] = reached
            has_own_G[g] = has(words, own_G[g])
            if has_own_G[g]:
                if reached < num_targets_G[g]:
                    comm_IC[0, out_channel_G[g]] += cost_G[g]
            elif reached > 0:
                comm_IC[0, in_channel_G[g]] += cost_G[g]
    # J grows by one node at a time along parents, and that node leaves S. Three cases change a cost:
    #      OWN   the node was the sender: nothing leaves S for this group any more, something may enter
    #      FREE  the node was a target and the sender stays in S: from now on data leaves S
    #      LEFT  the node was the last target in S of a sender outside of it: nothing enters any more
    for j in range(1, i):
        above = parent_I[j]
        if not (inside_I[above] and has(words, added_I[j])):
            inside_I[j] = False
            continue
        inside_I[j] = True
        if not has_comm:
            continue
        for channel in range(num_channels):
            comm_IC[j, channel] = comm_IC[above, channel]
        for entry in range(entry_ptr[j], entry_ptr[j + 1]):
            g = entry_group[entry]
            receivers = reached_G[g] - entry_count[entry]  # in S, before the node leaves it
            kind = entry_kind[entry]
            if kind == OWN:
                if receivers < num_targets_G[g]:
                    comm_IC[j, out_channel_G[g]] -= cost_G[g]
                if receivers > 0:
                    comm_IC[j, in_channel_G[g]] += cost_G[g]
            elif kind == FREE and has_own_G[g]:
                if receivers == num_targets_G[g]:
                    comm_IC[j, out_channel_G[g]] += cost_G[g]
            elif receivers == 1:
                comm_IC[j, in_channel_G[g]] -= cost_G[g]


@numba.njit(cache=True)
def _load(compute: float, comm_C: Any, scale_C: Any, combine: int) -> Any:
    """Of one device: ``scale_C`` is what a unit of each channel takes there, 0 where data is already at hand."""
    #      sum      compute + everything              overlap          max(compute, sent + received)
    #      duplex   compute + max(sent, received)     overlap-duplex   max(compute, max(sent, received))
    if combine == SUM:
        total = 0.0
        for channel in range(comm_C.size):
            total += scale_C[channel] * comm_C[channel]
        return compute + total
    sent = scale_C[OUT_FORWARD] * comm_C[OUT_FORWARD] + scale_C[OUT_BACKWARD] * comm_C[OUT_BACKWARD]
    received = scale_C[IN_FORWARD] * comm_C[IN_FORWARD] + scale_C[IN_BACKWARD] * comm_C[IN_BACKWARD]
    comm = sent + received if combine == OVERLAP else max(sent, received)
    return compute + comm if combine == DUPLEX else max(compute, comm)


@numba.njit(cache=True)
def level_part(thread: int, num_threads: int, first: int, last: int, best_IV: Any, words_IW: Any, parent_I: Any,
               added_I: Any, groups: Any, entries: Any, compute_IT: Any, memory_I: Any, weights_I: Any,
               barred_IT: Any, limit_T: Any, option_type: Any, option_replicas: Any, option_sync: Any, scale_OC: Any,
               move_ptr: Any, move_to: Any, move_from: Any, combine: int, upper: float) -> None:  # fmt: skip
    """The least max-load of every ``num_threads``-th downset from ``first + thread`` to ``last``, all of one size.

    For every vector of device counts; ``best_IV`` is final for smaller downsets. A pair whose load is above ``upper``
    cannot be part of a better answer.
    """
    # The inner loops of the recurrence in ``minmax``:
    #      best[I, V] = min over J within I, option o of max(load(I \ J, o), best[J, V - devices(o)])
    # ``move_to`` and ``move_from`` list, per option, the vectors V and V - devices(o) that exist.
    # Cheap tests (memory, compute alone against the bound) come before the communication is combined.
    num_groups, num_options = groups[0].size, option_type.size
    inside_I = np.zeros(last, np.bool_)
    comm_IC = np.zeros((last, scale_OC.shape[1]))
    reached_G, has_own_G = np.zeros(num_groups, np.int32), np.zeros(num_groups, np.bool_)
    for i in range(first + thread, last, num_threads):
        row(i, words_IW, parent_I, added_I, groups, entries, inside_I, comm_IC, reached_G, has_own_G)
        best_V = best_IV[i]
        for j in range(i):
            if not inside_I[j]:
                continue
            memory = memory_I[i] - memory_I[j]
            for option in range(num_options):
                kind = option_type[option]
                replicas = option_replicas[option]
                load = compute_IT[i, kind] - compute_IT[j, kind]
                if load > upper * replicas or memory > limit_T[kind]:
                    continue
                # Counts of nodes that this type cannot run: a difference means that one of them is in I \ J.
                if barred_IT[i, kind] != barred_IT[j, kind]:
                    continue
                load = _load(load, comm_IC[j], scale_OC[option], combine) / replicas
                load += option_sync[option] * (weights_I[i] - weights_I[j])
                if load > upper:
                    continue
                for move in range(move_ptr[option], move_ptr[option + 1]):
                    value = max(best_IV[j, move_from[move]], load)
                    if value < best_V[move_to[move]]:
                        best_V[move_to[move]] = value


@numba.njit(cache=True, parallel=True)
def level(num_threads: int, first: int, last: int, best_IV: Any, words_IW: Any, parent_I: Any, added_I: Any,
          groups: Any, entries: Any, compute_IT: Any, memory_I: Any, weights_I: Any, barred_IT: Any, limit_T: Any,
          option_type: Any, option_replicas: Any, option_sync: Any, scale_OC: Any, move_ptr: Any, move_to: Any,
          move_from: Any, combine: int, upper: float) -> None:  # fmt: skip
    """``level_part`` on several threads."""
    # Downsets of one size never depend on each other, so that a level is split without locks: each
    # thread writes the rows of its own downsets only.
    for thread in numba.prange(num_threads):
        level_part(thread, num_threads, first, last, best_IV, words_IW, parent_I, added_I, groups, entries, compute_IT,
                   memory_I, weights_I, barred_IT, limit_T, option_type, option_replicas, option_sync, scale_OC,
                   move_ptr, move_to, move_from, combine, upper)  # fmt: skip
