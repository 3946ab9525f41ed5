"""Replay again after a few durations changed.

In: a graph whose order is fixed by edges, then changes of durations. Out: the new makespan at once; the new timeline if
asked for. Exactly what a full replay would say, at a cost that grows with what moved and not with the graph.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from windtunnel.errors import InputError
from windtunnel.graph import Graph
from windtunnel.simulate.arrays import Ints, check_span, fixed_order, has_fixed_order, task_durations
from windtunnel.simulate.static_engine import BLOCK, block_maxima, incremental_pass, static_pass
from windtunnel.simulate.timeline import Timeline

__all__ = ["Incremental"]


class Incremental:
    """A replay that follows changes of durations.

    The one thing of this room that changes in place: a stream of small changes (a running job, a search) would
    otherwise copy a graph per change.

    Parameters
    ----------
    graph : Graph
        Edges alone must decide the order on every contended resource.

    Raises
    ------
    InputError
        The order has to be decided at run time: use :func:`windtunnel.simulate.replay` again instead.

    Examples
    --------
    >>> from windtunnel.graph import GraphBuilder
    >>> builder = GraphBuilder()
    >>> load, step = builder.task("load", duration_ns=10), builder.task("step", duration_ns=20)
    >>> builder.edge(load, step)
    >>> session = Incremental(builder.build())
    >>> session.update([load], [15])
    35
    """

    def __init__(self, graph: Graph) -> None:
        program = fixed_order(graph)
        if not has_fixed_order(graph, program):
            raise InputError(
                "the order of tasks on some resource is not fixed by edges",
                fix="replay the whole graph, or add ORDER edges",
            )
        check_span(graph, task_durations(graph))
        self.graph = graph
        self._program = program
        self._position = np.empty_like(program.order)
        self._position[program.order] = np.arange(len(program.order), dtype=np.int32)
        self._out_indptr, self._target = _outgoing(program.indptr, program.source)
        self._duration = task_durations(graph)[program.order]
        self._finish = np.empty_like(self._duration)
        static_pass(program.indptr, program.source, program.lag, self._duration, program.earliest, self._finish)
        self._maxima = np.zeros(-(-len(self._finish) // BLOCK), dtype=np.int64)
        block_maxima(self._finish, self._maxima)
        self._pending = np.zeros(-(-len(self._finish) // 64), dtype=np.uint64)

    @property
    def makespan_ns(self) -> int:
        """When the last task ends now."""
        return int(self._maxima.max(initial=0))

    def update(self, rows: ArrayLike, duration_ns: ArrayLike) -> int:
        """Set the durations of some tasks; returns the new makespan.

        Parameters
        ----------
        rows : int [N]
            Distinct tasks.
        duration_ns : int64 [N]

        Raises
        ------
        InputError
            A duration is negative, or the two do not match.
        """
        tasks = np.atleast_1d(np.asarray(rows)).astype(np.int64)
        new = np.atleast_1d(np.asarray(duration_ns)).astype(np.int64)
        if tasks.shape != new.shape or (new < 0).any():
            raise InputError("every changed task needs one duration of 0 ns or more", where=f"{tasks.shape} tasks")
        program = self._program
        incremental_pass(
            program.indptr, program.source, program.lag, program.earliest, self._out_indptr, self._target,
            self._duration, self._finish, self._maxima, self._pending, self._position[tasks], new,
        )  # fmt: skip
        return self.makespan_ns

    def timeline(self) -> Timeline:
        """The timeline as it is now; it does not follow later updates."""
        order = self._program.order
        duration, finish = np.empty_like(self._duration), np.empty_like(self._finish)
        duration[order], finish[order] = self._duration, self._finish
        graph = self.graph.with_columns(duration_ns=duration)
        return Timeline(graph=graph, start_ns=finish - duration, finish_ns=finish, sequence=order, engine="static")


@njit(cache=True, nogil=True)
def _outgoing(indptr: Ints, source: Ints) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Turn incoming edges around: for each position the positions that wait for it."""
    num_tasks = indptr.size - 1
    out_indptr = np.zeros(num_tasks + 1, dtype=np.int64)
    for e in range(source.size):
        u = source[e]
        out_indptr[(u if u >= 0 else ~u) + 1] += 1
    for v in range(num_tasks):
        out_indptr[v + 1] += out_indptr[v]
    fill = out_indptr[:-1].copy()
    target = np.empty(source.size, dtype=np.int32)
    for v in range(num_tasks):
        for e in range(indptr[v], indptr[v + 1]):
            u = source[e]
            u = u if u >= 0 else ~u
            target[fill[u]] = v
            fill[u] += 1
    return out_indptr, target
