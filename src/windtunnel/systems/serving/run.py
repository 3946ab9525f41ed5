"""Measurement of real instances: isolated for a profile, concurrent for a split.

In: what is served, cells or splits. Out: latencies, each candidate in its turn in every round. Not here: which split
(``search``), requests (``live``).
"""

# R rounds, I instances

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice

import numpy as np

from windtunnel.base.progress import Progress
from windtunnel.measure.stats import Estimate, estimate_median
from windtunnel.measure.together import moment_in
from windtunnel.measure.turns import rounds as rounds_of
from windtunnel.measure.workers import Workers
from windtunnel.systems.serving.instances import Order, fitting, instances, server_cores
from windtunnel.systems.serving.model import Split
from windtunnel.systems.serving.profile import Cell, Profile

__all__ = ["FlownSplit", "fly_splits", "measure_cells", "measuring"]

_SOON_NS = 1_000_000  # an order has reached its process by then
_WARMUP = 3


@dataclass(frozen=True)
class FlownSplit:
    """A measured split.

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
    def cells_ns(self) -> list[tuple[Cell, float]]:
        """Latency of each instance with busy neighbors, for ``fit_slowdown``."""
        return list(zip(self.split.cells, self.instances_ns, strict=True))

    @property
    def error_ratio(self) -> float:
        """Predicted over measured latency, less 1: +0.05 predicted 5 % too long."""
        return self.split.latency_ns / self.latency.value - 1


@contextmanager
def measuring(
    job: str, threads: Sequence[int], max_inputs: int, *, rounds: int = 20, budget_s: float = 10.0
) -> Iterator[Callable[[Cell], float]]:
    """Provide a function that measures single cells, (threads, batch) -> median in ns, for adaptive sampling.

    Parameters
    ----------
    job : str
        As for ``served``.
    threads : sequence of int
        Of the instances that will be asked for.
    max_inputs : int
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
    with instances(job, [server_cores()[:item] for item in fitting(known)], max_inputs) as workers:
        _ready(workers)

        def measure(cell: Cell) -> float:
            rank = known.index(cell[0])
            turns = rounds_of(5, rounds, budget_s, warmup=_WARMUP)
            times = [(turn, _answer(workers, rank, cell[1])[0]) for turn in turns]
            return float(np.median([used for turn, used in times if turn >= 0]))

        yield measure


def measure_cells(
    job: str,
    cells: Sequence[Cell],
    *,
    rounds: int = 20,
    budget_s: float = 120.0,
    progress: Progress | None = None,
) -> Profile:
    """Measure isolated instances, with all cells in every round: medians and memory; errors as for ``measuring``."""
    cells = sorted(set(cells))  # what an instance has held is of its largest batch up to then
    known = sorted({threads for threads, _ in cells})
    times: dict[Cell, list[int]] = {cell: [] for cell in cells}
    held: dict[Cell, int | None] = {}
    with instances(job, [server_cores()[:item] for item in fitting(known)], max(b for _, b in cells)) as workers:
        _ready(workers)
        for turn in rounds_of(5, rounds, budget_s, warmup=_WARMUP, progress=progress, what="profiling"):
            for cell in cells:
                used, own_bytes = _answer(workers, known.index(cell[0]), cell[1])
                held.setdefault(cell, own_bytes)
                if turn >= 0:
                    times[cell].append(used)
    sizes = {cell: size for cell, size in held.items() if size is not None}
    return Profile.of({cell: float(np.median(time_)) for cell, time_ in times.items()}, sizes or None)


def fly_splits(
    job: str,
    splits: Sequence[Split],
    *,
    rounds: int = 20,
    budget_s: float = 120.0,
    progress: Progress | None = None,
) -> list[FlownSplit]:
    """Run splits interleaved: in each round every split answers one batch, whose instances start simultaneously.

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
            for index in order:
                used = _answers(groups[index], splits[index].shares())
                if turn >= 0:
                    times[index].append(used)
    return [
        _summarize_rounds(split, np.array(time_, dtype=np.float64)) for split, time_ in zip(splits, times, strict=True)
    ]


def _summarize_rounds(split: Split, times_RI: np.ndarray) -> FlownSplit:
    whole_R = times_RI.max(axis=1)
    return FlownSplit(
        split, estimate_median(whole_R), tuple(np.median(times_RI, axis=0).tolist()), tuple(whole_R.tolist())
    )


def _group(job: str, split: Split) -> Workers:
    fitting([split.threads])
    left = iter(server_cores())
    cores = [list(islice(left, instance.threads)) for instance in split.instances]
    return instances(job, cores, max(split.shares()))


def _ready(workers: Workers) -> None:
    for rank in range(workers.num_ranks):
        workers.receive(rank)


def _answer(workers: Workers, rank: int, batch: int) -> tuple[int, int | None]:
    """Answer one batch; return the time and the peak private memory of the instance."""
    workers.send(Order(batch, moment_in(_SOON_NS), asks_bytes=True), rank)
    taken_ns, _, own_bytes = workers.receive(rank)
    return taken_ns, own_bytes


def _answers(workers: Workers, shares: Sequence[int]) -> list[int]:
    """Return the time of each rank from a common start."""
    moment_ns = moment_in(_SOON_NS)
    for rank, batch in enumerate(shares):
        workers.send(Order(batch, moment_ns), rank)
    return [int(workers.receive(rank)[0]) for rank in range(len(shares))]
