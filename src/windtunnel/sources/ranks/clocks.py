"""How the clocks of the hosts of a job differ.

In: when each rank saw its collectives and messages. Out: what to add to each host's clock, within what interval
causality leaves it, and how far apart ends still lie. Collectives end on all members at about the same time; no cause
comes after its effect. Not here: changing a graph (``merge``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import TraceError
from windtunnel.graph import Graph, Table
from windtunnel.sources.ranks import clock_bounds
from windtunnel.sources.ranks.clock_evidence import FEW, Evidence, gather
from windtunnel.sources.ranks.clock_fit import Fit, fit_ends
from windtunnel.sources.ranks.job import Job
from windtunnel.sources.ranks.match import Meetings
from windtunnel.sources.ranks.messages import Messages
from windtunnel.sources.ranks.one_way_offsets import fit_clipped_durations
from windtunnel.units import format_duration

__all__ = ["Clock", "clock_lines", "fit_clocks"]

# K collectives, H hosts, P messages, T tasks
Floats = NDArray[np.float64]
_SPAN_NS, _MANY = 500_000_000, 10  # from where on drifts can be distinguished from noise
_SAME_NS = 20_000  # ends of one clock lie as near
_ROUNDS, _SPREADS = 2, 4
_OWN = 0.1  # of a collective's own time: what its ends may differ by
_FAR_NS = 1_000_000
_MAX_LINES = 16


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

    @property
    def is_set(self) -> bool:
        """Whether anything is added."""
        return bool(self.offset_ns or self.drift_ppm)

    def to_common_ns(self, time_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Convert times of this host's clock to the common clock."""
        drift = np.rint((time_ns - self.base_ns) * (self.drift_ppm * 1e-6)).astype(np.int64)
        corrected: NDArray[np.int64] = time_ns + self.offset_ns + drift
        return corrected

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def fit_clocks(tasks: Table, meetings: Meetings, messages: Messages, job: Job) -> tuple[list[Clock], float]:
    """Fit the clock of every host; returns that of each rank [R], and the spread that is left in ns.

    Where names alone said that ranks share a host, and their clocks say otherwise, each rank is a host of its own.

    Raises
    ------
    TraceError
        Causes come after their effects whatever the clocks are: names the hosts and the tasks; or a rank reads the
        clock of another host than the caller said.
    """
    # First per rank: ranks of one host must show one clock. If they do not, the names of hosts are wrong.
    by_rank = gather(tasks, meetings, messages, job, job.ranks)
    odd = _odd_ranks(by_rank, job)
    if odd and job.says_hosts:
        raise _not_of_its_host(odd, job)
    if odd:  # a name is no proof that it is one host
        job = replace(job, hosts=tuple(f"rank {rank}" for rank in job.ranks))
    hosts = list(dict.fromkeys(job.hosts))
    still = [Clock(host) for host in job.hosts]
    evidence = gather(tasks, meetings, messages, job, [hosts.index(host) for host in job.hosts])
    is_enough = len(evidence.end_KH) >= FEW
    if len(hosts) < 2 or not (is_enough or len(evidence.source)):
        return still, 0.0
    fit, doubt_ns = _steadiest(evidence)
    fit, limit, cause, cycle = _possible(evidence, fit)
    if cycle:
        raise _impossible(tasks, meetings, evidence, cycle, cause, hosts)
    # hosts that nothing ties to the first keep their own time
    offset = clock_bounds.nearest(fit.offset_ns + evidence.told_ns[fit.part], limit)
    if _are_one(offset - evidence.told_ns, fit, evidence, doubt_ns):
        return still, fit.spread_ns
    by_host = dict(zip(hosts, _clocks_of(hosts, evidence, fit, offset, limit), strict=True))
    return [by_host[host] for host in job.hosts], fit.spread_ns


def _possible(evidence: Evidence, fit: Fit) -> tuple[Fit, Floats, NDArray[np.int64], list[int]]:
    """The fit, its limits and what they are from, and the hosts that contradict each other.

    A drift that a short trace cannot be sure of is taken where without it something would end before it began.
    """
    by_collectives = len(evidence.end_KH) >= FEW
    limit, cause = evidence.limits(fit.drift, by_collectives=by_collectives)
    # A cycle of limits says that some host would be before itself; a drift that was not sure may explain it.
    cycle = clock_bounds.contradiction(limit)
    moments = evidence.end_KH if by_collectives else evidence.midpoints(fit.drift)
    if cycle and not fit.drift.any() and len(moments) > FEW:
        drifting = fit_ends(moments, with_drift=True, only_sure=False)
        allowed, why = evidence.limits(drifting.drift, by_collectives=by_collectives)
        if not clock_bounds.contradiction(allowed):
            return drifting, allowed, why, []
    return fit, limit, cause, cycle


