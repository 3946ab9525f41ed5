"""Cut a graph into contiguous stages so that the busiest device has least to do.

In: a ``Lattice``, what its nodes cost on each type of device and send to each other. Out: the least max-load for every
number of devices, and the stages that reach it. Exact over all contiguous cuts that the lattice holds; over a chain
of nodes it is the linearization heuristic (DPL). Not here: preprocessing, other objectives, bounds (``placement``).

The recurrence, over downsets I and vectors V of device counts, one entry per type:

    best[I, V] = min over J within I, an option o of max(load(I - J, o), best[J, V - devices(o)])

Placements, fleets and pipelines that train here are cut by it. Two planners are other problems, because what a stage
costs depends on the stages behind it: Piper's (``systems.pipelines.piper_kernels``) and PHAZE's
(``systems.chips.stage_kernels``). They walk the same lattice; each file states its recurrence.

Source: Tarnawski et al., NeurIPS 2020, sections 4 and 5; replicas after PipeDream (SOSP 2019).
"""

# N nodes, I downsets, G groups, T device types, O options (a type and how many replicas), V vectors of counts

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numba
import numpy as np
from numpy.typing import NDArray

from windtunnel.base.progress import Progress
from windtunnel.errors import InputError
from windtunnel.search import downset_kernels as kernels
from windtunnel.search.device_options import Options, options_of
from windtunnel.search.downsets import Lattice
from windtunnel.search.work import Groups, Work

__all__ = ["Combine", "Stage", "Table", "solve"]

Floats = NDArray[np.float64]
Combine = Literal["sum", "overlap", "duplex", "overlap-duplex"]
_COMBINES = {"sum": 0, "overlap": 1, "duplex": 2, "overlap-duplex": 3}
_SLACK = 1e-9  # relative: what sums of floats differ by
_WORTH_THREADS = 20_000  # pairs of a level


