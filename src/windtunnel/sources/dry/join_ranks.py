"""Traced ranks -> one graph of the ranks that differ.

In: a ``Trace`` per rank. Out: a ``Graph`` with each of them, in which those meet that communicate, and how many ranks
of the job each stands for. Ranks that do the same are kept once. Not here: tracing, prices.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from windtunnel.graph import Graph, Kind
from windtunnel.graph.meta import ProcessGroup
from windtunnel.graph.ranks import join
from windtunnel.sources.dry.batches import Batches
from windtunnel.sources.dry.build import graph_of
from windtunnel.sources.dry.trace import Trace

__all__ = ["join_traces"]


def join_traces(traces: Sequence[Trace], num_ranks: int, devices_per_host: int) -> Graph:
    """One graph of all traced ranks that differ.

    Parameters
    ----------
    traces : sequence of Trace
    num_ranks : int
        Of the job; those that were not traced are shared out among the kept ones.
    devices_per_host : int
    """
    # The first trace of each kind, and how many there are.
    kinds: dict[tuple[str, ...], list[list[Trace]]] = {}
    for pipeline in _pipelines(traces):
        kinds.setdefault(tuple(map(_digest, pipeline)), []).append(pipeline)
    kept = [(trace, len(alike)) for alike in kinds.values() for trace in alike[0]]
    groups = tuple(dict.fromkeys(group for trace, _ in kept for group in trace.groups))
    graphs = [_with_groups(graph_of(trace), groups) for trace, _ in kept]
    tasks, edges, resources = join(graphs)
    largest = max(graphs, key=lambda graph: graph.meta.memory["peak_bytes"])
    # Ranks without a trace are taken to be like the traced ranks, in equal parts.
    seen = sum(count for _, count in kept)
    share, rest = divmod(num_ranks - seen, len(kept))
    meta = largest.meta.with_entries(
        {
            "groups": groups,
            "distributed": {
                "world_size": num_ranks,
                "devices_per_host": devices_per_host,
                **_batches(traces, num_ranks),
                "stands_for": {
                    str(trace.rank): count + share + (index < rest) for index, (trace, count) in enumerate(kept)
                },
                "peak_bytes": {str(trace.rank): trace.memory.peak_bytes for trace, _ in kept},
                "peak_reserved_bytes": {str(trace.rank): trace.memory.peak_reserved_bytes for trace, _ in kept},
                "values_read": dict(sum((Counter(trace.read_lines) for trace, _ in kept), Counter())),
            },
        }
    )
    return _synchronize_messages(
        replace(graphs[0], tasks=tasks, edges=edges, resources=resources, meta=meta)
    ).validate()


def _batches(traces: Sequence[Trace], num_ranks: int) -> dict[str, Any]:
    """How samples are spread over the job, where all of its traced ranks say the same."""
    found = {trace.batches for trace in traces}
    batches = found.pop() if len(found) == 1 else None
    if batches is None:
        return {"batches": Batches(1).to_dict()} if num_ranks == 1 else {}
    return {"batches": batches.to_dict()}


def _pipelines(traces: Sequence[Trace]) -> list[list[Trace]]:
    """Traces that pass messages from rank to rank, each list in the order of its ranks; most ranks are alone."""
    by_rank = {trace.rank: trace for trace in traces}
    neighbors: dict[int, set[int]] = {rank: set() for rank in by_rank}
    for trace in traces:
        for peer in trace.peers & by_rank.keys():
            neighbors[trace.rank].add(peer)
            neighbors[peer].add(trace.rank)
    pipelines, assigned = [], set[int]()
    for rank in sorted(by_rank):
        if rank not in assigned:
            members = _reachable(rank, neighbors)
            assigned |= members
            pipelines.append([by_rank[member] for member in sorted(members)])
    return pipelines


def _reachable(first: int, neighbors: dict[int, set[int]]) -> set[int]:
    reached, waiting = {first}, [first]
    while waiting:
        new = neighbors[waiting.pop()] - reached
        reached |= new
        waiting += new
    return reached


def _digest(trace: Trace) -> str:
    """Return a key that ranks with equal work share: operators, shapes, streams, sizes of groups, distance of peers."""
    digest = hashlib.sha256()
    for call in trace.calls:
        inputs = call.node["inputs"]
        sent = call.message and (
            call.message.op,
            call.message.size_bytes,
            len(trace.groups[call.message.group].ranks),
            call.message.peer >= 0 and call.message.peer - trace.rank,
        )
        digest.update(repr((call.node["name"], inputs["shapes"], inputs["types"], call.stream, sent)).encode())
    return digest.hexdigest()


def _with_groups(graph: Graph, groups: tuple[ProcessGroup, ...]) -> Graph:
    index = np.array([groups.index(group) for group in graph.meta.groups] + [-1], dtype=np.int32)
    return graph.with_columns(group=index[graph.tasks["group"]])


def _synchronize_messages(graph: Graph) -> Graph:
    """Make the traced ranks begin their common messages together."""
    tasks = graph.tasks
    rows = np.flatnonzero(tasks["kind"] == Kind.COMM).tolist()
    keys = _keys(tasks, rows)
    counts = Counter(keys)
    shared = [(row, key) for row, key in zip(rows, keys, strict=True) if counts[key] > 1]
    if not shared:
        return graph
    number = {key: index for index, key in enumerate(dict.fromkeys(key for _, key in shared))}
    return graph.meet([row for row, _ in shared], [number[key] for _, key in shared])


def _keys(tasks: Any, rows: list[int]) -> list[tuple[Any, ...]]:
    """What tells the members of one message apart from all others; messages between two ranks count from 0."""
    columns = [tasks[name][rows].tolist() for name in ("group", "sequence", "rank", "peer", "tag")]
    ops = tasks.strings("op").take(np.array(rows, np.int64)).to_numpy().tolist()
    seen: Counter[tuple[Any, ...]] = Counter()
    keys: list[tuple[Any, ...]] = []
    for group, sequence, rank, peer, tag, op in zip(*columns, ops, strict=True):
        if peer < 0:
            keys.append((group, sequence))
            continue
        ends = (rank, peer) if op == "send" else (peer, rank)
        keys.append((*ends, tag, seen[rank, peer, tag, op]))
        seen[rank, peer, tag, op] += 1
    return keys
