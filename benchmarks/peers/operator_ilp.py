"""A layer's operators scheduled by the published integer programme.

In: ``Operations``, cycles, cores. Out: a ``Schedule`` within a gap of the best, replayed from what the solver chose.
Cores are no part of the programme until a schedule uses too many: first it is solved without, then with those of the
types that were short. Not here: HiGHS itself (``search.integer``).

Source: PHAZE (Wang et al., ICML 2024), section 4.2.
"""

# N operators; x[i, j]: i ends before j starts; y[i]: i is spread over all cores; z[i, c]: i runs on core c

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import combinations, permutations

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.operator_schedules import (
    GAP,
    TIME_LIMIT_S,
    Cores,
    Schedule,
    checked_cycles,
    is_beside,
    list_schedule,
    replayed,
)
from windtunnel.search.integer import Model
from windtunnel.systems.chips.operations import FUSED, TENSOR, VECTOR, Operations

__all__ = ["integer_schedule"]

Ints = NDArray[np.int64]
_ROUNDING = 1e-6


def integer_schedule(
    operations: Operations,
    single_N: Ints,
    spread_N: Ints,
    cores: Cores,
    *,
    gap: float = GAP,
    time_limit_s: float = TIME_LIMIT_S,
) -> Schedule:
    """The shortest schedule that the solver finds, at least as good as the best list schedule.

    Parameters
    ----------
    operations : Operations
    single_N, spread_N : int64 [N]
        Cycles on one core and on all.
    cores : Cores
    gap, time_limit_s : float
        Where the solver ends, of each of at most three programmes.

    Raises
    ------
    InputError
        Cycles are no whole numbers from 0 on.
    """
    single_N, spread_N = checked_cycles(operations, single_N, spread_N)
    known = list_schedule(operations, single_N, spread_N, cores)
    limited: set[int] = set()
    while not known.is_optimal:
        programme = _Programme(operations, single_N, spread_N, cores, known.cycles, limited)
        found, promised, bound = programme.solved(gap, time_limit_s)
        if found is None:
            return replace(known, bound_cycles=max(known.bound_cycles, bound))
        short = {int(kind) for kind in operations.kind_N[found.unplaced]}
        if found.cycles > promised and limited < {TENSOR, VECTOR}:
            short.add(FUSED)  # a pair waits for a core of the type that is no part of the programme yet
        if not short:
            best = min(known, found, key=lambda one: one.cycles)
            return replace(best, bound_cycles=min(best.cycles, max(bound, known.bound_cycles)))
        limited |= {TENSOR, VECTOR} if FUSED in short else short
    return known


@dataclass
class _Programme:
    operations: Operations
    single_N: Ints
    spread_N: Ints
    cores: Cores
    horizon: int
    limited: set[int]
    model: Model = field(default_factory=Model)
    ordered: dict[tuple[int, int], int] = field(default_factory=dict)
    core: dict[tuple[int, int], int] = field(default_factory=dict)

    def solved(self, gap: float, time_limit_s: float) -> tuple[Schedule | None, int, int]:
        """A schedule, if the solver finds one, in which operators of types that are not limited may lack a core.

        With it how many cycles it was to take, and that none can take fewer than so many.
        """
        num = len(self.operations)
        total = self.model.column(0.0, 1.0, cost=1.0)  # in parts of the horizon: large factors make solvers careless
        start = [self.model.column(0.0, 1.0) for _ in range(num)]
        spread = [self.model.choice() for _ in range(num)]
        self._times(total, start, spread)
        self._orders(spread)
        self._places(spread)
        found = self.model.solve(gap=gap, time_limit_s=time_limit_s)
        bound = int(np.ceil((found.bound - _ROUNDING) * self.horizon)) if found.bound > 0 else 0
        values = found.values
        if values is None:
            return None, self.horizon, bound
        is_spread_N = values[spread] > 0.5
        core_N = np.full(num, -1, np.int64)
        for (node, number), column in self.core.items():
            if values[column] > 0.5:
                core_N[node] = number
        depth_N = self.operations.is_before.sum(axis=0)  # equal starts: who is waited for goes first
        order = sorted(range(num), key=lambda node: (round(values[start[node]], 9), depth_N[node]))
        order = sorted(order, key=lambda node: depth_N[node]) if self._is_broken(order) else order
        given = (self.operations, self.single_N, self.spread_N, self.cores, order, is_spread_N, core_N)
        return replayed(*given), int(np.rint(values[total] * self.horizon)), bound

    def _is_broken(self, order: list[int]) -> bool:
        place = np.argsort(order)
        return bool((place[self.operations.src] > place[self.operations.dst]).any())

    def _times(self, total: int, start: list[int], spread: list[int]) -> None:
        """Ends, and who starts after whose end."""
        num, horizon = len(start), float(self.horizon)
        single, spread_time = self.single_N / horizon, self.spread_N / horizon
        before, beside = self.operations.is_before, is_beside(self.operations)
        for node in range(num):
            change = spread_time[node] - single[node]
            self.model.row({total: 1.0, start[node]: -1.0, spread[node]: -change}, low=single[node])
        for a, b in permutations(range(num), 2):
            change = spread_time[a] - single[a]
            terms = {start[b]: 1.0, start[a]: -1.0, spread[a]: -change}
            if before[a, b]:
                self.model.row(terms, low=single[a])
            elif beside[a, b]:
                self.ordered[a, b] = self.model.choice()
                self.model.row({**terms, self.ordered[a, b]: -1.0}, low=single[a] - 1.0)

    def _orders(self, spread: list[int]) -> None:
        """At most one of two goes first, one of them if either is spread; whoever is before is so throughout."""
        for a, b in combinations(range(len(spread)), 2):
            if (a, b) in self.ordered:
                pair = {self.ordered[a, b]: 1.0, self.ordered[b, a]: 1.0}
                self.model.row(pair, high=1.0)
                self.model.row({**pair, spread[a]: -1.0}, low=0.0)
                self.model.row({**pair, spread[b]: -1.0}, low=0.0)
        before = self.operations.is_before
        for a, c in self.ordered:
            for b in range(len(spread)):
                if b in (a, c) or before[b, a] or before[c, b]:
                    continue  # b cannot lie between them
                terms, low = {self.ordered[a, c]: 1.0}, -1.0
                for two in ((a, b), (b, c)):
                    if two in self.ordered:
                        terms[self.ordered[two]] = -1.0
                    else:
                        low += 1.0
                self.model.row(terms, low=low)

    def _places(self, spread: list[int]) -> None:
        """Every operator of a limited type has a core; two on one core are ordered."""
        kinds = self.operations.kind_N.tolist()
        chosen = [node for node, kind in enumerate(kinds) if self.limited and kind in (*self.limited, FUSED)]
        for node in chosen:
            numbers = range(min(self.cores.of(kinds[node]), len(kinds)))
            columns = [self.model.choice() for _ in numbers]
            self.core |= {(node, number): column for number, column in zip(numbers, columns, strict=True)}
            self.model.row({**dict.fromkeys(columns, 1.0), spread[node]: 1.0}, low=1.0, high=1.0)
        for a, b in combinations(chosen, 2):
            if (a, b) not in self.ordered or not (kinds[a] == kinds[b] or FUSED in (kinds[a], kinds[b])):
                continue
            for number in range(len(kinds)):
                if (a, number) in self.core and (b, number) in self.core:
                    terms = {self.ordered[a, b]: 1.0, self.ordered[b, a]: 1.0}
                    terms |= {self.core[a, number]: -1.0, self.core[b, number]: -1.0}
                    self.model.row(terms, low=-1.0)
