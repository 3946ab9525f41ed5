"""Candidates run in worker processes that they may crash, interleaved with the original.

In: a kernel, sets of edits. Out: an ``Evaluation`` for each. What was seen before, as a set of edits or as a program,
is remembered. Not here: which sets (``search``), how processes are contained (``measure.sandbox``).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from windtunnel.errors import InputError, WindtunnelError
from windtunnel.hardware.host import usable_cores
from windtunnel.measure.sandbox import Limits
from windtunnel.measure.stats import Estimate, estimate_speedup
from windtunnel.measure.turns import quiet
from windtunnel.measure.workers import WorkerError, Workers
from windtunnel.systems.kernels.cases import FITNESS, Case
from windtunnel.systems.kernels.edits import Individual, apply, key
from windtunnel.systems.kernels.model import Candidate, Evaluation, Kernel
from windtunnel.systems.kernels.worker import Order, Setup

__all__ = ["Bench", "Counts", "Timed"]

_PAIRS = 7
_GPU_ADDRESSES = 1 << 45  # a driver reserves addresses for all memory that it may ever map


@dataclass
class Counts:
    """Counts of outcomes.

    Attributes
    ----------
    kinds : dict of str to int
        Number of outcomes of candidates that were run, by kind.
    repeated : int
        The same set of edits as before.
    same_program : int
        Another set of edits, but after the compiler the same program as before; neither compiled on nor run.
    """

    kinds: dict[str, int] = field(default_factory=dict)
    repeated: int = 0
    same_program: int = 0


@dataclass(frozen=True)
class Timed:
    """A candidate that was timed against the original in a process of its own."""

    evaluation: Evaluation
    speedup: Estimate
    num_pairs: int


class Bench:
    """Processes that run candidates of one kernel. Use as a context manager.

    Parameters
    ----------
    kernel : Kernel
    tolerance : float
        The relative error that is still right; 0 asks for the same bits.
    num_workers : int, optional
        By default one per core, at most two; one where kernels run on a GPU.
    split : str
        Split of the test cases.
    limits : Limits, optional
    num_pairs : int
        Timings of a candidate on each case.
    checks : sequence of Case
        Where the answer has to be the same, too, but nothing is timed; results may be no numbers.

    Raises
    ------
    InputError
        The original fails its own tests: says which and how.
    """

    def __init__(
        self,
        kernel: Kernel,
        *,
        tolerance: float = 0.0,
        num_workers: int = 0,
        split: str = FITNESS,
        limits: Limits | None = None,
        num_pairs: int = _PAIRS,
        checks: Sequence[Case] = (),
    ) -> None:
        cores = usable_cores()
        self.kernel, self.tolerance, self.num_pairs = kernel, tolerance, num_pairs
        most = 1 if kernel.is_for_gpu else 2  # two processes would disturb each other on one device
        self._cores = cores[: num_workers or min(most, len(cores))]
        limits = limits or Limits()
        if kernel.is_for_gpu:
            limits = replace(limits, memory_bytes=_GPU_ADDRESSES)
        self._setup = Setup(kernel.function, kernel.raw, kernel.cases(split), limits, checks, kernel.is_for_gpu)
        self._workers: list[Workers] = []
        self._by_key: dict[str, Evaluation] = {}
        self._by_digest: dict[str, Evaluation] = {}
        self.counts = Counts()

    def __enter__(self) -> Bench:
        try:
            self._workers = [self._begin(core) for core in self._cores]
            self._greet(self._workers)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop all worker processes."""
        for workers in self._workers:
            workers.close()
        self._workers = []

    def _begin(self, core: int) -> Workers:
        # Workers are left to be closed by close(), which __exit__ calls
        workers = Workers(
            "windtunnel.systems.kernels.worker", self._setup, title="process that runs kernels", cores=[[core]]
        )
        return workers.__enter__()

    def _greet(self, workers: Iterable[Workers]) -> None:
        for worker in workers:
            reported = worker.receive()
            if isinstance(reported, WindtunnelError):
                raise reported
            self._by_digest.setdefault(reported, Evaluation("ok", 1.0, 0.0, is_exact=True, digest=reported))

    @property
    def workers(self) -> tuple[Workers, ...]:
        """The processes, in order; one that died has been begun anew."""
        return tuple(self._workers)

    @property
    def num_workers(self) -> int:
        """Number of candidates that run in parallel."""
        return len(self._cores)

    def evaluate(self, candidates: Sequence[Individual]) -> list[Evaluation]:
        """Return the evaluation of each candidate, in order; those not seen before are run."""
        keys = [key(item) for item in candidates]
        fresh: dict[str, Individual] = {}
        for name, candidate in zip(keys, candidates, strict=True):
            if name in self._by_key or name in fresh:
                self.counts.repeated += 1
            else:
                fresh[name] = candidate
        self._run(fresh)
        return [self._by_key[name] for name in keys]

    def again(self, candidates: Sequence[Individual], num_pairs: int) -> list[Evaluation]:
        """Run candidates again, cached ones too, with ``num_pairs`` timings each."""
        keys = [key(candidate) for candidate in candidates]
        kept = self._by_key, self.counts
        self._by_key, self.counts = {}, Counts()
        try:
            self._run(dict(zip(keys, candidates, strict=True)), num_pairs, is_forced=True)
            return [self._by_key[name] for name in keys]
        finally:
            self._by_key, self.counts = kept

    def _run(self, fresh: dict[str, Individual], num_pairs: int = 0, *, is_forced: bool = False) -> None:
        waiting = list(fresh.items())
        while waiting:
            sent: list[tuple[int, str]] = []
            for index in range(len(self._workers)):
                while waiting:
                    name, edits = waiting.pop(0)
                    try:
                        text = apply(self.kernel.function, edits).render()
                    except InputError as error:
                        self._count("unverifiable")
                        self._by_key[name] = Evaluation("unverifiable", detail=error.message)
                        continue
                    self._send(index, Order(text, self.tolerance, num_pairs or self.num_pairs, is_forced))
                    sent.append((index, name))
                    break
            for index, name in sent:
                self._by_key[name] = self._hear(index)

    def _send(self, index: int, order: Order) -> None:
        try:
            self._workers[index].send(order)
        except WorkerError:
            self._restart(index)
            self._workers[index].send(order)

    def _hear(self, index: int) -> Evaluation:
        """An answer; where the process itself died, which no candidate should reach, it begins anew."""
        try:
            kind, error, is_exact, detail, digest, times = self._workers[index].receive()
        except WorkerError as failure:
            self._restart(index)
            self._count("crash")
            return Evaluation("crash", detail=failure.message)
        if kind == "known":
            self.counts.same_program += 1
            return self._by_digest[digest]
        self._count(kind)
        result = _evaluation(kind, error, is_exact, detail, digest, times)
        if digest:
            self._by_digest.setdefault(digest, result)
        return result

    def _restart(self, index: int) -> None:
        self._workers[index].close()
        self._workers[index] = self._begin(self._cores[index])
        self._greet([self._workers[index]])

    def _count(self, kind: str) -> None:
        self.counts.kinds[kind] = self.counts.kinds.get(kind, 0) + 1

    def remember(self, candidates: Sequence[Candidate]) -> None:
        """Add the evaluations of an earlier search to the cache."""
        self._by_key.update({candidate.key: candidate.evaluation for candidate in candidates})

    def time(self, edits: Individual, num_pairs: int = 30, *, confidence: float = 0.95) -> Timed:
        """Compile a candidate again in a new process and time it against the original.

        Raises
        ------
        InputError
            An edit does not fit.
        """
        return self.time_module(apply(self.kernel.function, edits).render(), num_pairs, confidence=confidence)

    def time_module(self, text: str, num_pairs: int = 30, *, confidence: float = 0.95) -> Timed:
        """Time any module that has a function of this name and these parameters."""
        with contextlib.ExitStack() as stack:
            fresh = self._begin(self._cores[0])
            stack.callback(fresh.close)
            reported = fresh.receive()
            if isinstance(reported, WindtunnelError):
                raise reported
            fresh.send(Order(text, self.tolerance, num_pairs, is_forced=True))
            kind, error, is_exact, detail, digest, times = fresh.receive()
        result = _evaluation(kind, error, is_exact, detail, digest, times)
        if not times:
            return Timed(result, Estimate(math.nan, math.nan, math.nan), 0)
        # the same share of each case in every pair: a pair is a run of all cases, one after the other
        both = np.asarray(times, dtype=np.float64).sum(axis=0)  # [R, 2]
        return Timed(result, estimate_speedup(both[:, 0], both[:, 1], confidence=confidence), len(both))


def _evaluation(
    kind: str, error: float, is_exact: bool, detail: str, digest: str, times: Sequence[Sequence[Sequence[int]]]
) -> Evaluation:
    result = Evaluation(kind, error=error, is_exact=is_exact, detail=detail, digest=digest)
    if kind != "ok":
        return result
    quartiles = [(quiet([pair[0] for pair in case]), quiet([pair[1] for pair in case])) for case in times]
    ratio = float(np.mean([after / before for before, after in quartiles]))
    return replace(result, time_ratio=ratio, times_ns=tuple(quartiles))
