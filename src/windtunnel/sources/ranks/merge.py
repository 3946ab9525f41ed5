"""Graphs of several ranks become one.

In: one graph per rank, each on its own clock. Out: one graph on one clock, in which ranks meet in their collectives. A
collective that every rank recorded as one task becomes, per rank, an arrival and a transfer: all transfers begin when
the last rank has arrived and last as long as the shortest record, as the rank that came last did not wait. Not here:
reading (``reader``), matching (``match``), clocks (``clocks``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import GraphError, InputError, TraceError
from windtunnel.graph import EdgeKind, Graph, Kind, Table
from windtunnel.graph.ranks import join, join_routes
from windtunnel.graph.validate import find_cycle
from windtunnel.sources.ranks.clock_fit import parts
from windtunnel.sources.ranks.clocks import Clock, fit_clocks
from windtunnel.sources.ranks.common_ends import check_ends
from windtunnel.sources.ranks.job import ONE_JOB, Job, job_of
from windtunnel.sources.ranks.match import Meetings, find_meetings
from windtunnel.sources.ranks.messages import Messages, find_messages

__all__ = ["ALIGN", "COLLECTIVE_PEER", "merge"]

# R ranks, T tasks of all ranks, M members of K meetings, P messages
Int64s = NDArray[np.int64]
ALIGN = ("auto", "none")
COLLECTIVE_PEER = 3  # start_cause: it waited for a peer


def merge(
    graphs: Sequence[Graph],
    names: Sequence[str],
    *,
    align: str = "auto",
    allow_missing: bool = False,
    hosts: Sequence[str] | None = None,
    noise_ns: int = 10_000,
) -> Graph:
    """Join the graphs of several ranks.

    Parameters
    ----------
    graphs, names : sequences [R]
        A graph per rank, from any source, and what to call it in messages.
    align : {"auto", "none"}
        Whether to set the clocks by what the ranks did together; "none" takes their times as they are.
    allow_missing : bool
        Accept that fewer ranks are here than the graphs say that there were.
    hosts : sequence [R] of str, optional
        The host of each graph: ranks of one share a clock. By default by the names of files as ``torch.profiler``
        gives them, else each rank has its own.
    noise_ns : int
        A rank that waited longer for its peers was held up by them.

    Returns
    -------
    Graph
        ``meta.clocks`` says what was added to each clock, how sure that is, and what else a reader must know.

    Raises
    ------
    TraceError
        The graphs are not of one job, two claim one rank, a rank is missing, or the ranks do not agree about a
        collective or a message.
    InputError
        There is no such ``align``, or not one host per graph.
    """
    _check_options(graphs, names, align, hosts)
    job = job_of(graphs, names, hosts, allow_missing)
    recorded = join(job.graphs)[0]
    meetings, messages = find_meetings(recorded, job, allow_missing), find_messages(recorded, job)
    if len(job.graphs) > 1 and not meetings.num_meetings and not len(messages.send) and not job.says_ranks:
        raise TraceError(
            f"nothing says that these {len(job.graphs)} traces are of one job: no rank, no collective in common",
            where=", ".join(job.names[:8]),
            fix=ONE_JOB,
        )
    clocks, spread_ns = [Clock(host) for host in job.hosts], 0.0
    if align == "auto" and job.has_times:
        clocks, spread_ns = fit_clocks(recorded, meetings, messages, job)
    placed, origin_ns = _on_one_clock(job, clocks)
    tasks, edges, resources = join(_on_machines(placed, clocks))
    notes = []
    if job.has_times:
        notes = check_ends(tasks, recorded, meetings, job, spread_ns, refuse=align == "auto")
        notes += _warn_of_unsynchronized_hosts(tasks, meetings, messages, job, clocks)
    notes += _not_whole(meetings, messages, job)
    graph = _with_messages(Graph(tasks, edges, resources), messages)
    graph = _with_meetings(graph, meetings, noise_ns)
    meta = replace(_meta(job, clocks, spread_ns, notes, origin_ns), routes=join_routes(placed))
    return _without_circles(Graph(graph.tasks, graph.edges, graph.resources, meta))


def _check_options(graphs: Sequence[Graph], names: Sequence[str], align: str, hosts: Sequence[str] | None) -> None:
    if not graphs:
        raise TraceError("no traces are given", fix="give the path of a trace, or one per rank")
    if align not in ALIGN:
        raise InputError(f"there is no way {align!r} to align clocks", fix=f"use one of {', '.join(ALIGN)}")
    if hosts is not None and len(hosts) != len(names):
        raise InputError(f"{len(hosts)} hosts for {len(names)} graphs", fix="name the host of each graph")


def _without_circles(graph: Graph) -> Graph:
    """The graph, checked; ranks that wait for each other in a circle are reported as such."""
    try:
        return graph.validate()
    except GraphError as error:
        if "cycle" not in error.message:
            raise
        raise TraceError(
            "the ranks wait for each other in a circle",
            where=" -> ".join(_circle(graph)),
            fix="two ranks begin two collectives in different orders, as jobs that hang do; begin them in one order",
        ) from error


def _circle(graph: Graph) -> list[str]:
    """Who arrives where, along a circle."""
    names, group = graph.tasks.strings("name"), graph.tasks.get("group")
    reported = []
    for row in find_cycle(graph).tolist():
        if graph.tasks["kind"][row] == Kind.SYNC:
            number = -1 if group is None else int(group[row])
            of_group = f" of {graph.meta.groups[number]}" if number >= 0 else ""
            reported.append(f"rank {int(graph.tasks['rank'][row])}: {names.decode(row)}{of_group}")
    return reported[:8]


# --- one clock ----------------------------------------------------------------------------------------


def _on_one_clock(job: Job, clocks: list[Clock]) -> tuple[list[Graph], int]:
    """The graphs with times on the common clock, from the first task on, and the time of that."""
    if not job.has_times:
        return job.graphs, job.origin_ns
    graphs = [
        _correct_times(graph, clock) if clock.is_set else graph for graph, clock in zip(job.graphs, clocks, strict=True)
    ]
    first = min((int(graph.tasks["start_ns"].min()) for graph in graphs if graph.num_tasks), default=0)
    begin = first if any(clock.is_set for clock in clocks) else min(first, 0)
    return [_from(graph, begin) for graph in graphs], job.origin_ns + begin


def _on_machines(graphs: list[Graph], clocks: list[Clock]) -> list[Graph]:
    """Resources of ranks whose host is known lie on its machine."""
    hosts = list(dict.fromkeys(clock.host for clock in clocks))
    if len(hosts) == len(graphs):
        return graphs
    return [
        replace(graph, resources=graph.resources.replace(machine=np.full(graph.num_resources, number, np.int32)))
        for graph, number in zip(graphs, (hosts.index(clock.host) for clock in clocks), strict=True)
    ]


def _correct_times(graph: Graph, clock: Clock) -> Graph:
    """Convert every time of a graph to the common clock; durations and lags stretch with the drift."""
    start, duration = graph.tasks["start_ns"], graph.duration_ns
    columns: dict[str, Any] = {"start_ns": clock.to_common_ns(start)}
    edges = graph.edges
    if "earliest_ns" in graph.tasks:
        earliest = graph.tasks["earliest_ns"]
        columns["earliest_ns"] = np.where(earliest > 0, clock.to_common_ns(earliest), 0)
    if clock.drift_ppm:
        # as differences of times, so that the end of a task stays where the next begins
        columns["duration_ns"] = clock.to_common_ns(start + duration) - columns["start_ns"]
        started = edges["from_start"] if "from_start" in edges else np.zeros(graph.num_edges, bool)
        since = start[edges["src"]] + np.where(started, 0, duration[edges["src"]])
        if "lag_ns" in edges:
            lag = clock.to_common_ns(since + edges["lag_ns"]) - clock.to_common_ns(since)
            edges = edges.replace(lag_ns=np.maximum(lag, 0))
    return replace(graph, tasks=graph.tasks.replace(**columns), edges=edges)


def _from(graph: Graph, begin: int) -> Graph:
    """Times from ``begin`` on; what waits for nothing begins when it was measured to."""
    start = graph.tasks["start_ns"] - begin
    own = graph.tasks.get("earliest_ns", np.zeros(graph.num_tasks, np.int64))
    earliest = np.where(own > 0, own - begin, 0)
    has_cause = np.zeros(graph.num_tasks, bool)
    has_cause[graph.edges["dst"]] = True
    earliest[~has_cause] = start[~has_cause]
    return replace(graph, tasks=graph.tasks.replace(start_ns=start, earliest_ns=np.maximum(earliest, 0)))


# --- meetings and messages ----------------------------------------------------------------------------


def _with_meetings(graph: Graph, meetings: Meetings, noise_ns: int) -> Graph:
    """Let the members of each collective meet: what is longer than the collective's own time was waiting."""
    if not meetings.num_meetings:
        return graph
    row, meeting, num_tasks = meetings.row, meetings.meeting, graph.num_tasks
    own = _own_durations(graph.tasks, meetings)
    met = graph.meet(row, meeting, own)
    if "start_ns" not in graph.tasks:
        return met
    wait = np.maximum(graph.duration_ns[row] - own[meeting], 0)
    start = met.tasks["start_ns"].copy()
    start[row] += wait
    latest = np.full(meetings.num_meetings, np.iinfo(np.int64).min)
    np.maximum.at(latest, meeting, start[row])
    start[num_tasks + len(row) :] = latest
    columns = {"start_ns": start}
    if "start_cause" in met.tasks:
        cause = met.tasks["start_cause"].copy()
        cause[row] = np.where(wait > noise_ns, COLLECTIVE_PEER, -1)
        cause[num_tasks + len(row) :] = -1
        columns["start_cause"] = cause
    return replace(met, tasks=met.tasks.replace(**columns))


