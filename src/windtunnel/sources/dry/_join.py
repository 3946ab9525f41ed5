"""Traced ranks -> one graph of the ranks that differ (room sources, private).

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
from windtunnel.sources.dry._build import graph_of
from windtunnel.sources.dry._trace import Trace

__all__ = ["joined"]


def joined(traces: Sequence[Trace], num_ranks: int, devices_per_host: int) -> Graph:
    """One graph of all traced ranks that differ.

    Parameters
    ----------
    traces : sequence of Trace
    num_ranks : int
        Of the job; those that were not traced are shared out among the kept ones.
    devices_per_host : int
    """
    kept = _distinct(traces)
    groups = tuple(dict.fromkeys(group for trace, _ in kept for group in trace.groups))
    graphs = [_with_groups(graph_of(trace), groups) for trace, _ in kept]
    tasks, edges, resources = join(graphs)
    largest = max(graphs, key=lambda graph: graph.meta.memory["peak_bytes"])
    meta = largest.meta.with_entries(
        {
            "groups": groups,
            "distributed": {
                "world_size": num_ranks,
                "devices_per_host": devices_per_host,
                "stands_for": _stands_for(kept, num_ranks),
                "peak_bytes": {str(trace.rank): trace.memory.peak_bytes for trace, _ in kept},
                "peak_reserved_bytes": {str(trace.rank): trace.memory.peak_reserved_bytes for trace, _ in kept},
                "values_read": dict(sum((Counter(trace.read_lines) for trace, _ in kept), Counter())),
            },
        }
    )
    return _met(replace(graphs[0], tasks=tasks, edges=edges, resources=resources, meta=meta)).validate()


def _distinct(traces: Sequence[Trace]) -> list[tuple[Trace, int]]:
    """The first trace of each kind, and how many there are."""
    kinds: dict[str, list[Trace]] = {}
    for trace in traces:
        kinds.setdefault(_digest(trace), []).append(trace)
    return [(alike[0], len(alike)) for alike in kinds.values()]


def _digest(trace: Trace) -> str:
    """The same for ranks that do the same: operators, shapes, streams, sizes of groups, distance of peers."""
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


def _stands_for(kept: Sequence[tuple[Trace, int]], num_ranks: int) -> dict[str, int]:
    """Ranks that nobody traced are taken to be like the traced ones, in equal parts."""
    seen = sum(count for _, count in kept)
    share, rest = divmod(num_ranks - seen, len(kept))
    return {str(trace.rank): count + share + (place < rest) for place, (trace, count) in enumerate(kept)}


def _with_groups(graph: Graph, groups: tuple[ProcessGroup, ...]) -> Graph:
    place = np.array([groups.index(group) for group in graph.meta.groups] + [-1], dtype=np.int32)
    return graph.with_columns(group=place[graph.tasks["group"]])


def _met(graph: Graph) -> Graph:
    """Let traced ranks begin their common messages together."""
    tasks = graph.tasks
    rows = np.flatnonzero(tasks["kind"] == Kind.COMM)
    keys = [_key(tasks, row, graph) for row in rows.tolist()]
    counts = Counter(keys)
    shared = [(row, key) for row, key in zip(rows.tolist(), keys, strict=True) if counts[key] > 1]
    if not shared:
        return graph
    number = {key: place for place, key in enumerate(dict.fromkeys(key for _, key in shared))}
    return graph.meet([row for row, _ in shared], [number[key] for _, key in shared])


def _key(tasks: Any, row: int, graph: Graph) -> tuple[Any, ...]:
    """What tells the members of one message apart from all others."""
    group, peer = int(tasks["group"][row]), int(tasks["peer"][row])
    if peer < 0:
        return group, int(tasks["sequence"][row])
    rank, tag = int(tasks["rank"][row]), int(tasks["tag"][row])
    is_send = tasks.strings("op").decode(row) == "send"
    ends = (rank, peer) if is_send else (peer, rank)
    same = _before(tasks, row, graph)
    return (*ends, tag, same)


def _before(tasks: Any, row: int, graph: Graph) -> int:
    """How many messages of this kind between the same two ranks come before."""
    del graph
    op = tasks.strings("op")
    alike = (tasks["rank"] == tasks["rank"][row]) & (tasks["peer"] == tasks["peer"][row]) & (op.codes == op.codes[row])
    alike &= tasks["tag"] == tasks["tag"][row]
    return int(alike[:row].sum())
