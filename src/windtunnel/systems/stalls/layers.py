"""Layers that wait for the network, and what-ifs that shorten the wait.

In: a job, a link. Out: ``NetworkForecast``: the iteration over that link by replay of a capture of one rank, the part
of it in which nothing but an all-reduce goes on, by the layers whose gradients it carries, and changes that would help,
each of which can be flown. Not here: measured stalls (``run``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.progress import Progress
from windtunnel.errors import NotApplicableError
from windtunnel.graph import Kind
from windtunnel.graph.collectives import all_reduces
from windtunnel.measure.threads import threads
from windtunnel.systems.stalls.job import job_of
from windtunnel.whatifs.answer import Answer
from windtunnel.whatifs.ask import whatif
from windtunnel.whatifs.request import parse_requests

__all__ = ["BucketStall", "NetworkForecast", "Remedy", "network_forecast", "overlap_ns"]

Ints = NDArray[np.int64]
_CAPTURED = 8
_LOOPBACK_BYTES_PER_S = 1e12
REMEDIES = ("fp16-gradients", "powersgd", "gradient-accumulation:passes=4")
"""What-ifs that are evaluated in addition to the network."""


@dataclass(frozen=True)
class BucketStall:
    """The exposed time of one message of an iteration.

    Attributes
    ----------
    layers : tuple of str
        Whose gradients it carries.
    size_bytes : int
    exposed_ns : float
        Per iteration, while nothing is computed.
    """

    layers: tuple[str, ...]
    size_bytes: int
    exposed_ns: float


@dataclass(frozen=True)
class Remedy:
    """A what-if and the duration of an iteration with it, per original batch."""

    request: str
    iteration_ns: float


@dataclass(frozen=True)
class NetworkForecast:
    """The predicted iteration over a link that was not measured.

    Attributes
    ----------
    request : str
        As ``windtunnel whatif`` and ``verify`` read it.
    iteration_ns, stall_ns : float
        ``stall_ns``: how much longer than over a link that takes no time.
    buckets : tuple of BucketStall
        In the order in which they are sent.
    remedies : tuple of Remedy
        Those that shorten the iteration, best first.
    """

    request: str
    iteration_ns: float
    stall_ns: float
    buckets: tuple[BucketStall, ...]
    remedies: tuple[Remedy, ...]


def network_forecast(
    job: str,
    num_ranks: int,
    bandwidth_bytes_per_s: float,
    latency_ns: int = 0,
    *,
    remedies: Sequence[str] = REMEDIES,
    progress: Progress | None = None,
) -> NetworkForecast:
    """Capture one rank of the job on one thread, and replay several ranks over the link.

    Raises
    ------
    InputError
        The job is none.
    NotApplicableError
        The job has no gradients.
    """
    from windtunnel.sources.torch.step import capture

    created = job_of(job)
    with threads(1):
        graph = capture(
            created.step,
            iterations=_CAPTURED,
            model=list(created.models),
            optimizer=list(created.optimizers),
            progress=progress,
        )
        over = f"data-parallel:num_ranks={num_ranks},num_cores={num_ranks},latency_ns="
        request = f"{over}{latency_ns},bandwidth_bytes_per_s={bandwidth_bytes_per_s:.0f}"
        free = f"{over}0,bandwidth_bytes_per_s={_LOOPBACK_BYTES_PER_S:.0f}"
        requested = parse_requests([request, free, *(f"{request}+{remedy}" for remedy in remedies)])
        answers = {str(entry.request): entry for entry in whatif(graph, requested, progress=progress)}
    plain, fast, *changed = (answers[str(entry)] for entry in requested)
    for item in (plain, fast):
        if not item.is_applicable:
            raise NotApplicableError(item.reason, where=job, fix=item.advice)
    iteration_ns = _per_batch_ns(plain, num_ranks)
    result = [Remedy(str(entry.request), _per_batch_ns(entry, num_ranks)) for entry in changed if entry.is_applicable]
    better = [remedy for remedy in result if remedy.iteration_ns < iteration_ns]
    better.sort(key=lambda remedy: remedy.iteration_ns)
    stall_ns = iteration_ns - _per_batch_ns(fast, num_ranks)
    return NetworkForecast(
        request,
        iteration_ns,
        stall_ns,
        _find_exposed_stalls(plain),
        tuple(better),
    )


def _per_batch_ns(answer: Answer, num_ranks: int) -> float:
    """Return the time per batch of each rank; with accumulation an iteration has several."""
    return answer.predicted_ns * num_ranks / answer.samples_ratio


def _find_exposed_stalls(answer: Answer) -> tuple[BucketStall, ...]:
    graph, timeline = answer.graph, answer.timeline
    is_message = all_reduces(graph)
    filled = graph.meta.buckets["filled"] if graph.meta.buckets else []
    start, finish = timeline.start_ns, timeline.finish_ns
    computes = ~graph.select(kind=Kind.COMM) & (finish > start)
    hidden = overlap_ns(start[computes], finish[computes], start[is_message], finish[is_message])
    alone_ns = (finish - start)[is_message] - hidden
    by_bucket = alone_ns.reshape(-1, max(len(filled), 1)).sum(axis=0) / graph.num_iterations
    return tuple(
        BucketStall(tuple(item["layers"]), item["size_bytes"], float(exposed))
        for item, exposed in zip(filled, by_bucket, strict=True)
    )


def overlap_ns(start: Ints, finish: Ints, begin: Ints, end: Ints) -> Ints:
    """Return the part of each interval ``begin`` .. ``end`` that the union of ``start`` .. ``finish`` covers.

    Examples
    --------
    >>> overlap_ns(np.array([0, 5, 20]), np.array([10, 12, 30]), np.array([8, 13]), np.array([22, 19])).tolist()
    [6, 0]
    """
    # Merge overlapping spans into disjoint ones, then take the difference of the covered time up to both ends.
    order = np.argsort(start, kind="stable")
    starts, reached = start[order], np.maximum.accumulate(finish[order])
    opens = np.r_[True, starts[1:] > reached[:-1]]  # spans that touch become one
    first, last = starts[opens], reached[np.r_[opens[1:], True]]
    before = np.r_[0, np.cumsum(last - first)]

    def until(time_ns: Ints) -> Ints:
        row = np.searchsorted(first, time_ns, side="right")
        within: Ints = before[row] - np.where(row > 0, np.maximum(last[row - 1] - time_ns, 0), 0)
        return within

    return until(end) - until(begin)