def _own_durations(tasks: Table, meetings: Meetings) -> Int64s:
    """How long each collective [K] takes once all are there: the shortest record.

    One record of several may be cut. Where all others were at it together for longer, the second shortest is right at
    most.
    """
    row, meeting = meetings.row, meetings.meeting
    order = np.lexsort((tasks["duration_ns"][row], meeting))
    first = np.searchsorted(meeting[order], np.arange(meetings.num_meetings))
    duration = tasks["duration_ns"][row][order]
    shortest, count = duration[first], np.bincount(meeting)
    if "start_ns" not in tasks:
        result: Int64s = shortest
        return result
    second = duration[np.minimum(first + 1, len(duration) - 1)]
    start, end = tasks["start_ns"][row], tasks["start_ns"][row] + tasks["duration_ns"][row]
    latest = np.full(meetings.num_meetings, np.iinfo(np.int64).min)
    np.maximum.at(latest, meeting, start)
    ends = end[np.lexsort((end, meeting))]
    together = ends[first + count // 2] - latest  # until most had ended
    own: Int64s = np.where(count > 2, np.clip(together, shortest, second), shortest)
    return own


def _with_messages(graph: Graph, messages: Messages) -> Graph:
    """A receive begins with its send at the earliest; what it took beyond that was waiting for the sender."""
    if not len(messages.send):
        return graph
    send, receive = messages.send, messages.receive
    tasks = graph.tasks
    if "start_ns" in tasks:
        start, duration = tasks["start_ns"].copy(), graph.duration_ns.copy()
        wait = np.clip(start[send] - start[receive], 0, duration[receive])
        start[receive] += wait
        duration[receive] -= wait
        tasks = tasks.replace(start_ns=start, duration_ns=duration)
    linked = replace(graph, tasks=tasks)
    return linked.connect(send, receive, kind=EdgeKind.MESSAGE, from_start=True)


# --- warnings ----------------------------------------------------------------------------------------


def _warn_of_unsynchronized_hosts(
    tasks: Table, meetings: Meetings, messages: Messages, job: Job, clocks: list[Clock]
) -> list[str]:
    """Warn about hosts whose clocks no message or collective compares to that of the first host."""
    hosts = list(dict.fromkeys(clock.host for clock in clocks))
    number = np.array([hosts.index(clock.host) for clock in clocks])
    index = np.searchsorted(job.ranks, tasks["rank"])
    meets = np.zeros((meetings.num_meetings + len(messages.send), len(hosts)), bool)
    meets[meetings.meeting, number[index[meetings.row]]] = True
    for rows in (messages.send, messages.receive):
        meets[meetings.num_meetings + np.arange(len(rows)), number[index[rows]]] = True
    apart = [host for host, part in zip(hosts, parts(meets), strict=True) if part]
    if not apart:
        return []
    named = ", ".join(apart[:4]) + (", ..." if len(apart) > 4 else "")
    return [f"nothing ties the clock of {named} to that of {hosts[0]}: times between them may mean nothing"]


def _not_whole(meetings: Meetings, messages: Messages, job: Job) -> list[str]:
    """What waits for ranks that are not here."""
    notes = []
    cut = int((~meetings.is_whole).sum())
    if cut:
        notes.append(
            f"{cut:,} of {meetings.num_meetings:,} collectives have members that are not here: "
            "what was waiting for those counts as the collectives' own time"
        )
    if meetings.num_alone:
        notes.append(f"{meetings.num_alone:,} collectives have one member here alone: they keep their times")
    if messages.num_open:
        notes.append(f"{messages.num_open:,} messages lead to ranks that are not here: they keep their times")
    if job.misnamed:
        notes.append(job.misnamed)
    if job.missing:
        notes.append(f"{len(job.ranks)} of {job.world_size} ranks are here")
    return notes


def _meta(job: Job, clocks: list[Clock], spread_ns: float, notes: list[str], origin_ns: int) -> Any:
    hosts = {clock.host: clock.to_dict() for clock in clocks if job.has_times}
    reported = {"hosts": list(hosts.values()), "spread_ns": round(spread_ns), "notes": notes}
    reported["ranks"] = {str(rank): clock.host for rank, clock in zip(job.ranks, clocks, strict=True)}
    return replace(
        job.graphs[0].meta,
        origin_ns=origin_ns,
        groups=job.groups,
        trace={f"rank {rank}": graph.meta.trace for rank, graph in zip(job.ranks, job.graphs, strict=True)},
        ranks=dict(zip([str(rank) for rank in job.ranks], job.names, strict=True)),
        clocks=reported,
    )
