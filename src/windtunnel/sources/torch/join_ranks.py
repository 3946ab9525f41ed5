"""The captured ranks of one step become one graph.

In: the graph of each rank, captured over the same iterations on one host. Out: one graph whose ranks begin together
and meet in their messages, and whose replay takes as long as the unprofiled step. Ranks on GPUs were traced with their
collectives as kernels, and each takes as long as its own step already: they meet as ranks of any trace do. Not here:
matching and meeting (``sources.ranks``), which any job needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import TraceError
from windtunnel.graph import Graph, Kind, ResourceKind
from windtunnel.graph.ranks import meetings
from windtunnel.measure.disturbance import disturbance_log_error
from windtunnel.simulate import replay
from windtunnel.sources.ranks import merge
from windtunnel.sources.torch.overhead import central, select_validation_iterations
from windtunnel.sources.torch.timeline_points import match_in_order

__all__ = ["join_step_ranks"]

# R ranks, C messages, I iterations
Int = NDArray[np.int64]
Key = tuple[str, int]  # a process group, and which of its collectives
_ROUNDS = 4
_LEAST, _MOST = 0.5, 2.0  # of the factor that makes the replay as long as the step


def join_step_ranks(graphs: Sequence[Graph], names: Sequence[str]) -> Graph:
    """Join the ranks of a step.

    Parameters
    ----------
    graphs, names : sequences [R]

    Raises
    ------
    TraceError
        The ranks do not agree about what they sent each other; names rank, message and number.
    """
    if any("samples_ns" not in graph.tasks for graph in graphs):  # timelines, of GPUs
        return _join_timelines(graphs, names)
    graphs = keep_common_samples(graphs)
    least, late_ns = _shortest(graphs)
    own = [_with_least(graph, least) for graph in graphs] if least else list(graphs)
    own = [own[0], *[_with_calls_of(own[0], graph) for graph in own[1:]]]  # the joined graph keeps one program
    merged = merge(own, names, align="none", hosts=["one"] * len(graphs), allow_missing=False)
    together = merged.tasks.replace(
        earliest_ns=np.zeros(merged.num_tasks, dtype=np.int64), duration_ns=_set_chance_waits(merged, late_ns)
    )
    return _as_long_as_the_step(Graph(together, merged.edges, merged.resources, merged.meta), graphs)


def keep_common_samples(graphs: Sequence[Graph]) -> list[Graph]:
    """Graphs with as many samples each: a rank that was disturbed by other programs may have measured fewer or more."""
    count = min(graph.tasks["samples_ns"].shape[1] for graph in graphs)
    return [
        graph.with_columns(samples_ns=np.ascontiguousarray(samples[:, -count:])) if samples.shape[1] > count else graph
        for graph in graphs
        for samples in (graph.tasks["samples_ns"],)
    ]


def _join_timelines(graphs: Sequence[Graph], names: Sequence[str]) -> Graph:
    counts = [graph.num_iterations for graph in graphs]
    if len(set(counts)) > 1:
        raise TraceError(
            f"the ranks have traces of {', '.join(map(str, counts))} iterations",
            where=", ".join(names[:8]),
            fix="capture again: another program disturbed some of them",
        )
    own = [_begin_at_zero(graph) for graph in graphs]
    own = [own[0], *[_with_calls_of(own[0], graph) for graph in own[1:]]]  # the joined graph keeps one program
    return merge(own, names, align="none", hosts=["one"] * len(graphs), allow_missing=False)


def _begin_at_zero(graph: Graph) -> Graph:
    """Times of a rank since its first task, as ranks begin their iterations together."""
    first_ns = int(graph.tasks["start_ns"].min()) if graph.num_tasks else 0
    columns = {"start_ns": graph.tasks["start_ns"] - first_ns}
    if "earliest_ns" in graph.tasks:
        columns["earliest_ns"] = np.maximum(graph.tasks["earliest_ns"] - first_ns, 0)
    return graph.with_columns(**columns)


def _shortest(graphs: Sequence[Graph]) -> tuple[dict[Key, Int], dict[Key, int]]:
    """Each collective as the rank that came last saw it, iteration by iteration, and what is waited for by chance.

    Ranks take turns in being late: the last of them arrives later than the rank that is later on average does. That
    belongs neither to the message nor to what a rank computes.
    """
    samples: dict[Key, list[Int]] = {}
    for graph in graphs:
        for row, key in _collectives(graph):
            samples.setdefault(key, []).append(graph.tasks["samples_ns"][row])
    if len({len(item) for several in samples.values() for item in several}) > 1:
        return {}, {}  # a rank measured other iterations than its peers
    least = {key: np.min(several, axis=0) for key, several in samples.items()}
    late_ns = {key: max(0, min(map(_typical, several)) - _typical(least[key])) for key, several in samples.items()}
    return least, late_ns


def _typical(samples: Int) -> int:
    """Mean of the middle half."""
    return round(float(samples[central(samples.astype(np.float64))].mean()))


def _set_chance_waits(graph: Graph, late_ns: dict[Key, int]) -> Int:
    """Return durations in which each collective's meeting task takes the time its ranks are late by chance."""
    duration, key_of, result = graph.duration_ns.copy(), dict(_collectives(graph)), meetings(graph)
    for hub, member in zip(result.hub.tolist(), result.member.tolist(), strict=True):
        duration[hub] = late_ns.get(key_of.get(member, ("", -1)), 0)
    return duration


