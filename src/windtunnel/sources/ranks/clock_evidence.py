"""What ranks saw of each other's clocks.

In: tasks that were matched, on each host's own clock. Out: an ``Evidence``: when each host saw each collective begin
and end, when messages left and came, and what follows for pairs of hosts. Not here: which clocks fit (``clocks``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import Table
from windtunnel.sources.ranks.job import Job
from windtunnel.sources.ranks.match import Meetings
from windtunnel.sources.ranks.messages import Messages

__all__ = ["FEW", "Evidence", "gather"]

# K collectives, H hosts, P messages, B blocks of time
Floats = NDArray[np.float64]
FEW = 3  # collectives that fit any offset
_GRAIN_NS = 2_000.0  # times of traces are whole microseconds
_ALL_WAIT = ("all_reduce", "all_gather", "reduce_scatter", "barrier")  # none ends before all have begun
_ONE_SIDED = ("broadcast", "reduce", "gather", "scatter")
_BLOCKS = 16
_MAX_HOSTS = 16  # of more, not every pair is looked at


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Times on the hosts' own clocks, from ``base_ns`` [H] on: ends of collectives, and what cannot come before what.

    ``number`` is that of the meeting; ``begin_KH`` and ``end_KH`` are NaN for hosts that take no part. Messages lead
    from host ``source`` to ``target``, a receive ``took`` so long, and messages of a ``family`` are alike.
    """

    base_ns: NDArray[np.int64]
    number: NDArray[np.int64]
    begin_KH: Floats
    end_KH: Floats
    waits_for_all: NDArray[np.bool_]
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    sent: Floats
    received: Floats
    took: Floats
    family: NDArray[np.int64]
    send_row: NDArray[np.int64]

    @property
    def num_hosts(self) -> int:
        """Number of clocks."""
        return len(self.base_ns)

    @property
    def told_ns(self) -> Floats:
        """The offsets [H] that leave the clocks as they are."""
        reported: Floats = (self.base_ns - self.base_ns[0]).astype(np.float64)
        return reported

    def limits(self, drift: Floats, *, by_collectives: bool) -> tuple[Floats, NDArray[np.int64]]:
        """How far each clock may be set after each other [H, H], and what says so: a collective, or K + a message."""
        shape, num_collectives = (self.num_hosts, self.num_hosts), len(self.end_KH)
        limit, cause = np.full(shape, np.inf), np.full(shape, -1)
        delay = self.received * (1 + drift[self.target]) - self.sent * (1 + drift[self.source])
        order = np.argsort(-delay, kind="stable")  # the last that is written is the least
        ways = self.source[order], self.target[order]
        limit[ways], cause[ways] = delay[order], num_collectives + order
        rows = np.flatnonzero(self.waits_for_all) if by_collectives else np.empty(0, np.int64)
        nearest, number = _quickest(self.begin_KH[rows] * (1 + drift), self.end_KH[rows] * (1 + drift))
        closer = nearest < limit
        limit[closer], cause[closer] = nearest[closer], rows[number[closer]]
        return limit + _GRAIN_NS, cause

    def midpoints(self, drift: Floats) -> Floats:
        """Moments [., H] that are one if, per two hosts and block of time, the quickest of both ways took equally long.

        As NTP does: what is late for a while, on either side, does not count.
        """
        rows = np.flatnonzero(self.waits_for_all)
        blocks = [
            (_quickest(self.begin_KH[block] * (1 + drift), self.end_KH[block] * (1 + drift))[0], self.begin_KH[block])
            for block in np.array_split(rows, min(_BLOCKS, len(rows) // FEW) or 1)
            if len(block)
        ]
        result = [
            self._moment(item, other, float(np.nanmean(begin[:, item])), delay[item, other], delay[other, item], drift)
            for delay, begin in blocks
            for item, other in self._pairs()
            if np.isfinite(delay[item, other] + delay[other, item])
        ]
        return np.array(result + self._message_midpoints(drift)).reshape(-1, self.num_hosts)

    def _moment(self, one: int, other: int, when: float, there: float, back: float, drift: Floats) -> Floats:
        """What both hosts show at one moment, from the least delays there and back on clocks without drift."""
        moment = np.full(self.num_hosts, np.nan)
        moment[one] = when
        moment[other] = (when * (1 + drift[one]) + (there - back) / 2) / (1 + drift[other])
        return moment

    def _pairs(self) -> list[tuple[int, int]]:
        hosts = range(self.num_hosts)
        few = self.num_hosts <= _MAX_HOSTS
        return [(s, d) for s in hosts for d in hosts[s + 1 :] if few or s == 0 or d == s + 1]

    def _message_midpoints(self, drift: Floats) -> list[Floats]:
        result = []
        delay = self.received * (1 + drift[self.target]) - self.sent * (1 + drift[self.source])
        for item, other in sorted(set(zip(self.source.tolist(), self.target.tolist(), strict=True))):
            ways = [np.flatnonzero((self.source == s) & (self.target == d)) for s, d in ((item, other), (other, item))]
            count = min(_BLOCKS, *map(len, ways))
            if item >= other or not count:
                continue
            for there, back in zip(*(np.array_split(way, count) for way in ways), strict=True):
                when = float(self.sent[there].mean())
                result.append(self._moment(item, other, when, delay[there].min(), delay[back].min(), drift))
        return result


def _quickest(begin_KH: Floats, end_KH: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """Least time from a begin on one host to the end on another [H, H], and in which collective; infinite for none."""
    num_hosts = begin_KH.shape[1]
    least, number = np.full((num_hosts, num_hosts), np.inf), np.zeros((num_hosts, num_hosts), np.int64)
    elsewhere = ~np.eye(num_hosts, dtype=bool)
    for index in range(len(begin_KH)):
        delay = end_KH[index][None, :] - begin_KH[index][:, None]
        closer = (delay < least) & elsewhere
        least[closer], number[closer] = delay[closer], index
    return least, number


def gather(tasks: Table, meetings: Meetings, messages: Messages, job: Job, clocks: Sequence[int]) -> Evidence:
    """What was seen by whom; ``clocks`` [R] numbers the clock that each rank reads."""
    numbers = np.unique(clocks, return_inverse=True)[1]
    num_clocks = int(numbers.max()) + 1
    host_of = np.zeros(max(job.ranks) + 1, np.int64)
    host_of[job.ranks] = numbers
    begin, end = tasks["start_ns"], tasks["start_ns"] + tasks["duration_ns"]
    row, host = meetings.row, host_of[tasks["rank"][meetings.row]]
    source, target = (host_of[tasks["rank"][rows]] for rows in (messages.send, messages.receive))
    base = np.full(num_clocks, np.iinfo(np.int64).max)
    for rows, owner in ((row, host), (messages.send, source), (messages.receive, target)):
        np.minimum.at(base, owner, end[rows])
    base = np.where(base == np.iinfo(np.int64).max, 0, base)
    shape = (meetings.num_meetings, num_clocks)
    begin_KH, end_KH = np.full(shape, -np.inf), np.full(shape, np.inf)
    np.maximum.at(begin_KH, (meetings.meeting, host), (begin[row] - base[host]).astype(np.float64))
    np.minimum.at(end_KH, (meetings.meeting, host), (end[row] - base[host]).astype(np.float64))
    operator = tasks.strings("op" if "op" in tasks else "name").to_numpy()
    first = np.zeros(meetings.num_meetings, np.int64)
    first[meetings.meeting[::-1]] = row[::-1]
    is_one_sided = np.isin(operator[first], _ONE_SIDED)
    used = ~is_one_sided if (~is_one_sided).sum() >= FEW else np.ones(len(first), bool)
    begin_KH[np.isinf(begin_KH)] = end_KH[np.isinf(end_KH)] = np.nan
    # Messages of one size on one way are one family.
    size = tasks.get("message_bytes", np.zeros(tasks.num_rows, np.int64))[messages.send]
    family: NDArray[np.int64] = np.unique(np.stack([source, target, size]), axis=1, return_inverse=True)[1]
    return Evidence(
        base_ns=base,
        number=np.flatnonzero(used),
        begin_KH=begin_KH[used],
        end_KH=end_KH[used],
        waits_for_all=np.isin(operator[first[used]], _ALL_WAIT),
        source=source,
        target=target,
        sent=(begin[messages.send] - base[source]).astype(np.float64),
        received=(end[messages.receive] - base[target]).astype(np.float64),
        took=tasks["duration_ns"][messages.receive].astype(np.float64),
        family=family.reshape(-1),
        send_row=messages.send,
    )
