"""PipeDream's planner (room planning): a profile cut into replicated stages, level by level of a machine's topology.

In: a profile of layers, or any graph of them, and the levels of a topology. Out: ``StagePlan``: which layers form a
stage, on how many machines, and the time per stage. The planner's states are the downsets of the layer graph, so that
joins cost what they cost here and not a search of hours. Not here: reading profiles
(``profile``), running a pipeline.

Source: PipeDream (Narayanan et al., SOSP 2019), section 3.1 and its released planner, whose ties are kept.
"""

# N layers, I states (downsets), m machines of a level, q machines of the levels inside of it

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import GraphError, InfeasibleError, InputError
from windtunnel.planning import _downset_kernels as kernels
from windtunnel.planning.downsets import CAP, Lattice, downsets
from windtunnel.planning.pipelines.profile import Profile

__all__ = ["Level", "PipeStage", "StagePlan", "plan_stages", "stages_time_s"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Level:
    """Machines that are joined by equal links.

    Parameters
    ----------
    num_machines : int
    bandwidth_bytes_per_s : float
    """

    num_machines: int
    bandwidth_bytes_per_s: float


@dataclass(frozen=True)
class PipeStage:
    """Layers that run together.

    Parameters
    ----------
    first, last : int
        States: the stage is what downset ``last`` has more than downset ``first``.
    replicas : int
        Machines of the level.
    layers : tuple of str
    """

    first: int
    last: int
    replicas: int
    layers: tuple[str, ...]


@dataclass(frozen=True)
class StagePlan:
    """Stages of the outermost level.

    Parameters
    ----------
    stages : tuple of PipeStage
        First to last.
    time_s : float
        Of the slowest stage, per minibatch.
    single_s, data_parallel_s : float
        On one machine; on all of them with every layer on each.
    inner : tuple of StagePlan
        Of each stage, how the machines inside of one of its machines share it; empty at the innermost level.
    """

    stages: tuple[PipeStage, ...]
    time_s: float
    single_s: float
    data_parallel_s: float
    inner: tuple[StagePlan, ...] = ()

    @property
    def speedup(self) -> float:
        """Over one machine."""
        return self.single_s / self.time_s

    @property
    def speedup_over_data_parallel(self) -> float:
        """Over all machines with every layer on each."""
        return self.data_parallel_s / self.time_s


def plan_stages(
    profile: Profile,
    levels: Sequence[Level],
    *,
    is_straight: bool = False,
    may_idle: bool = False,
    compression: float | None = None,
    memory_bytes: float | None = None,
    cap: int = CAP,
) -> StagePlan:
    """Cut a profile into replicated stages.

    Parameters
    ----------
    profile : Profile
    levels : sequence of Level
        Innermost first.
    is_straight : bool
        One machine per stage.
    may_idle : bool
        Machines may stay unused.
    compression : float, optional
        Transfers between stages count, divided by this; without it they are hidden behind compute.
    memory_bytes : float, optional
        Of a machine: first and last stages must fit with all the versions that they keep.
    cap : int
        At most so many states.

    Raises
    ------
    InputError
        No level, or one without machines or bandwidth.
    GraphError
        The layers have a cycle.
    InfeasibleError
        No plan fits into memory.
    TooManyDownsets
        There are more states than the cap.
    """
    if not levels or any(one.num_machines < 1 or one.bandwidth_bytes_per_s <= 0 for one in levels):
        raise InputError("every level needs machines and a bandwidth", where="levels", fix="(4, 1e9), innermost first")
    lattice = downsets(profile.num_layers, profile.src, profile.dst, cap=cap)
    states = _States.of(profile, lattice)
    time_II, num_inside = states.time_II, 1
    tables: list[_LevelTable] = []
    for depth, level in enumerate(levels):
        is_last = depth == len(levels) - 1
        table = _LevelTable.of(
            states, time_II, level, num_inside, every_start=not is_last, is_straight=is_straight,
            compression=compression, memory_bytes=memory_bytes,
        )  # fmt: skip
        tables.append(table)
        time_II = table.best_IIM[:, :, level.num_machines] if not is_last else time_II
        num_inside = level.num_machines
    return _plan(states, profile, tables, levels, may_idle=may_idle)


def stages_time_s(
    profile: Profile,
    levels: Sequence[Level],
    stages: Sequence[tuple[int, int, int]],
    *,
    is_straight: bool = False,
    compression: float | None = None,
    cap: int = CAP,
) -> float:
    """What given stages of the outermost level take, by the planner's own formulas.

    Parameters
    ----------
    stages : sequence of (first, last, replicas)
        States as in ``PipeStage``, first to last.
    profile, levels, is_straight, compression, cap
        As in ``plan_stages``, whose errors this raises, too.
    """
    lattice = downsets(profile.num_layers, profile.src, profile.dst, cap=cap)
    states = _States.of(profile, lattice)
    time_II, inside = states.time_II, 1
    for level in levels[:-1]:
        table = _LevelTable.of(states, time_II, level, inside, every_start=True, is_straight=is_straight,
                               compression=compression, memory_bytes=None)  # fmt: skip
        time_II, inside = table.best_IIM[:, :, level.num_machines], level.num_machines
    bandwidth, worst = levels[-1].bandwidth_bytes_per_s, 0.0
    for first, last, replicas in stages:
        shared = inside if first == 0 else 1  # as released: only a first stage synchronizes inside of machines too
        sync = 4.0 * (replicas - 1) * states.weights_II[first, last] / (bandwidth * replicas * shared)
        worst = max(worst, float(time_II[first, last] + sync) / replicas)
        if compression is not None and first > 0:
            ends = [first] if last == lattice.num_downsets - 1 else [first, last]
            worst = max(worst, *(2.0 * float(states.out_I[end]) / (bandwidth * replicas) / compression for end in ends))
    return worst


@dataclass(frozen=True, eq=False)
class _States:
    """Downsets with what lies between any two that are nested.

    Parameters
    ----------
    inside_II : bool [I, I]
        Whether the first is a proper part of the second.
    time_II, weights_II, activations_II : float64 [I, I]
        Of the difference.
    out_I : float64 [I]
        Bytes that later layers read from a downset, or that it ends with.
    """

    lattice: Lattice
    inside_II: NDArray[np.bool_]
    time_II: Floats
    weights_II: Floats
    activations_II: Floats
    out_I: Floats

    @classmethod
    def of(cls, profile: Profile, lattice: Lattice) -> _States:
        num = lattice.num_downsets
        if num * num > 4e8:
            raise GraphError(f"{num:,} states are too many for a table of pairs", fix="fewer branches, or a lower cap")
        totals = lattice.sums(
            np.stack([profile.forward_s + profile.backward_s, profile.parameter_bytes, profile.activation_bytes], 1)
        )
        between = totals[None] - totals[:, None]
        members = np.stack([lattice.members(one) for one in range(num)])
        out = _outputs(profile, members)
        inside = kernels.nesting(lattice.words_IW, lattice.parent_I, lattice.added_I)
        return cls(lattice, inside, between[:, :, 0], between[:, :, 1], between[:, :, 2], out)


def _outputs(profile: Profile, members_IN: NDArray[np.bool_]) -> Floats:
    """Bytes that leave each state as the released planner counts them [I].

    Its last layers, and whatever lies before one of them and is read by a layer that does not: also by one that lies
    before another of the last layers, which is inside as well.
    """
    num = profile.num_layers
    reads = np.zeros((num, num), bool)
    reads[profile.src, profile.dst] = True
    before = reads.copy()  # before[a, b]: a comes before b
    for node in range(num):
        before[before[:, node]] |= before[node]
    inside = before | np.eye(num, dtype=bool)
    needed = reads.astype(np.float32) @ (~inside).astype(np.float32) > 0  # a has a reader that is not before b, nor b
    beside = before & needed
    is_last = members_IN & (members_IN.astype(np.float32) @ reads.T.astype(np.float32) == 0)
    extra = is_last.astype(np.float32) @ beside.T.astype(np.float32) > 0
    found: Floats = ((is_last | extra) * profile.activation_bytes).sum(axis=1)
    return found


@dataclass(frozen=True, eq=False)
class _LevelTable:
    """Best time per stage from one state to another with so many machines, and the last stage of it.

    Parameters
    ----------
    best_IIM : float64 [starts, I, M + 1]
    split_IIM, replicas_IIM : int32
        State before the last stage, -1 where there is one stage only; machines of the last stage.
    """

    best_IIM: Floats
    split_IIM: NDArray[np.int32]
    replicas_IIM: NDArray[np.int32]

    @classmethod
    def of(
        cls,
        states: _States,
        time_II: Floats,
        level: Level,
        num_inside: int,
        *,
        every_start: bool,
        is_straight: bool,
        compression: float | None,
        memory_bytes: float | None,
    ) -> _LevelTable:
        starts = states.lattice.num_downsets if every_start else 1
        return cls(
            *_fill(
                starts,
                states.inside_II,
                np.ascontiguousarray(time_II),
                states.weights_II,
                states.activations_II,
                states.out_I,
                level.num_machines,
                level.bandwidth_bytes_per_s,
                num_inside,
                is_straight,
                math.inf if compression is None else compression,
                math.inf if memory_bytes is None else memory_bytes,
            )
        )


@numba.njit(cache=True)
def _fill(starts: int, inside_II: Any, time_II: Any, weights_II: Any, activations_II: Any, out_I: Any,
          num_machines: int, bandwidth: float, num_inside: int, is_straight: bool, compression: float,
          memory: float) -> Any:  # fmt: skip
    num = inside_II.shape[0]
    best = np.full((starts, num, num_machines + 1), np.inf)
    split = np.full((starts, num, num_machines + 1), -1, np.int32)
    replicas = np.zeros((starts, num, num_machines + 1), np.int32)
    for i in range(starts):
        for j in range(i + 1, num):
            if not inside_II[i, j]:
                continue
            for r in range(1, num_machines + 1):
                if is_straight and r > 1:
                    break
                held = math.ceil((num_machines - r) / r) * (activations_II[i, j] + weights_II[i, j])
                if memory < np.inf and held > memory:
                    continue
                sync = 4.0 * (r - 1) * weights_II[i, j] / (bandwidth * r * num_inside)
                best[i, j, r] = (time_II[i, j] + sync) / r
                replicas[i, j, r] = r
        for j in range(i + 1, num):
            if not inside_II[i, j]:
                continue
            for used in range(2, num_machines + 1):
                for k in range(i + 1, j):
                    if not (inside_II[i, k] and inside_II[k, j]):
                        continue
                    for r in range(1, 2 if is_straight else used):
                        held = math.ceil((num_machines - used) / r) * (activations_II[k, j] + weights_II[k, j])
                        if memory < np.inf and held > memory:
                            continue
                        last = (time_II[k, j] + 4.0 * (r - 1) * weights_II[k, j] / (bandwidth * r)) / r
                        value = max(best[i, k, used - r], last)
                        if compression < np.inf:
                            value = max(value, 2.0 * out_I[k] / (bandwidth * r) / compression)
                            if j < num - 1:
                                value = max(value, 2.0 * out_I[j] / (bandwidth * r) / compression)
                        if value < best[i, j, used]:
                            best[i, j, used], split[i, j, used], replicas[i, j, used] = value, k, r
    return best, split, replicas


def _plan(
    states: _States, profile: Profile, tables: Sequence[_LevelTable], levels: Sequence[Level], *, may_idle: bool
) -> StagePlan:
    last = states.lattice.num_downsets - 1
    single_s = float(states.time_II[0, last])
    parallel_s, inside = single_s, 1
    for level in levels:
        m = level.num_machines
        sync = 4.0 * (m - 1) * states.weights_II[0, last] / (level.bandwidth_bytes_per_s * m * inside)
        parallel_s, inside = (parallel_s + sync) / m, m
    return _staged(states, profile, tables, levels, 0, last, single_s, parallel_s, may_idle=may_idle)


def _staged(
    states: _States,
    profile: Profile,
    tables: Sequence[_LevelTable],
    levels: Sequence[Level],
    first: int,
    last: int,
    single_s: float,
    parallel_s: float,
    *,
    may_idle: bool = False,
) -> StagePlan:
    """The stages of the outermost of some levels between two states, and of those inside of each."""
    table, most = tables[-1], levels[-1].num_machines
    row = table.best_IIM[first, last]
    used = int(row.argmin()) if may_idle else most
    if not math.isfinite(row[used]):
        raise InfeasibleError("no plan fits into the memory of a machine", where=f"{most} machines", fix="more memory")
    stages: list[PipeStage] = []
    at, left = last, used
    while at != first:
        before, replicas = int(table.split_IIM[first, at, left]), int(table.replicas_IIM[first, at, left])
        begin = first if before < 0 else before
        inside = states.lattice.members(at) & ~states.lattice.members(begin)
        stages.insert(0, PipeStage(begin, at, replicas, tuple(profile.names[n] for n in np.flatnonzero(inside))))
        at, left = begin, left - replicas
    inner = tuple(
        _staged(states, profile, tables[:-1], levels[:-1], one.first, one.last,
                float(states.time_II[one.first, one.last]), math.nan)
        for one in stages
    ) if len(tables) > 1 else ()  # fmt: skip
    return StagePlan(tuple(stages), float(row[used]), single_s, parallel_s, inner)
