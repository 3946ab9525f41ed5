"""Which tasks of several ranks are one collective, or the two ends of one message.

In: the tasks of all ranks of a job. Out: meetings and messages, as rows. Collectives are matched by group and sequence
number where all have one, else by group and order; messages by sender, receiver, tag and order. Not here: when they
were (``clocks``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import TraceError
from windtunnel.graph import Kind, Table
from windtunnel.sources.ranks.job import Job

__all__ = ["Meetings", "find_meetings"]

# M members of K meetings
Rows = NDArray[np.int64]
MESSAGES = ("send", "recv")
# what is sent to each rank may differ
_UNEVEN = ("all_to_all", "gather", "scatter", "all_gather", "reduce_scatter", "collective")


@dataclass(frozen=True, slots=True, eq=False)
class Meetings:
    """Collectives over their members.

    Attributes
    ----------
    row, meeting : int64 [M]
        Rows of the tasks, and the number of the collective of each.
    group, place : int64 [K]
        Process group (-1: not told) and which of its collectives each is, from 0.
    is_whole : bool [K]
        Whether all members are here, as far as the graphs tell.
    num_alone : int
        Further collectives, of which only one member is here.
    """

    row: Rows
    meeting: Rows
    group: Rows
    place: Rows
    is_whole: NDArray[np.bool_]
    num_alone: int = 0

    @property
    def num_meetings(self) -> int:
        """Number of collectives."""
        return len(self.group)


@dataclass(frozen=True, slots=True, eq=False)
class _Comm:
    """What identifies the communication tasks [T]."""

    tasks: Table
    operator: NDArray[np.object_]
    sequence: Rows
    size_bytes: Rows
    when: Rows

    def describe(self, row: int) -> str:
        """Name a task for error messages."""
        size = int(self.size_bytes[row])
        return f"{self.operator[row]} of {size:,} bytes" if size else str(self.operator[row])


def find_meetings(tasks: Table, job: Job, allow_missing: bool) -> Meetings:
    """Match the collectives of all ranks.

    Raises
    ------
    TraceError
        The ranks do not agree about a collective; names rank, collective and sequence number.
    """
    comm, rows = _comm(tasks)
    # Messages between two ranks are matched otherwise (``find_messages``).
    rows = rows[~np.isin(comm.operator[rows], MESSAGES)]
    group = tasks["group"][rows] if "group" in tasks else np.full(len(rows), -1, np.int32)
    result: list[tuple[Rows, int, int, bool]] = []
    num_alone = 0
    for item in np.unique(group).tolist():
        lists = _by_rank(comm, rows[group == item])
        whole = _check_members(lists, job, item, allow_missing)
        num_alone += 0 if whole or len(lists) > 1 else sum(map(len, lists.values()))
        if len(lists) > 1:
            result += [
                (members, item, index, whole)
                for index, members in enumerate(_match_collectives(comm, lists, job, item, allow_missing))
            ]
    counts = [len(members) for members, *_ in result]
    return Meetings(
        row=np.concatenate([members for members, *_ in result]) if result else np.empty(0, np.int64),
        meeting=np.repeat(np.arange(len(result)), counts),
        group=np.array([entry for _, entry, _, _ in result], np.int64),
        place=np.array([index for _, _, index, _ in result], np.int64),
        is_whole=np.array([whole for *_, whole in result], bool),
        num_alone=num_alone,
    )


def _comm(tasks: Table) -> tuple[_Comm, Rows]:
    """The communication tasks: those of the device where a trace has one."""
    num_tasks, absent = tasks.num_rows, np.full(tasks.num_rows, -1, np.int64)
    when = tasks.get("start_ns", tasks.get("order", np.arange(num_tasks)))
    size = tasks.get("message_bytes", np.zeros(num_tasks, np.int64))
    operator = tasks.strings("op" if "op" in tasks else "name").to_numpy()
    is_comm = tasks["kind"] == Kind.COMM
    if "start_cause" in tasks:
        is_comm &= tasks["start_cause"] >= 0
    return _Comm(tasks, operator, tasks.get("sequence", absent), size, when), np.flatnonzero(is_comm)


def _by_rank(comm: _Comm, rows: Rows) -> dict[int, Rows]:
    """Rows of each rank that has some, by sequence number and time."""
    rank = comm.tasks["rank"][rows]
    ordered = rows[np.lexsort((rows, comm.when[rows], comm.sequence[rows], rank))]
    present, first = np.unique(comm.tasks["rank"][ordered], return_index=True)
    return dict(zip(present.tolist(), np.split(ordered, first[1:]), strict=True)) if len(rows) else {}


def _group_name(job: Job, number: int) -> str:
    return str(job.groups[number]) if number >= 0 else "all ranks"


def _check_members(lists: dict[int, Rows], job: Job, group: int, allow_missing: bool) -> bool:
    """Whether all members of the group are here; refuses strangers, and members that take no part."""
    members = job.groups[group].ranks if group >= 0 else ()
    if not members:
        return not job.missing
    strangers = [rank for rank in lists if rank not in members]
    if strangers:
        raise TraceError(
            f"rank {strangers[0]} takes part in {_group_name(job, group)}, of which it is no member",
            where=job.trace_name(strangers[0]),
            fix="the traces of two ranks may be swapped; give each its own",
        )
    # A member without any collective: its trace is of another run, or the recording began too late.
    silent = [rank for rank in members if rank in job.ranks and rank not in lists]
    if silent and not allow_missing:
        some, rows = next(iter(lists.items()))
        raise TraceError(
            f"rank {silent[0]} has none of the {len(rows):,} collectives of {_group_name(job, group)}",
            where=f"{job.trace_name(some)}, {job.trace_name(silent[0])}",
            fix="record all ranks over the same steps, or join what is here with --allow-missing",
        )
    return not silent and set(members) <= set(job.ranks)


def _match_collectives(comm: _Comm, lists: dict[int, Rows], job: Job, group: int, allow_missing: bool) -> list[Rows]:
    """Members of each collective of a group."""
    # Numbers that rise on all ranks identify collectives even where some traces begin later or end sooner;
    # without numbers the order is all there is, and lists have to be equally long.
    sequences = [comm.sequence[rows] for rows in lists.values()]
    is_numbered = all((own >= 0).all() and (np.diff(own) > 0).all() for own in sequences)
    if is_numbered and allow_missing:
        common = sequences[0]
        for own in sequences[1:]:
            common = np.intersect1d(common, own)
        lists = {rank: rows[np.isin(comm.sequence[rows], common)] for rank, rows in lists.items()}
    _check_agreement(comm, lists, job, group, is_numbered)
    return [np.array(members, np.int64) for members in zip(*lists.values(), strict=True)]


def _check_agreement(comm: _Comm, lists: dict[int, Rows], job: Job, group: int, is_numbered: bool) -> None:
    """Refuse ranks whose lists of collectives differ, with the first difference."""
    first_rank, first = next(iter(lists.items()))
    for rank, rows in lists.items():
        common = min(len(first), len(rows))
        one, other = first[:common], rows[:common]
        differs = comm.operator[one] != comm.operator[other]
        sizes = comm.size_bytes[one], comm.size_bytes[other]
        differs |= (sizes[0] != sizes[1]) & (sizes[0] > 0) & (sizes[1] > 0) & ~np.isin(comm.operator[one], _UNEVEN)
        if is_numbered:
            differs |= comm.sequence[one] != comm.sequence[other]
        if differs.any() or len(first) != len(rows):
            index = int(np.argmax(differs)) if differs.any() else common
            raise _disagreement(comm, {first_rank: first, rank: rows}, index, job, _group_name(job, group))


def _disagreement(comm: _Comm, lists: dict[int, Rows], index: int, job: Job, group: str) -> TraceError:
    reported = [
        f"rank {rank} has {comm.describe(int(rows[index]))}{_format_number(comm, rows, index)}"
        if index < len(rows)
        else f"rank {rank} has no more"
        for rank, rows in lists.items()
    ]
    names, counts = [job.trace_name(rank) for rank in lists], [f"{len(rows):,}" for rows in lists.values()]
    return TraceError(
        f"the ranks disagree about collective {index} of {group}: {' and '.join(reported)}",
        where=f"{', '.join(names)}: {' and '.join(counts)} collectives{_steps(job, list(lists))}",
        fix=_reason(comm, list(lists.values())),
    )


def _format_number(comm: _Comm, rows: Rows, index: int) -> str:
    number = int(comm.sequence[rows[index]])
    return f" (number {number})" if number >= 0 else ""


def _steps(job: Job, ranks: list[int]) -> str:
    """How many steps each trace holds, where that differs."""
    graphs = [job.graphs[job.ranks.index(rank)] for rank in ranks]
    counts = [len(graph.meta.iterations) or graph.num_iterations for graph in graphs]
    return f", {' and '.join(map(str, counts))} steps" if len(set(counts)) > 1 else ""


def _reason(comm: _Comm, lists: list[Rows]) -> str:
    """What to do about lists that differ."""
    one, other = (Counter(zip(comm.operator[rows], comm.size_bytes[rows].tolist(), strict=True)) for rows in lists)
    if one == other:
        return "the ranks issue them in different orders, as jobs that hang do; issue them in one order"
    return "cut the traces to the same training steps (window=...); one may be cut short, or of another run"
