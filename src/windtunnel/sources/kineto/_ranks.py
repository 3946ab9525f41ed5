"""The traces of several ranks as one graph, joined at their collectives (sources, Kineto).

In: one graph per rank, each with its own origin of time. Out: one graph on one clock. A collective that every rank
recorded as one kernel becomes, per rank, an arrival and a transfer; all transfers begin when the last rank has
arrived, and last as long as the shortest kernel: the rank that came last did not wait. Not here: clocks that differ
(the traces of one machine share theirs).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import TraceError
from windtunnel.graph import Graph, Kind, Strings, Table
from windtunnel.graph.meta import Meta, ProcessGroup
from windtunnel.graph.ranks import join
from windtunnel.sources.kineto._device import Cause
from windtunnel.units import format_duration

__all__ = ["merge_ranks"]

# R ranks, T tasks of all ranks, C collectives, M = their members
Int64s = NDArray[np.int64]
POINT_TO_POINT = ("send", "recv")


def merge_ranks(graphs: list[Graph], names: list[str], *, noise_ns: int, allow_missing: bool = False) -> Graph:
    """Join the graphs of several ranks.

    Parameters
    ----------
    graphs, names : lists [R]
        A graph per rank, and what to call its trace in messages.
    noise_ns : int
        A rank that waited longer for its peers was held up by them.
    allow_missing : bool
        Accept that fewer ranks are here than the traces say that there were.

    Raises
    ------
    TraceError
        The traces are not of one job, two claim one rank, a rank is missing, or the ranks do not agree about a
        collective.
    """
    _require_one_job(graphs, names)
    ranks = _rank_numbers(graphs, names, allow_missing)
    order = np.argsort(ranks)
    graphs, names, ranks = [graphs[i] for i in order], [names[i] for i in order], [ranks[i] for i in order]
    origin = min(graph.meta.origin_ns for graph in graphs)
    groups = _common_groups(graphs)
    parts = [_on_common_clock(graph, rank, origin, groups) for graph, rank in zip(graphs, ranks, strict=True)]
    named = [
        replace(graph, tasks=part, resources=_named_resources(graph, rank))
        for graph, part, rank in zip(graphs, parts, ranks, strict=True)
    ]
    tasks, edges, resources = join(named)
    members = _match(tasks, names, ranks, groups)
    if len(graphs) > 1 and not members.num_collectives and "rank" not in graphs[0].tasks:
        raise TraceError(
            f"nothing says that these {len(graphs)} traces are of one job: no rank, no collective in common",
            where=", ".join(names[:8]),
            fix=_ONE_JOB,
        )
    tasks, edges = _joined(Graph(tasks, edges, resources), members, noise_ns)
    meta = _meta(graphs, names, ranks, origin, groups)
    return Graph(tasks, edges, resources, meta).validate()


_ONE_JOB = "load each trace by itself, or give a folder that holds the ranks of one run and nothing else"
_FACTS = ("world_size", "backend", "nccl_version")


def _require_one_job(graphs: list[Graph], names: list[str]) -> None:
    """Refuse traces that contradict each other about the job that they are of, or were not recorded at one time."""
    for fact in _FACTS:
        told = [graph.meta.distributed.get(fact) for graph in graphs]
        known = [place for place, value in enumerate(told) if isinstance(value, int | str)]
        other = next((place for place in known if told[place] != told[known[0]]), None)
        if other is not None:
            raise TraceError(
                f"the traces are of different jobs: {fact} {told[known[0]]} and {told[other]}",
                where=f"{names[known[0]]}, {names[other]}: distributedInfo",
                fix=_ONE_JOB,
            )
    silent = [name for graph, name in zip(graphs, names, strict=True) if "rank" not in graph.tasks]
    if 0 < len(silent) < len(graphs):
        raise TraceError(
            f"{len(silent)} of {len(graphs)} traces do not say which rank they are",
            where=", ".join(silent),
            fix=_ONE_JOB,
        )
    spans = sorted((*_span_ns(graph), name) for graph, name in zip(graphs, names, strict=True) if graph.num_tasks)
    latest_ns, before = spans[0][1:]
    for begin_ns, end_ns, name in spans[1:]:
        if begin_ns > latest_ns:
            raise TraceError(
                f"the traces were not recorded at one time: {format_duration(begin_ns - latest_ns)} lie between them",
                where=f"{before}, {name}",
                fix=_ONE_JOB,
            )
        latest_ns, before = max((latest_ns, before), (end_ns, name))


def _span_ns(graph: Graph) -> tuple[int, int]:
    start = graph.tasks["start_ns"]
    return graph.meta.origin_ns + int(start.min()), graph.meta.origin_ns + int((start + graph.duration_ns).max())


def _rank_numbers(graphs: list[Graph], names: list[str], allow_missing: bool) -> list[int]:
    """The rank that each trace says it is, or its place in the list where none says."""
    told = [graph.tasks.get("rank") for graph in graphs]
    ranks = [place if rank is None else int(rank[0]) for place, rank in enumerate(told)]
    for place, rank in enumerate(ranks):
        if rank in ranks[:place]:
            raise TraceError(
                f"two traces claim to be rank {rank}",
                where=f"{names[ranks.index(rank)]} and {names[place]}",
                fix="give one trace per rank",
            )
    sizes = [graph.meta.distributed.get("world_size", 0) for graph in graphs]
    world_size = max((size for size in sizes if isinstance(size, int)), default=0)
    missing = sorted(set(range(min(world_size, 1 << 20))) - set(ranks))
    if missing and not allow_missing:
        shown = ", ".join(str(rank) for rank in missing[:10]) + (", ..." if len(missing) > 10 else "")
        raise TraceError(
            f"{len(missing)} of {world_size} ranks are missing: {shown}",
            where=", ".join(names[:8]),
            fix=f"add their traces, or join the {len(ranks)} ranks that are here with allow_missing=True",
        )
    return ranks


Groups = dict[ProcessGroup, int]


def _common_groups(graphs: list[Graph]) -> Groups:
    """Number of each process group over all ranks, by name and members."""
    every = dict.fromkeys(group for graph in graphs for group in graph.meta.groups)
    return {group: number for number, group in enumerate(every)}


def _on_common_clock(graph: Graph, rank: int, origin: int, groups: Groups) -> Table:
    """The rank's tasks with times from the common origin; what waits for nothing begins when it was measured to."""
    shift = graph.meta.origin_ns - origin
    start = graph.tasks["start_ns"] + shift
    own = graph.tasks.get("earliest_ns", np.zeros(graph.num_tasks, np.int64))
    earliest = np.where(own > 0, own + shift, 0)
    has_cause = np.zeros(graph.num_tasks, bool)
    has_cause[graph.edges["dst"]] = True
    earliest[~has_cause] = start[~has_cause]
    columns: dict[str, Any] = {"start_ns": start, "earliest_ns": np.maximum(earliest, 0)}
    columns["rank"] = np.full(graph.num_tasks, rank, np.int32)
    if "group" in graph.tasks:
        table = [groups[group] for group in graph.meta.groups]
        columns["group"] = np.array([*table, -1], np.int32)[graph.tasks["group"]]
    return graph.tasks.replace(**columns)


