"""Which ranks of which job these graphs are.

In: graphs and what to call them. Out: their ranks in order, on one origin of time, with the process groups numbered
alike. Not here: what they do together (``match``), how their clocks differ (``clocks``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from windtunnel.errors import TraceError
from windtunnel.graph import Graph, Strings, Table
from windtunnel.graph.meta import ProcessGroup

__all__ = ["ONE_JOB", "Job", "job_of"]

# R ranks
ONE_JOB = "load each trace by itself, or give a folder that holds the ranks of one run and nothing else"
_FACTS = ("world_size", "backend", "nccl_version")
_WORKER = re.compile(r"(?P<host>.+)_\d+\.\d+\.pt\.trace\.json(\.gz)?$")  # as torch.profiler names a file


@dataclass(frozen=True)
class Job:
    """The ranks of a job.

    Attributes
    ----------
    graphs, names, ranks : lists [R]
        In the order of the ranks; times count from ``origin_ns``, groups are places in ``groups``.
    hosts : tuple [R] of str
        Whose clock each rank reads; its own where nothing tells.
    world_size : int
        Ranks that there were, 0 where nothing tells.
    has_times : bool
        Whether all were measured on a clock.
    says_ranks, says_hosts : bool
        Whether the graphs say themselves which rank they are; whether the caller said which host each is of.
    misnamed : str
        Which file is named after another rank, in words.
    """

    graphs: list[Graph]
    names: list[str]
    ranks: list[int]
    hosts: tuple[str, ...]
    groups: tuple[ProcessGroup, ...]
    origin_ns: int
    world_size: int
    has_times: bool
    says_ranks: bool
    says_hosts: bool
    misnamed: str = ""

    @property
    def missing(self) -> list[int]:
        """Ranks that there were and that are not here."""
        return sorted(set(range(min(self.world_size, 1 << 20))) - set(self.ranks))

    def trace_name(self, rank: int) -> str:
        """Name the trace of a rank for error messages."""
        return self.names[self.ranks.index(rank)]


def job_of(graphs: Sequence[Graph], names: Sequence[str], hosts: Sequence[str] | None, allow_missing: bool) -> Job:
    """Find the ranks, and refuse what contradicts itself.

    Raises
    ------
    TraceError
        The graphs are of different jobs, two claim one rank, a rank is missing or beyond the number of ranks.
    """
    graphs, names = list(graphs), list(names)
    _require_one_job(graphs, names)
    reported = [_read_rank(graph) for graph in graphs]
    says_ranks = all(rank is not None for rank in reported)
    ranks = [rank for rank in reported if rank is not None] if says_ranks else _ranks_by_name(names)
    world_size = _world_size(graphs)
    _require_each_once(ranks, names, world_size, allow_missing)
    order = np.argsort(ranks).tolist()
    graphs, names, ranks = ([some[i] for i in order] for some in (graphs, names, ranks))
    graphs = [graph.with_meta(groups=_without_addresses(graph.meta.groups)) for graph in graphs]
    groups = tuple(dict.fromkeys(group for graph in graphs for group in graph.meta.groups))
    has_times = all("start_ns" in graph.tasks for graph in graphs)
    origin_ns = min(graph.meta.origin_ns for graph in graphs)
    placed = [
        _assign_rank(graph, rank, origin_ns, groups, has_times) for graph, rank in zip(graphs, ranks, strict=True)
    ]
    told_hosts = [hosts[i] for i in order] if hosts is not None else _read_hosts(graphs, names, ranks)
    says = says_ranks, hosts is not None, _find_misnamed_file(ranks, names) if says_ranks else ""
    return Job(placed, names, ranks, tuple(told_hosts), groups, origin_ns, world_size, has_times, *says)


def _require_one_job(graphs: list[Graph], names: list[str]) -> None:
    """Refuse graphs that contradict each other about the job that they are of, or that are no single ranks."""
    for graph, name in zip(graphs, names, strict=True):
        if graph.num_ranks > 1:
            raise TraceError(f"this graph holds {graph.num_ranks} ranks already", where=name, fix=ONE_JOB)
    for fact in _FACTS:
        reported = [graph.meta.distributed.get(fact) for graph in graphs]
        known = [index for index, value in enumerate(reported) if isinstance(value, int | str)]
        other = next((index for index in known if reported[index] != reported[known[0]]), None)
        if other is not None:
            raise TraceError(
                f"the traces are of different jobs: {fact} {reported[known[0]]} and {reported[other]}",
                where=f"{names[known[0]]}, {names[other]}: distributedInfo",
                fix=ONE_JOB,
            )
    silent = [name for graph, name in zip(graphs, names, strict=True) if _read_rank(graph) is None]
    if 0 < len(silent) < len(graphs):
        raise TraceError(
            f"{len(silent)} of {len(graphs)} traces do not say which rank they are",
            where=", ".join(silent),
            fix=ONE_JOB,
        )


def _read_rank(graph: Graph) -> int | None:
    """Return the rank that a graph reports; a capture of a single process reports 0, which counts as none."""
    rank = graph.meta.distributed.get("rank")
    if isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < 2**31:
        return rank
    column = graph.tasks.get("rank")
    return int(column[0]) if column is not None and len(column) and column[0] else None


def _ranks_by_name(names: list[str]) -> list[int]:
    """The one number in which all the names differ, else the place in the list."""
    parts = [re.split(r"(\d+)", re.split(r"[\\/]", name)[-1]) for name in names]
    if len({len(part) for part in parts}) == 1:
        differing = [index for index in range(len(parts[0])) if len({part[index] for part in parts}) > 1]
        if len(differing) == 1 and differing[0] % 2:
            numbers = [int(part[differing[0]]) for part in parts]
            if len(set(numbers)) == len(numbers) and max(numbers) < 2**31:
                return numbers
    return list(range(len(names)))


def _read_hosts(graphs: list[Graph], names: list[str], ranks: list[int]) -> list[str]:
    """The host that each trace names, or the name of its file as the profiler gives it; else one clock per rank."""
    reported = [graph.meta.distributed.get("host_name") for graph in graphs]
    if all(isinstance(host, str) and host not in ("", "localhost") for host in reported):
        return [str(host) for host in reported]
    result = [_WORKER.match(re.split(r"[\\/]", name)[-1]) for name in names]
    hosts = [match["host"] for match in result if match is not None]
    return hosts if len(hosts) == len(names) else [f"rank {rank}" for rank in ranks]


def _world_size(graphs: list[Graph]) -> int:
    """Ranks that there were, as the profiler says, else as the groups' members do; 0 where nothing tells."""
    reported = [graph.meta.distributed.get("world_size", 0) for graph in graphs]
    size = max((size for size in reported if isinstance(size, int)), default=0)
    return size or max((rank + 1 for graph in graphs for group in graph.meta.groups for rank in group.ranks), default=0)