def _collectives(graph: Graph) -> list[tuple[int, Key]]:
    """Row of each collective, and what is the same on all its ranks."""
    tasks = graph.tasks
    rows = np.flatnonzero((tasks["kind"] == Kind.COMM) & (tasks.get("peer", np.full(graph.num_tasks, -1)) < 0))
    keys = [(str(graph.meta.groups[tasks["group"][row]]), int(tasks["sequence"][row])) for row in rows.tolist()]
    return list(zip(rows.tolist(), keys, strict=True))


def _with_least(graph: Graph, least: dict[Key, Int]) -> Graph:
    samples, duration = graph.tasks["samples_ns"].copy(), graph.duration_ns.copy()
    start = graph.tasks["start_ns"].copy()
    for row, key in _collectives(graph):
        samples[row] = least[key]
        mean_ns = _typical(least[key])
        start[row] += duration[row] - mean_ns
        duration[row] = mean_ns
    return replace(graph, tasks=graph.tasks.replace(samples_ns=samples, duration_ns=duration, start_ns=start))


def _with_calls_of(first: Graph, graph: Graph) -> Graph:
    """The graph of another rank, whose tasks name calls of the program of ``first``; -1 where that has no such call."""
    theirs, local = ([_text(call) for call in item.meta.program.get("calls", ())] for item in (first, graph))
    if local == theirs or "call" not in graph.tasks:
        return graph
    matched = match_in_order(local, theirs)
    row = np.full(len(local) + 1, -1, dtype=np.int32)  # the last for what belongs to no call
    if matched is not None:
        row[:-1] = matched
    return replace(graph, tasks=graph.tasks.replace(call=row[graph.tasks["call"]]))


def _text(call: dict[str, Any]) -> str:
    return call.get("mark") or f"{call['schema']} {call['shapes']}"


def _as_long_as_the_step(graph: Graph, graphs: Sequence[Graph]) -> Graph:
    """Spread over the main threads what replay and bare iterations differ; half of these are held out to check it."""
    bare = [np.array(item.meta.iteration_ns.get("samples", ()), dtype=np.int64) for item in graphs]
    if any(len(item) < 2 for item in bare):
        return graph
    seen_ns = float(np.median([np.median(item[~select_validation_iterations(len(item))]) for item in bare]))
    aside_ns = float(np.median([np.median(item[select_validation_iterations(len(item))]) for item in bare]))
    is_host = graph.select(resource_kind=ResourceKind.HOST_THREAD)
    ratio, settled, replayed_ns = 1.0, graph, float(replay(graph).makespan_ns)
    for _ in range(_ROUNDS):
        ratio = float(np.clip(ratio * seen_ns / replayed_ns, _LEAST, _MOST))
        settled = _scale_durations(graph, is_host, ratio)
        replayed_ns = float(replay(settled).makespan_ns)
    overhead: dict[str, Any] = {
        **graph.meta.overhead,
        "residual_ratio": ratio,
        "held_out_ns": [round(aside_ns)],
        "held_out_error_ratio": replayed_ns / aside_ns - 1.0,
    }
    entries = {"overhead": overhead, "iteration_ns": _estimate_step(graph, replayed_ns)}
    return replace(settled, meta=settled.meta.with_entries(entries))


def _estimate_step(graph: Graph, replayed_ns: float) -> dict[str, Any]:
    """What an iteration takes; of a disturbed job as all ranks together replay, not as one rank alone does."""
    facts = dict(graph.meta.iteration_ns)
    lost_ratio = float(graph.meta.disturbance.get("lost_ratio", 0.0))
    if not lost_ratio:
        return facts
    factor = math.exp(disturbance_log_error(lost_ratio))
    ends = {"low": int(replayed_ns / factor), "high": int(replayed_ns * factor)}
    return {**facts, "median": int(replayed_ns), **ends}


def _scale_durations(graph: Graph, rows: NDArray[np.bool_], ratio: float) -> Graph:
    columns = {name: graph.tasks[name].copy() for name in ("duration_ns", "samples_ns")}
    for column in columns.values():
        column[rows] = np.rint(column[rows] * ratio).astype(np.int64)
    return replace(graph, tasks=graph.tasks.replace(**columns))