def _named_resources(graph: Graph, rank: int) -> Table:
    names = [f"rank {rank} {name}" for name in graph.resources.strings("name").to_numpy()]
    return graph.resources.replace(name=Strings.of(names), machine=np.zeros(graph.num_resources, np.int32))


@dataclass(frozen=True, slots=True, eq=False)
class _Members:
    """Rows [M] of the tasks that are members of collectives, and the number of the collective of each."""

    row: Int64s
    collective: Int64s

    @property
    def num_collectives(self) -> int:
        return int(self.collective.max(initial=-1)) + 1


def _match(tasks: Table, names: list[str], ranks: list[int], groups: Groups) -> _Members:
    """Match collectives over the ranks of a group: by sequence number where all have one, else by order."""
    operators = tasks.strings("op")
    alone = np.isin(operators.codes, [code for code, op in enumerate(operators.values) if op in POINT_TO_POINT])
    on_device = tasks["start_cause"] >= 0 if "start_cause" in tasks else tasks["kind"] == Kind.COMM
    rows = np.flatnonzero((tasks["kind"] == Kind.COMM) & on_device & ~alone)
    group = tasks["group"][rows] if "group" in tasks else np.full(len(rows), -1, np.int32)
    found: list[tuple[int, int]] = []
    number = 0
    for one in np.unique(group).tolist():
        members = rows[group == one]
        lists = {rank: members[tasks["rank"][members] == rank] for rank in ranks}
        lists = {rank: own[np.lexsort(_order(tasks, own))] for rank, own in lists.items() if len(own)}
        if len(lists) < 2:
            continue
        _check_agreement(tasks, lists, dict(zip(ranks, names, strict=True)), _group_name(groups, one))
        for members_of_one in zip(*lists.values(), strict=True):
            found += [(int(row), number) for row in members_of_one]
            number += 1
    table = np.array(found, np.int64).reshape(-1, 2)
    return _Members(table[:, 0], table[:, 1])