@dataclass(frozen=True)
class Stage:
    """One contiguous part of the graph.

    Parameters
    ----------
    kind : int
        Row of ``Work.types``.
    replicas : int
    nodes : int64 array
    """

    kind: int
    replicas: int
    nodes: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Table:
    """The program's table and what it was made from.

    Parameters
    ----------
    best_IV : float64 [I, V]
        Minimum max-load of a downset for each number of devices of each type, and where links differ for its last
        stage's type and the next one's, too; infinite where none fits.
    """

    lattice: Lattice
    work: Work
    combine: Combine
    best_IV: Floats
    entries: tuple[NDArray[Any], ...] = field(repr=False)

    @property
    def value(self) -> float:
        """Least max-load of the whole graph on all devices."""
        return float(self.best_IV[-1, self.options.last_V].min())

    @cached_property
    def options(self) -> Options:
        """Types with numbers of replicas."""
        return options_of(self.work.types, self.work.link_scale, is_summed=self.combine == "sum")

    def stages(self) -> list[Stage]:
        """Stages that reach the value, first to last.

        Every device type's stages may lie anywhere in the order. Among equal choices the first downset counts.
        """
        if not math.isfinite(self.value):
            return []
        index = self.lattice.num_downsets - 1
        vector = int(self.options.last_V[self.best_IV[-1, self.options.last_V].argmin()])
        result: list[Stage] = []
        while index:
            before, option, vector = self._step(index, vector)
            inside = self.lattice.members(index) & ~self.lattice.members(before)
            kind, replicas = int(self.options.kind_O[option]), int(self.options.replicas_O[option])
            result.insert(0, Stage(kind, replicas, np.flatnonzero(inside)))
            index = before
        return result

    def _step(self, downset: int, vector: int) -> tuple[int, int, int]:
        """The smaller downset, option and vector that this value comes from."""
        # The table stores values only; the choice behind a value is found again by evaluating all candidates
        # of this one state. That costs one row per stage, instead of an array as large as the table.
        inside_J, loads_JO = self.loads(downset)
        options = self.options
        best: tuple[float, int, int, int] = (math.inf, 0, 0, 0)
        for option in range(len(options.kind_O)):
            rows = slice(options.move_ptr[option], options.move_ptr[option + 1])
            reached = np.flatnonzero(options.move_to[rows] == vector)
            if not reached.size:
                continue
            source = int(options.move_from[rows][reached[0]])
            values_J = np.where(inside_J, np.maximum(self.best_IV[:downset, source], loads_JO[:, option]), math.inf)
            index = int(values_J.argmin())
            best = min(best, (float(values_J[index]), index, option, source))
        return best[1:]

    def loads(self, downset: int) -> tuple[NDArray[np.bool_], Floats]:
        """Which smaller downsets lie within one, bool [J], and what the difference loads each option with [J, O]."""
        lattice, work, options = self.lattice, self.work, self.options
        groups = _pack_groups(work.groups, is_merged=options.num_channels == 1)
        inside_J, comm_JC = np.zeros(downset + 1, np.bool_), np.zeros((downset + 1, options.num_channels))
        num_groups = len(work.groups.own_G)
        kernels.row(
            downset,
            lattice.words_IW,
            lattice.parent_I,
            lattice.added_I,
            groups,
            self.entries,
            inside_J,
            comm_JC,
            np.zeros(num_groups, np.int32),
            np.zeros(num_groups, np.bool_),
        )
        sums = _sums(lattice, work)
        loads_JO = np.empty((downset, len(options.kind_O)))
        for option, (kind, replicas, sync) in enumerate(
            zip(options.kind_O, options.replicas_O, options.sync_O, strict=True)
        ):
            # one downset contains the other, so a sum over their difference is the difference of their sums
            compute_J = sums["compute_IT"][downset, kind] - sums["compute_IT"][:downset, kind]
            loads = _combine_costs(compute_J, comm_JC[:downset] * options.scale_OC[option], self.combine) / replicas
            loads += sync * (sums["weights_I"][downset] - sums["weights_I"][:downset])
            is_out = sums["memory_I"][downset] - sums["memory_I"][:downset] > work.types[kind].memory_bytes * (
                1 + _SLACK
            )
            is_out |= sums["barred_IT"][downset, kind] != sums["barred_IT"][:downset, kind]
            loads_JO[:, option] = np.where(is_out, math.inf, loads)
        return inside_J[:downset], loads_JO


def _combine_costs(compute: Floats, comm_JC: Floats, combine: Combine) -> Any:
    if combine == "sum":
        return compute + comm_JC.sum(axis=1)
    sent = comm_JC[:, kernels.OUT_FORWARD] + comm_JC[:, kernels.OUT_BACKWARD]
    received = comm_JC[:, kernels.IN_FORWARD] + comm_JC[:, kernels.IN_BACKWARD]
    comm = np.maximum(sent, received) if "duplex" in combine else sent + received
    return compute + comm if combine == "duplex" else np.maximum(compute, comm)