def _clocks_of(hosts: list[str], evidence: Evidence, fit: Fit, offset: Floats, limit: Floats) -> list[Clock]:
    """The clock of each host, from offsets on times that count from each host's own base."""
    clocks = []
    edges = zip(*clock_bounds.intervals(limit), strict=True)
    for h, (host, (low, high)) in enumerate(zip(hosts, edges, strict=True)):
        by_ns = int(evidence.base_ns[0] - evidence.base_ns[h])
        least, most = (round(edge) + by_ns if np.isfinite(edge) else None for edge in (float(low), float(high)))
        drift_ppm, base_ns = 1e6 * float(fit.drift[h]), int(evidence.base_ns[h])
        clocks.append(Clock(host, by_ns + round(offset[h]), drift_ppm, least, most, base_ns))
    return clocks


def _steadiest(evidence: Evidence) -> tuple[Fit, float]:
    """By the ends of collectives, or by the quickest of both ways: what varies least from one block of time to another.

    Ends on devices lie within microseconds. Where programs share cores, ends wait for their turn for whole stretches of
    time, which the quickest ways do not. Also how much of an offset may be the algorithm's and no clock's, in ns.
    """
    nothing = np.zeros(evidence.num_hosts)
    midpoints = evidence.midpoints(nothing)
    result: list[tuple[Fit, float]] = []
    if len(evidence.end_KH) >= FEW:
        # Two kinds of evidence: collectives end together, and quick messages go both ways in about equal time.
        # The one that varies less over the run is believed.
        own_ns = float(np.median(np.nanmin(evidence.end_KH - evidence.begin_KH, axis=1)))
        result.append((fit_ends(evidence.end_KH, with_drift=_is_long(evidence.end_KH)), _OWN * own_ns))
    if len(midpoints) >= FEW and (not result or _is_long(midpoints)):
        fit = fit_ends(midpoints, with_drift=_is_long(midpoints))
        for _ in range(_ROUNDS if fit.drift.any() else 0):  # a drift shifts what is quickest within a block
            midpoints = evidence.midpoints(fit.drift)
            fit = fit_ends(midpoints, with_drift=True)
        limit, _ = evidence.limits(fit.drift, by_collectives=len(evidence.end_KH) >= FEW)
        there_and_back = (limit + limit.T)[np.isfinite(limit + limit.T)]
        result.append((fit, float(np.median(there_and_back)) / 4 if len(there_and_back) else 0.0))
    if not result:
        return Fit(_one_way(evidence), nothing, 0.0, 0.0, np.zeros(evidence.num_hosts, np.int64)), 0.0
    # Evidence that ties more hosts together goes first.
    fewest = min(len(set(fit.part.tolist())) for fit, _ in result)
    tied = [item for item in result if len(set(item[0].part.tolist())) == fewest]
    return min(tied, key=lambda one: one[0].steady_ns)


def _one_way(evidence: Evidence) -> Floats:
    """Offsets by messages that are not answered."""
    limit, _ = evidence.limits(np.zeros(evidence.num_hosts), by_collectives=False)
    if clock_bounds.contradiction(limit):
        return evidence.told_ns
    low, high = clock_bounds.intervals(limit)
    # from where the quickest message took no time: there it shows which receives waited
    edge = np.where(np.isfinite(low), low, np.where(np.isfinite(high), high, evidence.told_ns))
    return fit_clipped_durations(evidence, edge, limit)


def _is_long(moments: Floats) -> bool:
    """Whether the evidence suffices to distinguish drifts from noise."""
    return len(moments) >= _MANY and float(np.nanmax(moments) - np.nanmin(moments)) >= _SPAN_NS


def _are_one(apart: Floats, fit: Fit, evidence: Evidence, doubt_ns: float) -> bool:
    """Whether the clocks are indistinguishable: causality allows one clock, and the evidence nearly agrees with it."""
    reported = evidence.told_ns
    limit, _ = evidence.limits(np.zeros(evidence.num_hosts), by_collectives=len(evidence.end_KH) >= FEW)
    is_allowed = bool((reported[:, None] - reported[None, :] <= limit).all())
    times = np.concatenate([evidence.end_KH.ravel(), evidence.received])
    at_end = apart + fit.drift * (float(np.nanmax(times)) if len(times) else 0.0)
    near_ns = max(_SAME_NS, doubt_ns, _SPREADS * fit.spread_ns)
    return is_allowed and float(max(np.abs(apart).max(), np.abs(at_end).max())) <= near_ns


# --- ranks that share a host --------------------------------------------------------------------------


