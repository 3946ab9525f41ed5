"""Who waited for whom in the collectives of a graph of many ranks.

In: a timeline. Out: per rank how long it waited for its peers, and for which. In each meeting all wait for the one that
comes last; that one is to blame for all of it. Not here: how ranks meet (``graph.ranks``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windtunnel.graph.ranks import meetings
from windtunnel.simulate import Timeline
from windtunnel.units import format_duration, format_ratio

__all__ = ["RankWait", "rank_waits", "wait_lines"]

# M members of all meetings
_MOST = 4
_WORTH_SAYING = 0.01


@dataclass(frozen=True, slots=True)
class RankWait:
    """What a rank waited for its peers, and they for it.

    Attributes
    ----------
    rank : int
    waited_ns : int
        In all its collectives, until the last of their members had come.
    for_rank : int
        Rank that caused the longest part of the wait; -1 if none did.
    for_rank_ns : int
    held_up_ns : int
        What all its peers together waited for this rank.
    """

    rank: int
    waited_ns: int
    for_rank: int
    for_rank_ns: int
    held_up_ns: int


def rank_waits(timeline: Timeline) -> tuple[RankWait, ...]:
    """Waits of each rank that meets others, the one that holds up the others most first.

    Parameters
    ----------
    timeline : Timeline
        Of a graph whose ranks meet (`windtunnel.graph.ranks.meet`); measured or changed by a what-if.
    """
    graph = timeline.graph
    arrival, meeting, _ = meetings(graph)
    if "rank" not in graph.tasks or not len(arrival):
        return ()
    came_ns, rank = timeline.finish_ns[arrival], graph.tasks["rank"][arrival]
    order = np.lexsort((came_ns, meeting))  # the last of each meeting stands last
    is_last = np.append(meeting[order][1:] != meeting[order][:-1], True)
    index = np.cumsum(is_last) - is_last
    last = order[is_last][index]
    ranks, code = np.unique(rank, return_inverse=True)
    waited = np.zeros((len(ranks), len(ranks)), np.int64)
    np.add.at(waited, (code[order], code[last]), came_ns[last] - came_ns[order])
    np.fill_diagonal(waited, 0)
    blamed, totals, held_up = waited.argmax(axis=1), waited.sum(axis=1), waited.sum(axis=0)
    result = [
        RankWait(
            rank=int(item),
            waited_ns=int(totals[row]),
            for_rank=int(ranks[blamed[row]]) if totals[row] else -1,
            for_rank_ns=int(waited[row, blamed[row]]),
            held_up_ns=int(held_up[row]),
        )
        for row, item in enumerate(ranks.tolist())
    ]
    return tuple(sorted(result, key=lambda wait: (-wait.held_up_ns, wait.rank)))


def wait_lines(timeline: Timeline) -> list[str]:
    """In words, where waiting for peers is worth a word."""
    waits = rank_waits(timeline)
    total_ns = sum(wait.waited_ns for wait in waits)
    if total_ns <= _WORTH_SAYING * timeline.makespan_ns * len(waits):
        return []
    ratio = format_ratio(total_ns / (timeline.makespan_ns * len(waits)))
    lines = [f"ranks wait for their peers {ratio} of the time, {format_duration(total_ns)} in all"]
    blamed = [f"rank {wait.rank} {format_duration(wait.held_up_ns)}" for wait in waits if wait.held_up_ns]
    lines.append(f"held up by {', '.join(blamed[:_MOST])}{', ...' if len(blamed) > _MOST else ''}")
    most = max(waits, key=lambda entry: entry.waited_ns)
    lines.append(
        f"rank {most.rank} waits longest, {format_duration(most.waited_ns)}: "
        f"{format_duration(most.for_rank_ns)} for rank {most.for_rank}"
    )
    return lines
