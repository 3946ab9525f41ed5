"""How the clocks of the hosts of a job differ (room sources).

In: when each rank saw its collectives and messages. Out: what to add to each host's clock, within what interval
causality leaves it, and how far apart ends still lie. Collectives end on all members at about the same time; no cause
comes after its effect. Not here: changing a graph (``merge``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import TraceError
from windtunnel.graph import Graph, Table
from windtunnel.sources.ranks import _bounds
from windtunnel.sources.ranks._fit import Fit, fit_ends
from windtunnel.sources.ranks._job import Job
from windtunnel.sources.ranks._match import Meetings
from windtunnel.sources.ranks._messages import Messages
from windtunnel.units import format_duration

__all__ = ["Clock", "clock_lines", "fit_clocks"]

# K collectives, H hosts, P messages, T tasks
Floats = NDArray[np.float64]
_FEW = 3  # collectives that fit any offset
_SPAN_NS, _MANY = 500_000_000, 10  # from where on drifts can be told
_SAME_NS = 20_000  # ends of one clock lie as near
_GRAIN_NS = 2_000.0  # times of traces are whole microseconds
_ALL_WAIT = ("all_reduce", "all_gather", "reduce_scatter", "barrier")  # none ends before all have begun
_ONE_SIDED = ("broadcast", "reduce", "gather", "scatter")
_BINS = 16
_MOST_LINES = 16


@dataclass(frozen=True, slots=True)
class Clock:
    """What to add to a host's clock.

    Attributes
    ----------
    host : str
    offset_ns : int
        At the begin of the graph.
    drift_ppm : float
        Microseconds per second, on top; 0 where the trace is too short to tell.
    low_ns, high_ns : int or None
        What causality leaves of the offset; None where nothing limits it.
    base_ns : int
        Time of the host's clock at which the offset holds.
    """

    host: str
    offset_ns: int = 0
    drift_ppm: float = 0.0
    low_ns: int | None = None
    high_ns: int | None = None
    base_ns: int = 0

    def corrected(self, time_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Times of this host's clock on the common one."""
        drift = np.rint((time_ns - self.base_ns) * (self.drift_ppm * 1e-6)).astype(np.int64)
        corrected: NDArray[np.int64] = time_ns + self.offset_ns + drift
        return corrected

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, eq=False)
class _Evidence:
    """Times on the hosts' own clocks, from ``base_ns`` [H] on: ends of collectives, and what cannot come before what.

    ``number`` is that of the meeting; ``begin_KH`` and ``end_KH`` are NaN for hosts that take no part. Messages lead
    from host ``source`` to ``target``.
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
    send_row: NDArray[np.int64]


def fit_clocks(tasks: Table, meetings: Meetings, messages: Messages, job: Job) -> tuple[list[Clock], float]:
    """Fit the clock of every host, in the order of ``job.hosts`` without repetition, and the spread that is left in ns.

    Raises
    ------
    TraceError
        Causes come after their effects whatever the clocks are; names the hosts and the tasks.
    """
    hosts = list(dict.fromkeys(job.hosts))
    still = [Clock(host) for host in hosts]
    evidence = _gather(tasks, meetings, messages, job, hosts)
    ends = np.concatenate([evidence.end_KH, _midpoints(evidence, len(hosts))])
    is_enough = len(ends) >= _FEW
    if len(hosts) < 2 or not (is_enough or len(evidence.source)):
        return still, 0.0
    fit = fit_ends(ends, with_drift=_is_long(ends)) if is_enough else _as_told(evidence, len(hosts))
    limit, cause = _limits(evidence, fit.drift, len(hosts), by_collectives=is_enough)
    cycle = _bounds.contradiction(limit)
    if cycle:
        raise _impossible(tasks, meetings, evidence, cycle, cause, hosts)
    told = (evidence.base_ns - evidence.base_ns[0]).astype(np.float64)
    # hosts that nothing ties to the first keep their own time
    offset = _bounds.nearest(fit.offset_ns + told[fit.part], limit)
    if _are_one(offset - told, fit, evidence, limit):
        return still, fit.spread_ns
    low, high = _bounds.intervals(limit)
    clocks = []
    for h, host in enumerate(hosts):
        by_ns = int(evidence.base_ns[0] - evidence.base_ns[h])
        least, most = (round(edge) + by_ns if np.isfinite(edge) else None for edge in (float(low[h]), float(high[h])))
        drift_ppm, base_ns = 1e6 * float(fit.drift[h]), int(evidence.base_ns[h])
        clocks.append(Clock(host, by_ns + round(offset[h]), drift_ppm, least, most, base_ns))
    return clocks, fit.spread_ns


def _is_long(ends: Floats) -> bool:
    """Whether there is enough to tell drifts from noise."""
    return len(ends) >= _MANY and float(np.nanmax(ends) - np.nanmin(ends)) >= _SPAN_NS


def _as_told(evidence: _Evidence, num_hosts: int) -> Fit:
    """Offsets as the traces have them."""
    nothing, told = np.zeros(num_hosts), (evidence.base_ns - evidence.base_ns[0]).astype(np.float64)
    return Fit(told, nothing, np.empty((0, num_hosts)), 0.0, np.zeros(num_hosts, np.int64))


def _are_one(apart: Floats, fit: Fit, evidence: _Evidence, limit: Floats) -> bool:
    """Whether the clocks are one as far as anybody can tell: causality allows it, and the ends nearly do."""
    told = (evidence.base_ns - evidence.base_ns[0]).astype(np.float64)
    is_allowed = bool((told[:, None] - told[None, :] <= limit).all())
    took = evidence.end_KH - evidence.begin_KH
    # what ends differ by within a collective's own time is its algorithm, no clock
    own_ns = float(np.median(np.nanmin(took, axis=1))) if len(took) else 0.0
    near_ns = max(_SAME_NS, 0.1 * own_ns, 4 * fit.spread_ns)
    return is_allowed and not fit.drift.any() and float(np.abs(apart).max()) <= near_ns


def clock_lines(graph: Graph) -> list[str]:
    """What a reader must know of the clocks of the ranks that were joined; empty for a graph of one trace."""
    told = graph.meta.clocks
    if not told:
        return []
    set_ones = [one for one in told["hosts"] if one["offset_ns"] or one["drift_ppm"]]
    spread = format_duration(told["spread_ns"])
    if set_ones:
        lines = [f"clocks of {len(told['hosts'])} hosts were set; what is left of their ends' differences: {spread}"]
        lines += [_line(one) for one in set_ones[:_MOST_LINES]]
        if len(set_ones) > _MOST_LINES:
            lines.append(f"  and {len(set_ones) - _MOST_LINES:,} more")
    elif told["spread_ns"]:
        lines = [f"clocks of {len(told['hosts'])} hosts agree within {spread} and are as recorded"]
    else:
        lines = [f"clocks of {len(told['hosts'])} hosts are as recorded"]
    return [*lines, *(f"note: {note}" for note in told["notes"])]


def _line(clock: Mapping[str, Any]) -> str:
    """One host's offset and drift, and the interval that causality leaves."""
    edges = [clock["low_ns"], clock["high_ns"]]
    text = f"  {clock['host']}: {clock['offset_ns'] / 1e3:+,.1f} µs"
    if None not in edges:
        text += f" ({edges[0] / 1e3:+,.1f} to {edges[1] / 1e3:+,.1f} is possible)"
    return text + (f", drift {clock['drift_ppm']:+.2f} µs per s" if clock["drift_ppm"] else "")


