"""PipeDream's planner: a profile cut into replicated stages, level by level of a machine's topology.

In: a profile of layers, or any graph of them, and the levels of a topology. Out: ``StagePlan``: which layers form a
stage, on how many machines, and the time per stage. The planner's states are the downsets of the layer graph.
Not here: reading profiles (``pipedream_profile``).

Source: PipeDream (Narayanan et al., SOSP 2019), section 3.1 and its released planner, whose ties are kept.
"""

# N layers, I states (downsets), m machines of a level, q machines of the levels inside of it

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.peers.pipedream_profile import Profile
from benchmarks.peers.pipedream_tables import Level, LevelTable, States
from windtunnel.errors import InfeasibleError, InputError
from windtunnel.search.downsets import downsets

__all__ = ["Level", "PipeStage", "StagePlan", "plan_stages"]


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

    Raises
    ------
    InputError
        No level, or one without machines or bandwidth.
    GraphError
        The layers have a cycle.
    InfeasibleError
        No plan fits into memory.
    """
    if not levels or any(one.num_machines < 1 or one.bandwidth_bytes_per_s <= 0 for one in levels):
        raise InputError("every level needs machines and a bandwidth", where="levels", fix="(4, 1e9), innermost first")
    lattice = downsets(profile.num_layers, profile.src, profile.dst)
    states = States.of(profile, lattice)
    time_II, num_inside = states.time_II, 1
    tables: list[LevelTable] = []
    for depth, level in enumerate(levels):
        is_last = depth == len(levels) - 1
        table = LevelTable.of(
            states, time_II, level, num_inside, every_start=not is_last, is_straight=is_straight,
            compression=compression, memory_bytes=memory_bytes,
        )  # fmt: skip
        tables.append(table)
        time_II = table.best_IIM[:, :, level.num_machines] if not is_last else time_II
        num_inside = level.num_machines
    return _plan(states, profile, tables, levels, may_idle=may_idle)


def _plan(
    states: States, profile: Profile, tables: Sequence[LevelTable], levels: Sequence[Level], *, may_idle: bool
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
    states: States,
    profile: Profile,
    tables: Sequence[LevelTable],
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
