"""Which sends and receives of several ranks are one message.

In: the tasks of all ranks of a job. Out: pairs of rows, sender and receiver. The n-th send of a rank to another with a
tag is what that one receives n-th. Not here: collectives (``match``), when they were (``clocks``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import TraceError
from windtunnel.graph import Kind, Table
from windtunnel.sources.ranks.job import Job

__all__ = ["Messages", "find_messages"]

# P messages
Rows = NDArray[np.int64]
Way = tuple[int, int, int]  # sender, receiver, tag


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Rows [P] of the sends and of the receives, and how many had their other end in a rank that is not here."""

    send: Rows
    receive: Rows
    num_open: int = 0


def find_messages(tasks: Table, job: Job) -> Messages:
    """Pair the messages of all ranks.

    Raises
    ------
    TraceError
        A rank sends to itself or to no rank, or one sends what the other does not receive; names both and the message.
    """
    if "peer" not in tasks or "op" not in tasks:
        return Messages(np.empty(0, np.int64), np.empty(0, np.int64))
    sends, receives = (_ways(tasks, name) for name in ("send", "recv"))
    present = set(job.ranks)
    pairs: list[tuple[int, int]] = []
    num_open = 0
    for way in sorted(sends.keys() | receives.keys()):
        out, into = sends.get(way, []), receives.get(way, [])
        if not set(way[:2]) <= present:
            # the other end was not recorded
            num_open += len(out) + len(into)
            continue
        if len(out) != len(into) or way[0] == way[1]:
            raise _mismatch_error(way, len(out), len(into), sends, receives, job)
        pairs += zip(out, into, strict=True)
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return Messages(table[:, 0], table[:, 1], num_open)


def _ways(tasks: Table, name: str) -> dict[Way, list[int]]:
    """Rows of the sends (or receives) of each way, in their order."""
    operators = tasks.strings("op")
    is_it = operators.where({value: value == name for value in operators.values})
    rows = np.flatnonzero((tasks["kind"] == Kind.COMM) & is_it & (tasks["peer"] >= 0))
    when = tasks.get("start_ns", tasks.get("order", np.arange(tasks.num_rows)))
    sequence, tag = (tasks.get(column, np.full(tasks.num_rows, -1)) for column in ("sequence", "tag"))
    result: dict[Way, list[int]] = {}
    for row in rows[np.lexsort((rows, when[rows], sequence[rows]))].tolist():
        own, other = int(tasks["rank"][row]), int(tasks["peer"][row])
        way = (own, other, int(tag[row])) if name == "send" else (other, own, int(tag[row]))
        result.setdefault(way, []).append(row)
    return result


def _mismatch_error(
    way: Way, out: int, into: int, sends: dict[Way, list[int]], receives: dict[Way, list[int]], job: Job
) -> TraceError:
    sender, receiver, tag = way
    counts = [Counter({key: len(rows) for key, rows in some.items()}) for some in (sends, receives)]
    swapped = _find_swapped_ranks(counts[0], counts[1], job.ranks)
    about = f" with tag {tag}" if tag >= 0 else ""
    reported = f"rank {sender} sends {out:,} messages to rank {receiver}{about}, which receives {into:,}"
    return TraceError(
        f"rank {sender} talks to itself" if sender == receiver else f"{reported}: message {min(out, into)} has one end",
        where=f"{job.trace_name(sender)}, {job.trace_name(receiver)}",
        fix=f"the traces of ranks {swapped[0]} and {swapped[1]} look swapped: exchange them"
        if swapped
        else "cut the traces to the same training steps; one may be cut short, or of another run",
    )


def _find_swapped_ranks(sends: Counter[Way], receives: Counter[Way], ranks: list[int]) -> tuple[int, int] | None:
    """The only two ranks whose exchange makes every message whole; None if there are none, or several such pairs."""

    def exchange(way: Way, own: int, pair: tuple[int, int]) -> Way:
        # the recording rank is exchanged; the peer that it named stays
        true = {pair[0]: pair[1], pair[1]: pair[0]}
        return tuple(true.get(item, item) if index == own else item for index, item in enumerate(way))  # type: ignore[return-value]

    result = []
    for first, rank in enumerate(ranks):
        for other in ranks[first + 1 :]:
            out: Counter[Way] = Counter()
            into: Counter[Way] = Counter()
            for way, count in sends.items():
                out[exchange(way, 0, (rank, other))] += count
            for way, count in receives.items():
                into[exchange(way, 1, (rank, other))] += count
            if out == into:
                result.append((rank, other))
    return result[0] if len(result) == 1 else None