# --- evidence -----------------------------------------------------------------------------------------


def _gather(tasks: Table, meetings: Meetings, messages: Messages, job: Job, hosts: list[str]) -> _Evidence:
    """What was seen by whom, on each host's own clock."""
    host_of = np.zeros(max(job.ranks) + 1, np.int64)
    host_of[job.ranks] = [hosts.index(host) for host in job.hosts]
    begin, end = tasks["start_ns"], tasks["start_ns"] + tasks["duration_ns"]
    row, host = meetings.row, host_of[tasks["rank"][meetings.row]]
    source, target = (host_of[tasks["rank"][rows]] for rows in (messages.send, messages.receive))
    base = np.full(len(hosts), np.iinfo(np.int64).max)
    for rows, owner in ((row, host), (messages.send, source), (messages.receive, target)):
        np.minimum.at(base, owner, end[rows])
    base = np.where(base == np.iinfo(np.int64).max, 0, base)
    shape = (meetings.num_meetings, len(hosts))
    begin_KH, end_KH = np.full(shape, -np.inf), np.full(shape, np.inf)
    np.maximum.at(begin_KH, (meetings.meeting, host), (begin[row] - base[host]).astype(np.float64))
    np.minimum.at(end_KH, (meetings.meeting, host), (end[row] - base[host]).astype(np.float64))
    operator = tasks.strings("op" if "op" in tasks else "name").to_numpy()
    first = np.zeros(meetings.num_meetings, np.int64)
    first[meetings.meeting[::-1]] = row[::-1]
    is_one_sided = np.isin(operator[first], _ONE_SIDED)
    used = ~is_one_sided if (~is_one_sided).sum() >= _FEW else np.ones(len(first), bool)
    begin_KH[np.isinf(begin_KH)] = end_KH[np.isinf(end_KH)] = np.nan
    return _Evidence(
        base_ns=base,
        number=np.flatnonzero(used),
        begin_KH=begin_KH[used],
        end_KH=end_KH[used],
        waits_for_all=np.isin(operator[first[used]], _ALL_WAIT),
        source=source,
        target=target,
        sent=(begin[messages.send] - base[source]).astype(np.float64),
        received=(end[messages.receive] - base[target]).astype(np.float64),
        send_row=messages.send,
    )