def _find_misnamed_file(ranks: list[int], names: list[str]) -> str:
    """Return a message about the first file named after a rank other than the one it holds, else an empty string."""
    by_name = _ranks_by_name(names)
    if sorted(by_name) != sorted(ranks) or by_name == ranks:
        return ""
    index = next(position for position, rank in enumerate(ranks) if by_name[position] != rank)
    return f"{names[index]} holds the trace of rank {ranks[index]}"


def _require_each_once(ranks: list[int], names: list[str], world_size: int, allow_missing: bool) -> None:
    for index, rank in enumerate(ranks):
        if rank in ranks[:index]:
            raise TraceError(
                f"two traces claim to be rank {rank}",
                where=f"{names[ranks.index(rank)]} and {names[index]}",
                fix="give one trace per rank",
            )
    extra = [rank for rank in ranks if world_size and rank >= world_size]
    if extra:
        raise TraceError(
            f"rank {extra[0]} is one too many: the job has {world_size} ranks, 0 to {world_size - 1}",
            where=names[ranks.index(extra[0])],
            fix=ONE_JOB,
        )
    missing = sorted(set(range(min(world_size, 1 << 20))) - set(ranks))
    if missing and not allow_missing:
        shown = ", ".join(str(rank) for rank in missing[:10]) + (", ..." if len(missing) > 10 else "")
        raise TraceError(
            f"{len(missing)} of {world_size} ranks are missing: {shown}",
            where=", ".join(names[:8]),
            fix=f"add their traces, or join the {len(ranks)} that are here: --allow-missing, allow_missing=True",
        )


def _without_addresses(groups: tuple[ProcessGroup, ...]) -> tuple[ProcessGroup, ...]:
    """Groups that a source names by their address in memory, which differs by rank, are named by their order."""
    named, number = [], 0
    for group in groups:
        if group.name.isdecimal() and int(group.name) > 1 << 32:
            group, number = replace(group, name=f"number {number}"), number + 1
        named.append(group)
    return tuple(named)


def _assign_rank(graph: Graph, rank: int, origin_ns: int, groups: tuple[ProcessGroup, ...], has_times: bool) -> Graph:
    """The graph as that rank, with times from the common origin and groups by their common number."""
    tasks, num_tasks = graph.tasks, graph.num_tasks
    columns: dict[str, Any] = {"rank": np.full(num_tasks, rank, np.int32)}
    if "group" in tasks:
        number = {group: index for index, group in enumerate(groups)}
        columns["group"] = np.array([*(number[group] for group in graph.meta.groups), -1], np.int32)[tasks["group"]]
    if has_times:
        shift = graph.meta.origin_ns - origin_ns
        columns["start_ns"] = tasks["start_ns"] + shift
        if "earliest_ns" in tasks:
            columns["earliest_ns"] = np.where(tasks["earliest_ns"] > 0, tasks["earliest_ns"] + shift, 0)
    elif "start_ns" in tasks:
        tasks = Table({name: tasks[name] for name in tasks if name != "start_ns"})
    named = [f"rank {rank} {name}" for name in graph.resources.strings("name").to_numpy()]
    resources = graph.resources.replace(name=Strings.of(named), machine=np.zeros(graph.num_resources, np.int32))
    return replace(graph, tasks=tasks.replace(**columns), resources=resources)