def _order(tasks: Table, rows: Int64s) -> tuple[Int64s, Int64s]:
    sequence = tasks["sequence"][rows] if "sequence" in tasks else np.full(len(rows), -1)
    return tasks["start_ns"][rows], sequence


def _group_name(groups: Groups, number: int) -> str:
    return next((str(group) for group, code in groups.items() if code == number), "all ranks")


def _check_agreement(tasks: Table, lists: dict[int, Int64s], names: dict[int, str], group: str) -> None:
    """Refuse ranks whose lists of collectives differ, with the first difference."""
    operators = tasks.strings("op")
    size = tasks["message_bytes"] if "message_bytes" in tasks else np.zeros(tasks.num_rows, np.int64)
    first_rank, first = next(iter(lists.items()))
    for rank, rows in lists.items():
        common = min(len(first), len(rows))
        differs = operators.codes[first[:common]] != operators.codes[rows[:common]]
        differs |= size[first[:common]] != size[rows[:common]]
        if not differs.any() and len(first) == len(rows):
            continue
        place = int(np.argmax(differs)) if differs.any() else common
        told = [
            f"rank {r} has {operators.decode(int(own[place]))} of {int(size[own[place]]):,} bytes"
            if place < len(own)
            else f"rank {r} has no more"
            for r, own in ((first_rank, first), (rank, rows))
        ]
        raise TraceError(
            f"the ranks disagree about collective {place} of {group}: {' and '.join(told)}",
            where=f"{names[first_rank]}, {names[rank]}: {len(first):,} and {len(rows):,} collectives",
            fix="cut the traces to the same training steps (window=...)",
        )


def _joined(graph: Graph, members: _Members, noise_ns: int) -> tuple[Table, Table]:
    """Let the members of each collective meet: they last as long as the shortest, what is longer was waiting."""
    if not len(members.row):
        return graph.tasks, graph.edges
    num_tasks, row, collective = graph.num_tasks, members.row, members.collective
    duration, start = graph.duration_ns, graph.tasks["start_ns"]
    shortest = np.full(members.num_collectives, np.iinfo(np.int64).max)
    np.minimum.at(shortest, collective, duration[row])
    wait = duration[row] - shortest[collective]
    met = graph.meet(row, collective, shortest)
    columns = {name: met.tasks[name].copy() for name in ("start_ns", "start_cause")}
    columns["start_ns"][row] += wait
    columns["start_cause"][row] = np.where(wait > noise_ns, Cause.COLLECTIVE_PEER, -1)
    latest = np.zeros(members.num_collectives, np.int64)
    np.maximum.at(latest, collective, start[row] + wait)
    columns["start_ns"][num_tasks + len(row) :] = latest
    columns["start_cause"][num_tasks + len(row) :] = -1
    return met.tasks.replace(**columns), met.edges


def _meta(graphs: list[Graph], names: list[str], ranks: list[int], origin: int, groups: Groups) -> Meta:
    return replace(
        graphs[0].meta,
        origin_ns=origin,
        groups=tuple(groups),
        trace={f"rank {rank}": graph.meta.trace for rank, graph in zip(ranks, graphs, strict=True)},
        ranks=dict(zip([str(rank) for rank in ranks], names, strict=True)),
    )