def solve(
    lattice: Lattice,
    work: Work,
    *,
    combine: Combine = "sum",
    upper: float = math.inf,
    progress: Progress | None = None,
) -> Table:
    """The least max-load over all contiguous cuts.

    Where links differ, each transfer is taken to come from the stage before or to go to the one behind; for other
    transfers the value is an estimate, to be evaluated anew.

    Parameters
    ----------
    lattice : Lattice
    work : Work
    combine : str
        Load of a device: compute plus all transfers, or the larger of the two (``overlap``), with what is sent and
        received at once (``duplex``), or both.
    upper : float
        A value that is known to be reachable: pairs above it are left out without losing the optimum.
    progress : callable, optional
        Called with (what, done, total).

    Raises
    ------
    InputError
        There is no device, or an unknown way to combine.
    """
    if combine not in _COMBINES:
        raise InputError(f"loads cannot be combined by {combine!r}", where="combine", fix=", ".join(_COMBINES))
    if not sum(type_.count for type_ in work.types):
        raise InputError("there are no devices", where="devices", fix="one accelerator or CPU at least")
    # Levels are solved by size: everything within a downset is smaller, hence final when it is read.
    options = options_of(work.types, work.link_scale, is_summed=combine == "sum")
    entries = _entries(lattice, work.groups)
    groups = _pack_groups(work.groups, is_merged=options.num_channels == 1)
    best_IV = np.full((lattice.num_downsets, options.num_vectors), math.inf)
    best_IV[0] = 0.0
    sums = _sums(lattice, work)
    limits = np.array([type_.memory_bytes * (1 + _SLACK) for type_ in work.types])
    common = (
        best_IV,
        lattice.words_IW,
        lattice.parent_I,
        lattice.added_I,
        groups,
        entries,
        sums["compute_IT"],
        sums["memory_I"],
        sums["weights_I"],
        sums["barred_IT"],
        limits,
        options.kind_O,
        options.replicas_O,
        options.sync_O,
        options.scale_OC,
        options.move_ptr,
        options.move_to,
        options.move_from,
        _COMBINES[combine],
        upper * (1 + _SLACK),
    )
    num_threads = numba.get_num_threads()
    for size in range(1, lattice.num_nodes + 1):
        first, last = int(lattice.level_ptr[size]), int(lattice.level_ptr[size + 1])
        if (last - first) * last < _WORTH_THREADS:  # threads that wait for each other cost more than they bring
            kernels.level_part(0, 1, first, last, *common)
        else:
            kernels.level(num_threads, first, last, *common)
        if progress is not None:
            progress("placing", size, lattice.num_nodes)
    return Table(lattice, work, combine, best_IV, entries)


def _sums(lattice: Lattice, work: Work) -> dict[str, NDArray[Any]]:
    return {
        "compute_IT": lattice.sums(work.compute_NT),
        "memory_I": lattice.sums(work.memory_N),
        "weights_I": lattice.sums(work.weights_N),
        "barred_IT": lattice.sums(work.barred_NT),
    }


def _pack_groups(groups: Groups, *, is_merged: bool) -> tuple[NDArray[Any], ...]:
    """Groups as the kernels take them, each with its channels; all share one where costs are only added."""
    backward = groups.is_backward_G.astype(np.int64)
    out = kernels.OUT_FORWARD + 2 * backward
    into = kernels.IN_FORWARD + 2 * backward
    if is_merged:
        out, into = np.zeros_like(out), np.zeros_like(into)
    return (
        groups.own_G,
        groups.num_targets,
        groups.target_ptr,
        groups.targets,
        groups.cost_G,
        out,
        into,
    )


def _entries(lattice: Lattice, groups: Groups) -> tuple[NDArray[Any], ...]:
    """For each downset, the groups that its last node is part of: how many of a group's targets its parent holds."""
    # groups by node, flattened: node n has entries ptr_N[n] .. ptr_N[n + 1]
    touching: list[list[tuple[int, bool]]] = [[] for _ in range(lattice.num_nodes)]
    for group, own in enumerate(groups.own_G.tolist()):
        touching[own].append((group, True))
        for target in groups.targets[groups.target_ptr[group] : groups.target_ptr[group + 1]].tolist():
            touching[target].append((group, False))
    ptr_N = np.concatenate([[0], np.cumsum([len(item) for item in touching])]).astype(np.int64)
    flat = [pair for item in touching for pair in item]
    group_X = np.array([pair[0] for pair in flat], np.int32)
    is_own_X = np.array([pair[1] for pair in flat], np.bool_)
    return tuple(
        kernels.entries_of(
            lattice.words_IW,
            lattice.parent_I,
            lattice.added_I,
            ptr_N,
            group_X,
            is_own_X,
            groups.own_G,
            groups.target_ptr,
            groups.targets,
        )
    )
