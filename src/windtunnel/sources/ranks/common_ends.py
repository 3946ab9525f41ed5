"""Whether what was matched was one collective: its ends have to lie together.

In: the tasks of all ranks on one clock, their meetings. Out: what to tell, or a refusal. Ranks begin a collective when
they are ready and end it at about the same time; tasks that end as far apart as they begin are not one collective. Not
here: matching (``match``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import TraceError
from windtunnel.graph import Table
from windtunnel.sources.ranks.clock_evidence import FEW
from windtunnel.sources.ranks.job import ONE_JOB, Job
from windtunnel.sources.ranks.match import Meetings
from windtunnel.units import format_duration

__all__ = ["check_ends"]

# K meetings
Int64s = NDArray[np.int64]
_FAR_NS, _FAR_ON_DEVICE_NS = 1_000_000, 100_000
_ALIKE = 0.25  # of the spread of the begins: ends of collectives lie far closer
_APART_NS = 100_000  # ends of one collective after clocks that were far off were set
_NEAR_NS, _MANY_SPREADS = 20_000, 8


def check_ends(
    tasks: Table, recorded: Table, meetings: Meetings, job: Job, spread_ns: float, *, refuse: bool
) -> list[str]:
    """Tell which collectives end further apart than the others of their job let expect.

    Parameters
    ----------
    tasks, recorded : Table
        The same tasks on one clock, and as they were recorded.

    Raises
    ------
    TraceError
        Most ends of a group lie as far apart as their begins do, or the traces do not overlap and too little says how
        their clocks differ.
    """
    if not meetings.num_meetings:
        if refuse:
            _require_overlap(recorded, job)
        return []
    begin, end = tasks["start_ns"], tasks["start_ns"] + tasks["duration_ns"]
    shortest = np.full(meetings.num_meetings, np.iinfo(np.int64).max)
    np.minimum.at(shortest, meetings.meeting, tasks["duration_ns"][meetings.row])
    # All ranks leave a collective once the last one has come: on one clock its ends lie close together, while its
    # begins may lie anywhere apart. Ends as far apart as begins belong to different runs, or to different clocks.
    apart, started, own = _range(end, meetings), _range(begin, meetings), shortest
    if refuse and (meetings.num_meetings < FEW or np.median(apart) > _APART_NS):
        _require_overlap(recorded, job)
    far_ns = _FAR_ON_DEVICE_NS if "start_cause" in tasks else _FAR_NS
    for group in np.unique(meetings.group).tolist():
        local = meetings.group == group
        half_ns, started_ns = float(np.median(apart[local])), float(np.median(started[local]))
        if half_ns > max(far_ns, _ALIKE * started_ns) and refuse:
            raise _strangers(meetings, job, group, apart, started)
        if half_ns > max(_NEAR_NS, 2 * np.median(own[local]), _ALIKE * started_ns):
            return [
                f"half of the collectives of {_group_name(job, group)} end more than {format_duration(half_ns)} apart: "
                "clocks may differ, or these are not the same"
            ]
    usual_ns = max(_NEAR_NS, _MANY_SPREADS * spread_ns, _MANY_SPREADS * float(np.median(apart)))
    far = apart > np.maximum(own, usual_ns)
    if not far.any():
        return []
    worst = int(np.argmax(np.where(far, apart, -1)))
    return [
        f"{int(far.sum()):,} of {len(far):,} collectives end much further apart than is usual here, up to "
        f"{format_duration(int(apart[worst]))} (collective {int(meetings.place[worst])} of "
        f"{_group_name(job, int(meetings.group[worst]))}): a rank was busy, or these are not the same"
    ]


def _group_name(job: Job, group: int) -> str:
    return str(job.groups[group]) if group >= 0 else "all ranks"


def _range(times: Int64s, meetings: Meetings) -> Int64s:
    """Latest minus earliest time among the members of each meeting [K]."""
    least = np.full(meetings.num_meetings, np.iinfo(np.int64).max)
    most = np.full(meetings.num_meetings, np.iinfo(np.int64).min)
    np.minimum.at(least, meetings.meeting, times[meetings.row])
    np.maximum.at(most, meetings.meeting, times[meetings.row])
    result: Int64s = most - least
    return result


def _strangers(meetings: Meetings, job: Job, group: int, apart: Int64s, started: Int64s) -> TraceError:
    """What was paired by order alone was of other groups, or of another run."""
    local = np.flatnonzero(meetings.group == group)
    worst = int(local[np.argmax(apart[local])])
    untold = "" if group >= 0 else ", and the traces do not say of which group each is"
    return TraceError(
        f"the {len(local):,} collectives that these ranks seem to share end up to "
        f"{format_duration(int(apart[worst]))} apart{untold}: they are not the same ones",
        where=f"{', '.join(job.names[:4])}: collective {int(meetings.place[worst])} of {_group_name(job, group)}; half "
        f"of them end more than {format_duration(int(np.median(apart[local])))} apart, and begin "
        f"{format_duration(int(np.median(started[local])))}",
        fix="load each trace by itself: ranks of other groups, sampled traces or traces of other runs have no "
        "collectives in common",
    )


def _require_overlap(tasks: Table, job: Job) -> None:
    """Refuse ranks that were recorded one after the other."""
    rank, start = tasks["rank"], tasks["start_ns"]
    end = start + tasks["duration_ns"]
    spans = [
        (int(start[rows].min()), int(end[rows].max()), job.trace_name(item))
        for item in job.ranks
        if (rows := rank == item).any()
    ]
    spans.sort()
    latest_ns, before = spans[0][1:]
    for begin_ns, end_ns, name in spans[1:]:
        if begin_ns > latest_ns:
            raise TraceError(
                f"the traces were not recorded at one time: {format_duration(begin_ns - latest_ns)} lie between them",
                where=f"{before}, {name}",
                fix=ONE_JOB,
            )
        latest_ns, before = max((latest_ns, before), (end_ns, name))
