"""Instances that really run (room serving): alone for a profile, at once for a split.

In: what is served, cells, splits or requests. Out: latencies, each candidate in its turn in every round. Every instance
is a process that keeps to cores of its own from before it imports torch. Not here: which split (``search``).
"""

# R rounds, or requests

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError
from windtunnel.hardware.cores import socket_cores
from windtunnel.hardware.host import cpu_quota_cores
from windtunnel.measure.rounds import rounds as rounds_of
from windtunnel.measure.stats import Estimate, estimate_median
from windtunnel.measure.together import moment_in, wait_for
from windtunnel.measure.workers import Workers
from windtunnel.progress import Progress
from windtunnel.serving.model import Split
from windtunnel.serving.profile import Cell
from windtunnel.serving.tail import Answered, Server, answered_by

__all__ = ["FlownSplit", "fly_requests", "fly_splits", "measure_cells", "measuring", "server_cores"]

_SOON_NS = 1_000_000  # an order has reached its process by then
_WARMUP = 3
_KNOWN = 32  # sizes of batches that instances have seen before requests come
_PATIENCE_S = 600.0
# pools that wait must not burn the cores of their neighbors
_ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}


@dataclass(frozen=True)
class _Config:
    """What instances are told once: what is served, threads by rank, the largest batch."""

    job: str
    threads: tuple[int, ...]
    most_inputs: int


@dataclass(frozen=True)
class FlownSplit:
    """A split as it really ran.

    Parameters
    ----------
    split : Split
    latency : Estimate
        Of the batch, ns: the last instance's, the median over rounds.
    instances_ns : tuple of float
        Medians of each instance, in order.
    latency_ns_R : tuple of float
        Of the batch in each round.
    """

    split: Split
    latency: Estimate
    instances_ns: tuple[float, ...]
    latency_ns_R: tuple[float, ...]

    @property
    def error_ratio(self) -> float:
        """Predicted over measured latency, less 1: +0.05 predicted 5 % too long."""
        return self.split.latency_ns / self.latency.value - 1


def server_cores() -> tuple[int, ...]:
    """Cores that instances may be given: physical ones of one socket, within the affinity mask and the quota."""
    largest = max(socket_cores(), key=len)
    quota = cpu_quota_cores()
    return largest if quota is None else largest[: max(1, int(quota))]


@contextmanager
def measuring(
    job: str, threads: Sequence[int], most_inputs: int, *, rounds: int = 20, budget_s: float = 10.0
) -> Iterator[Callable[[Cell], float]]:
    """A way to measure single cells, for whoever chooses the next by the last: (threads, batch) -> median in ns.

    Parameters
    ----------
    job : str
        As for ``served``.
    threads : sequence of int
        Of the instances that will be asked for.
    most_inputs : int
    rounds : int
        At most, for a cell.
    budget_s : float
        For a cell; five rounds are always run.

    Raises
    ------
    InputError
        There are not as many cores.
    FlightError
        An instance failed.
    """
    known = sorted(set(threads))
    with _instances(job, [server_cores()[:one] for one in _fitting(known)], most_inputs) as workers:
        _ready(workers)

        def measure(cell: Cell) -> float:
            rank = known.index(cell[0])
            turns = rounds_of(5, rounds, budget_s, warmup=_WARMUP)
            times = [(turn, _answer(workers, rank, cell[1])) for turn in turns]
            return float(np.median([taken for turn, taken in times if turn >= 0]))

        yield measure


def measure_cells(
    job: str,
    cells: Sequence[Cell],
    *,
    rounds: int = 20,
    budget_s: float = 120.0,
    progress: Progress | None = None,
) -> dict[Cell, float]:
    """Median latency in ns of one instance alone, all cells in turn in every round; errors as ``measuring``."""
    known = sorted({threads for threads, _ in cells})
    most = max(batch for _, batch in cells)
    times: dict[Cell, list[int]] = {cell: [] for cell in cells}
    with _instances(job, [server_cores()[:one] for one in _fitting(known)], most) as workers:
        _ready(workers)
        for turn in rounds_of(5, rounds, budget_s, warmup=_WARMUP, progress=progress, what="profiling"):
            for cell in cells:
                taken = _answer(workers, known.index(cell[0]), cell[1])
                if turn >= 0:
                    times[cell].append(taken)
    return {cell: float(np.median(taken)) for cell, taken in times.items()}