def _odd_ranks(by_rank: Evidence, job: Job) -> dict[int, str]:
    """Ranks whose clock is not that of the others of their host; with the host whose clock it is, or an empty text."""
    hosts = np.array(job.hosts)
    if len(set(job.hosts)) == len(job.hosts) or len(by_rank.end_KH) < FEW:
        return {}
    fit, _ = _steadiest(by_rank)
    apart = fit.offset_ns - by_rank.told_ns
    usual = {host: float(np.median(apart[hosts == host])) for host in job.hosts}
    far_ns = max(_FAR_NS, _SPREADS * fit.spread_ns)
    odd = {}
    for index in np.flatnonzero(np.abs(apart - [usual[host] for host in job.hosts]) > far_ns).tolist():
        near = [host for host in usual if abs(usual[host] - apart[index]) <= far_ns]
        # Two traces that were swapped each show the clock of the other host.
        odd[job.ranks[index]] = near[0] if near else ""
    return odd


def _not_of_its_host(odd: dict[int, str], job: Job) -> TraceError:
    own = dict(zip(job.ranks, job.hosts, strict=True))
    reported = [f"rank {rank} of {own[rank]} reads the clock of {host or 'no host here'}" for rank, host in odd.items()]
    is_swap = len(odd) == 2 and all(odd[item] == own[other] for item, other in (tuple(odd), tuple(odd)[::-1]))
    names = " and ".join(str(rank) for rank in list(odd)[:8])
    return TraceError(
        f"the traces of ranks {names} are swapped" if is_swap else f"the clock of rank {names} is not that of its host",
        where="; ".join(reported[:8]) + f": {', '.join(job.trace_name(rank) for rank in list(odd)[:8])}",
        fix="exchange the two traces" if is_swap else "give each trace its own host, or leave out hosts",
    )


def clock_lines(graph: Graph) -> list[str]:
    """What a reader must know of the clocks of the ranks that were joined; empty for a graph of one trace."""
    reported = graph.meta.clocks
    if not reported:
        return []
    count = len(reported["hosts"])
    if not count:
        return [f"note: {note}" for note in reported["notes"]]
    if count == 1:
        return ["all ranks read one clock", *(f"note: {note}" for note in reported["notes"])]
    set_ones = [item for item in reported["hosts"] if item["offset_ns"] or item["drift_ppm"]]
    spread = format_duration(reported["spread_ns"])
    if set_ones:
        lines = [f"clocks of {count} hosts were set; what is left of their ends' differences: {spread}"]
        lines += [_line(set_one) for set_one in set_ones[:_MAX_LINES]]
        if len(set_ones) > _MAX_LINES:
            lines.append(f"  and {len(set_ones) - _MAX_LINES:,} more")
    elif reported["spread_ns"]:
        lines = [f"clocks of {count} hosts agree within {spread} and are as recorded"]
    else:
        lines = [f"clocks of {count} hosts are as recorded"]
    return [*lines, *(f"note: {note}" for note in reported["notes"])]


def _line(clock: Mapping[str, Any]) -> str:
    """One host's offset and drift, and the interval that causality leaves."""
    edges = [clock["low_ns"], clock["high_ns"]]
    text = f"  {clock['host']}: {clock['offset_ns'] / 1e3:+,.1f} µs"
    if None not in edges:
        text += f" ({edges[0] / 1e3:+,.1f} to {edges[1] / 1e3:+,.1f} is possible)"
    return text + (f", drift {clock['drift_ppm']:+.2f} µs per s" if clock["drift_ppm"] else "")


# --- evidence -----------------------------------------------------------------------------------------


def _impossible(
    tasks: Table, meetings: Meetings, evidence: Evidence, cycle: list[int], cause: NDArray[np.int64], hosts: list[str]
) -> TraceError:
    """Name the hosts, and the collectives or messages, that contradict each other."""
    names, reported = tasks.strings("name"), []
    for item, other in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        index = int(cause[item, other])
        if index < len(evidence.end_KH):
            number = int(evidence.number[index])
            row = int(meetings.row[np.flatnonzero(meetings.meeting == number)[0]])
            what = f"collective {int(meetings.place[number])} ({names.decode(row)[:40]!r})"
        else:
            message = index - len(evidence.end_KH)
            way = (evidence.source[:message] == item) & (evidence.target[:message] == other)
            what = f"message {int(way.sum())} ({names.decode(int(evidence.send_row[message]))[:40]!r})"
        reported.append(f"{what} ends on {hosts[other]} before it begins on {hosts[item]}")
    return TraceError(
        f"no setting of the clocks of {', '.join(hosts[h] for h in cycle)} lets every cause come before its effect",
        where="; ".join(reported),
        fix="the tasks of these ranks are not the same ones: traces swapped, of other groups, or of another run",
    )