def _midpoints(evidence: _Evidence, num_hosts: int) -> Floats:
    """Per two hosts that send both ways, moments [., H] that are one if the quickest messages took equally long."""
    found = []
    for one in range(num_hosts):
        for other in range(one + 1, num_hosts):
            there, back = (
                np.flatnonzero((evidence.source == s) & (evidence.target == t) & (s != t))
                for s, t in ((one, other), (other, one))
            )
            count = min(_BINS, len(there), len(back))
            for out, into in zip(np.array_split(there, count or 1), np.array_split(back, count or 1), strict=True):
                if count:
                    moment = np.full(num_hosts, np.nan)
                    moment[one] = evidence.sent[out].mean()
                    delays = [(evidence.received[rows] - evidence.sent[rows]).min() for rows in (out, into)]
                    moment[other] = moment[one] + (delays[0] - delays[1]) / 2
                    found.append(moment)
    return np.array(found).reshape(-1, num_hosts)


def _limits(
    evidence: _Evidence, drift: Floats, num_hosts: int, *, by_collectives: bool
) -> tuple[Floats, NDArray[np.int64]]:
    """How far each clock may be set after each other [H, H], and what says so: a collective, or K + a message."""
    limit, cause = np.full((num_hosts, num_hosts), np.inf), np.full((num_hosts, num_hosts), -1)
    delay = evidence.received * (1 + drift[evidence.target]) - evidence.sent * (1 + drift[evidence.source])
    num_collectives = len(evidence.end_KH)
    order = np.argsort(-delay, kind="stable")  # the last that is written is the least
    ways = evidence.source[order], evidence.target[order]
    limit[ways], cause[ways] = delay[order] + _GRAIN_NS, num_collectives + order
    begin, end = evidence.begin_KH * (1 + drift), evidence.end_KH * (1 + drift)
    for place in np.flatnonzero(evidence.waits_for_all).tolist() if by_collectives else ():
        latest = end[place][None, :] - begin[place][:, None] + _GRAIN_NS
        closer = (latest < limit) & ~np.eye(num_hosts, dtype=bool)
        limit[closer], cause[closer] = latest[closer], place
    return limit, cause


def _impossible(
    tasks: Table, meetings: Meetings, evidence: _Evidence, cycle: list[int], cause: NDArray[np.int64], hosts: list[str]
) -> TraceError:
    """Name the hosts, and the collectives or messages, that contradict each other."""
    names, told = tasks.strings("name"), []
    for one, other in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        place = int(cause[one, other])
        if place < len(evidence.end_KH):
            number = int(evidence.number[place])
            row = int(meetings.row[np.flatnonzero(meetings.meeting == number)[0]])
            what = f"collective {int(meetings.place[number])} ({names.decode(row)[:40]!r})"
        else:
            what = f"message {names.decode(int(evidence.send_row[place - len(evidence.end_KH)]))[:40]!r}"
        told.append(f"{what} ends on {hosts[other]} before it begins on {hosts[one]}")
    return TraceError(
        f"no setting of the clocks of {', '.join(hosts[h] for h in cycle)} lets every cause come before its effect",
        where="; ".join(told),
        fix="the tasks of these ranks are not the same ones: traces swapped, of other groups, or of another run",
    )