def fly_splits(
    job: str,
    splits: Sequence[Split],
    *,
    rounds: int = 20,
    budget_s: float = 120.0,
    progress: Progress | None = None,
) -> list[FlownSplit]:
    """Run splits in turns: in each round each answers one batch, whose instances begin at one moment.

    Raises
    ------
    InputError
        A split wants more threads than there are cores; names both.
    FlightError
        An instance failed.
    """
    times: list[list[list[int]]] = [[] for _ in splits]
    with ExitStack() as held:
        groups = [held.enter_context(_group(job, split)) for split in splits]
        for group in groups:
            _ready(group)
        for turn in rounds_of(5, rounds, budget_s, warmup=_WARMUP, progress=progress, what="flying"):
            order = range(len(splits)) if turn % 2 == 0 else range(len(splits) - 1, -1, -1)
            for at in order:
                taken = _answers(groups[at], splits[at].shares())
                if turn >= 0:
                    times[at].append(taken)
    return [_flown(split, np.array(taken, dtype=np.float64)) for split, taken in zip(splits, times, strict=True)]


def fly_requests(
    job: str, server: Server, arrival_ns_R: NDArray[np.int64], *, progress: Progress | None = None
) -> Answered:
    """Really answer requests that come at these moments, whether or not the ones before are answered.

    Parameters
    ----------
    job : str
        As for ``served``.
    server : Server
    arrival_ns_R : int64 [R]
        Ascending, from the moment on at which the server is ready.
    progress : callable, optional

    Raises
    ------
    InputError, FlightError
        As for ``fly_splits``.
    """
    most, num_done = server.split.batch, 0
    with _group(job, server.split) as workers:
        _ready(workers)
        for inputs in [*range(1, most + 1, max(1, most // _KNOWN)), *[most] * _WARMUP]:
            _answers(workers, server.split.parts(inputs))
        origin_ns = moment_in(_SOON_NS)

        def begin(closes_ns: int, _free_ns: int) -> int:
            wait_for(origin_ns + closes_ns)
            return moment_in(0) - origin_ns

        def serve(_begun_ns: int, inputs: int) -> int:
            nonlocal num_done
            _answers(workers, server.split.parts(inputs), delay_ns=0)
            answered_ns = moment_in(0) - origin_ns
            num_done += inputs
            if progress is not None:
                progress("answering", num_done, len(arrival_ns_R))
            return answered_ns

        return answered_by(arrival_ns_R, server, begin, serve)


def _flown(split: Split, times_RI: np.ndarray) -> FlownSplit:
    whole_R = times_RI.max(axis=1)
    return FlownSplit(
        split, estimate_median(whole_R), tuple(np.median(times_RI, axis=0).tolist()), tuple(whole_R.tolist())
    )


def _group(job: str, split: Split) -> Workers:
    _fitting([split.threads])
    left = iter(server_cores())
    cores = [list(islice(left, one.threads)) for one in split.instances]
    return _instances(job, cores, max(split.shares()))


def _instances(job: str, cores: Sequence[Sequence[int]], most_inputs: int) -> Workers:
    return Workers(
        "windtunnel.serving._instance",
        _Config(job, tuple(map(len, cores)), most_inputs),
        num_ranks=len(cores),
        title="instance",
        cores=cores,
        environment=_ENVIRONMENT,
        patience_s=_PATIENCE_S,
    )


def _fitting(threads: Sequence[int]) -> Sequence[int]:
    cores = len(server_cores())
    if max(threads) > cores:
        raise InputError(
            f"{max(threads)} threads do not fit on {cores} cores",
            where="threads",
            fix=f"ask for {cores} or fewer: more threads than cores only wait for each other",
        )
    return threads


def _ready(workers: Workers) -> None:
    for rank in range(workers.num_ranks):
        workers.receive(rank)


def _answer(workers: Workers, rank: int, batch: int) -> int:
    workers.send((batch, moment_in(_SOON_NS)), rank)
    return int(workers.receive(rank))


def _answers(workers: Workers, shares: Sequence[int], delay_ns: int = _SOON_NS) -> list[int]:
    """What each rank with inputs took, from one moment on."""
    moment_ns = moment_in(delay_ns)
    asked = [rank for rank, batch in enumerate(shares) if batch]
    for rank in asked:
        workers.send((shares[rank], moment_ns), rank)
    return [int(workers.receive(rank)) for rank in asked]
