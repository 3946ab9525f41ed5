"""Stages of a pipeline with tensor and data degrees, with or without recomputing.

In: layers split over every tensor degree, times of each, devices, memory, a link. Out: a ``StagePlan``: the stages, the
degree of each, how many pipelines, and the time of a batch, which no other such plan beats. Layers may branch: a stage
is what lies between two sets of layers that are closed under successors, counted from the last one. Not here: where
times come from (``model``), which chip (``search``).

Source: PHAZE (Wang et al., ICML 2024), section 4.3. A device waits for all that enters its stage, one transfer after
the other; over a chain that is what is published.
"""

# L layers, T tensor degrees, I downsets, Q pairs of nested ones

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.collective import SYNC_RATIOS, ring_ratio
from windtunnel.errors import InfeasibleError, InputError
from windtunnel.search import downset_kernels as lattice_kernels
from windtunnel.search.downsets import Lattice, downsets
from windtunnel.systems.chips import stage_kernels as kernels
from windtunnel.units import format_size

__all__ = ["Job", "MemoryModel", "Network", "PlannedStage", "StagePlan", "Stages"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MemoryModel = Literal["alive", "sum"]
_MAX_PAIRS = 4_000_000
_MAX_DOWNSETS = 40_000
_SLACK = 1e-9


@dataclass(frozen=True, eq=False)
class Network:
    """Layers by tensor degree.

    Parameters
    ----------
    names : tuple of str
    degrees : tuple of int
    src, dst : int64 [E]
        Which layer reads from which.
    sent_bytes_ET : float64 [E, T]
        An output that several layers read is several edges; a stage that several of them lie in receives it as often.
    param_bytes_LT, kept_bytes_LT, written_bytes_LT, extra_bytes_LT : float64 [L, T]
        Of one microbatch: see ``layers.Layer``.
    is_split_L : bool [L]
        Whether a layer is split over tensor ranks; a stage without such a layer takes one device at any degree.
    """

    names: tuple[str, ...]
    degrees: tuple[int, ...]
    src: Ints
    dst: Ints
    sent_bytes_ET: Floats
    param_bytes_LT: Floats
    kept_bytes_LT: Floats
    written_bytes_LT: Floats
    extra_bytes_LT: Floats
    is_split_L: NDArray[np.bool_]


@dataclass(frozen=True)
class Job:
    """On what, and how, the network is trained.

    Parameters
    ----------
    num_devices : int
    memory_bytes : float
        Memory of each device.
    bandwidth_bytes_per_s : float
        Bandwidth of a device's link.
    num_microbatches : int
        Microbatches of a batch over all pipelines.
    copies : int
        Of the parameters: themselves, gradients, with Adam its states.
    is_recomputed : bool
        Whether a forward pass is run again for its backward pass, and only what enters a stage is kept.
    memory_model : str
        ``alive``: what is really kept at once; ``sum``: all outputs of all operators, as published.
    """

    num_devices: int = 1024
    memory_bytes: float = 80 * 2.0**30
    bandwidth_bytes_per_s: float = 4 * 2.0**30
    num_microbatches: int = 4096
    copies: int = 2
    is_recomputed: bool = False
    memory_model: MemoryModel = "alive"

    def __post_init__(self) -> None:
        """Refuse numbers that no job has."""
        numbers = {"devices": self.num_devices, "memory": self.memory_bytes, "microbatches": self.num_microbatches,
                   "bandwidth": self.bandwidth_bytes_per_s, "copies of parameters": self.copies}  # fmt: skip
        for name, value in numbers.items():
            if not (value > 0 and math.isfinite(value)):
                raise InputError(f"{name} cannot be {value}", where="job", fix="give a number above zero")


@dataclass(frozen=True)
class PlannedStage:
    """One stage.

    Parameters
    ----------
    layers : tuple of int
        Ascending.
    degree, num_devices : int
    load_s : float
        Time of one microbatch, forward and backward.
    memory_bytes : float
    """

    layers: tuple[int, ...]
    degree: int
    num_devices: int
    load_s: float
    memory_bytes: float


@dataclass(frozen=True)
class StagePlan:
    """Stages first to last, and the time that a batch takes with them.

    Parameters
    ----------
    stages : tuple of PlannedStage
    num_pipelines : int
    batch_s : float
    sync_s : float
        Of it, for the pipelines to agree on gradients.
    is_recomputed : bool
    """

    stages: tuple[PlannedStage, ...]
    num_pipelines: int
    batch_s: float
    sync_s: float
    is_recomputed: bool

    @property
    def num_devices(self) -> int:
        """Number of devices that the plan uses."""
        return self.num_pipelines * sum(stage.num_devices for stage in self.stages)


@dataclass(frozen=True, eq=False)
class Stages:
    """All stages that a network can have under a job, priced but for the layers' times.

    Parameters
    ----------
    lattice : Lattice
    ptr_I, small_Q : int64
        Pairs by their larger downset; the smaller one.
    in_QT, out_QT : float64 [Q, T]
        Seconds until all that enters has come, in the forward and in the backward pass.
    param_bytes_QT, held_QT, per_flight_QT : float64 [Q, T]
        Parameters once; what one microbatch needs; what each further one in flight adds.
    max_QT, devices_QT : int64 [Q, T]
        From which stage on (counted from the last one) it no longer fits; devices that it takes.
    """

    network: Network
    job: Job
    lattice: Lattice
    ptr_I: Ints
    small_Q: Ints
    in_QT: Floats
    out_QT: Floats
    param_bytes_QT: Floats
    held_QT: Floats
    per_flight_QT: Floats
    max_QT: Ints
    devices_QT: Ints

    @classmethod
    def of(cls, network: Network, job: Job) -> Stages:
        """Enumerate and price.

        Raises
        ------
        InfeasibleError
            A layer does not fit at any degree; names it and by how much.
        InputError
            There are too many stages to be enumerated.
        """
        lattice = downsets(len(network.names), network.src, network.dst, cap=_MAX_DOWNSETS,
                           closed_under="successors")  # fmt: skip
        if max(lattice.num_pairs, lattice.num_downsets**2 // 100) > _MAX_PAIRS:
            raise InputError(f"{lattice.num_pairs:,} stages are possible, over {_MAX_PAIRS:,}", where="layers",
                             fix="merge branches of the network")  # fmt: skip
        ptr_I, small_Q, large_Q, in_QT, out_QT = _pairs(network, lattice)

        def between(values_LT: Floats) -> Floats:
            sums = lattice.sums(values_LT)
            result: Floats = sums[large_Q] - sums[small_Q]
            return result

        params = between(network.param_bytes_LT)
        kept, written = between(network.kept_bytes_LT), between(network.written_bytes_LT)
        extra = _largest(network.extra_bytes_LT, between)
        held = kept + extra if job.memory_model == "alive" else written
        stash = kept if job.memory_model == "alive" else written
        per_flight = in_QT if job.is_recomputed else stash
        splits = between(np.repeat(network.is_split_L[:, None].astype(np.float64), len(network.degrees), axis=1)) > 0
        devices_QT = np.where(splits, np.array(network.degrees), 1).astype(np.int64)
        room = job.memory_bytes * (1 + _SLACK) - job.copies * params - held
        with np.errstate(divide="ignore", invalid="ignore"):
            more = np.where(per_flight > 0, room / per_flight, np.inf)
        most = np.where(room < 0, 0, np.minimum(1 + np.floor(more), len(network.names))).astype(np.int64)
        rate = job.bandwidth_bytes_per_s
        created = cls(network, job, lattice, ptr_I, small_Q, in_QT / rate, out_QT / rate, params, held,
            per_flight, most,
                   devices_QT)  # fmt: skip
        created._require_room()
        return created

    def _require_room(self) -> None:
        """Raise an error unless every layer alone fits into memory at some degree."""
        for layer, name in enumerate(self.network.names):
            network, job = self.network, self.job
            layer_bytes = network.kept_bytes_LT[layer] + network.extra_bytes_LT[layer]
            layer_bytes = layer_bytes if job.memory_model == "alive" else network.written_bytes_LT[layer]
            need = float((job.copies * network.param_bytes_LT[layer] + layer_bytes).min())
            if need > job.memory_bytes * (1 + _SLACK):
                over = format_size(math.ceil(need - job.memory_bytes))
                raise InfeasibleError(
                    f"layer {name} needs {format_size(math.ceil(need))} of memory at least, {over} more than there is",
                    where=f"{format_size(int(job.memory_bytes))} per device, tensor degrees up to "
                    f"{max(network.degrees)}",
                    fix="more memory, a smaller microbatch, or a higher tensor degree",
                )

    @cached_property
    def _choices(self) -> tuple[Ints, Ints, Floats, Ints]:
        """Data degrees that differ in what a pipeline gets: devices, microbatches, sync per byte, degree."""
        degrees = np.arange(1, min(self.job.num_devices, self.job.num_microbatches) + 1)
        devices = self.job.num_devices // degrees
        batches = -(-self.job.num_microbatches // degrees)
        _, first = np.unique(np.stack([devices, batches]), axis=1, return_index=True)
        selected = np.sort(first)  # of those that are alike the least synchronizes least
        degree = degrees[selected]
        return devices[selected], batches[selected], SYNC_RATIOS["pipedream"] * ring_ratio(degree), degree

    @cached_property
    def _shape(self) -> tuple[int, int]:
        """Stages and devices that one pipeline can use."""
        layers = len(self.network.names)
        return min(layers, self.job.num_devices), min(self.job.num_devices, layers * max(self.network.degrees))

    def scratch(self) -> Floats:
        """An array for ``best``, one per thread."""
        stages, devices = self._shape
        return np.empty((stages, self.lattice.num_downsets, devices + 1))

    def best(
        self, forward_LT: Floats, backward_LT: Floats, *, upper_s: float = math.inf, scratch: Floats | None = None
    ) -> StagePlan | None:
        """The plan whose batch takes the least time, or None where all take ``upper_s`` or longer.

        Parameters
        ----------
        forward_LT, backward_LT : float64 [L, T]
            Seconds of a layer on one device, by tensor degree.
        upper_s : float
            Only plans below it are looked for.
        """
        devices, batches, factor, degree = self._choices
        sync_QT = self.param_bytes_QT / self.job.bandwidth_bytes_per_s
        result, choice, stages = kernels.best_plan(
            self.ptr_I, self.small_Q, self.in_QT, self.out_QT, self.max_QT, self.devices_QT, sync_QT,
            self.lattice.sums(forward_LT), self.lattice.sums(backward_LT), self.job.is_recomputed, self._shape[0],
            (devices, batches, factor), upper_s, self.scratch() if scratch is None else scratch,
        )  # fmt: skip
        if choice < 0:
            return None
        plan = self._plan(stages.tolist(), int(degree[choice]), forward_LT, backward_LT)
        return replace(plan, batch_s=float(result))

    def _plan(
        self, stages: Sequence[Sequence[int]], num_pipelines: int, forward_LT: Floats, backward_LT: Floats
    ) -> StagePlan:
        large_Q = np.repeat(np.arange(self.lattice.num_downsets), np.diff(self.ptr_I))
        created = []
        for index, (pair, degree) in enumerate(stages):
            stage = len(stages) - index
            inside = self.lattice.members(int(large_Q[pair])) & ~self.lattice.members(int(self.small_Q[pair]))
            layers = np.flatnonzero(inside)
            load = kernels.load_of(
                float(forward_LT[layers, degree].sum()), float(backward_LT[layers, degree].sum()),
                float(self.in_QT[pair, degree]), float(self.out_QT[pair, degree]), self.job.is_recomputed, stage,
            )  # fmt: skip
            memory = self.job.copies * self.param_bytes_QT[pair, degree] + self.held_QT[pair, degree]
            memory += (stage - 1) * self.per_flight_QT[pair, degree]
            created.append(PlannedStage(tuple(layers.tolist()), self.network.degrees[degree],
                                     int(self.devices_QT[pair, degree]), load, float(memory)))  # fmt: skip
        pair, degree = stages[0]
        sync = SYNC_RATIOS["pipedream"] * ring_ratio(num_pipelines) * self.param_bytes_QT[pair, degree]
        sync_s = float(sync) / self.job.bandwidth_bytes_per_s
        batches = -(-self.job.num_microbatches // num_pipelines)
        batch_s = max(item.load_s for item in created) * (batches + len(created) - 1) + sync_s
        return StagePlan(tuple(created), num_pipelines, batch_s, sync_s, self.job.is_recomputed)

    def price_plan(
        self,
        cuts: Sequence[Sequence[int]],
        degrees: Sequence[int],
        num_pipelines: int,
        forward_LT: Floats,
        backward_LT: Floats,
    ) -> StagePlan:
        """Price a given plan.

        Parameters
        ----------
        cuts : sequence of sequences of int
            Layers of each stage, first to last.
        degrees : sequence of int
            Tensor degree of each stage.

        Raises
        ------
        InputError
            It is no plan of this network, or takes more devices than there are.
        InfeasibleError
            A stage does not fit; names its tightest layer and by how much.
        """
        wrong = [degree for degree in degrees if degree not in self.network.degrees]
        if wrong:
            known = ", ".join(map(str, self.network.degrees))
            raise InputError(f"the network is not split over {wrong[0]} ranks", where="plan", fix=f"known: {known}")
        columns = [self.network.degrees.index(degree) for degree in degrees]
        stages = [(self._pair(cuts[position:], cut), columns[position]) for position, cut in enumerate(cuts)]
        used = num_pipelines * sum(int(self.devices_QT[item]) for item in stages)
        if used > self.job.num_devices:
            raise InputError(
                f"the plan takes {used:,} devices", where="plan", fix=f"there are {self.job.num_devices:,}"
            )
        plan = self._plan(stages, num_pipelines, forward_LT, backward_LT)
        for index, stage in enumerate(plan.stages):
            if self.max_QT[stages[index]] < len(cuts) - index:
                raise self._too_large(index, stage, columns[index])
        return plan

    def waits(self, cuts: Sequence[Sequence[int]], index: int, column: int) -> tuple[float, float]:
        """Seconds that a stage of a given plan waits for what enters, forward and backward."""
        pair = self._pair(cuts[index:], cuts[index])
        return float(self.in_QT[pair, column]), float(self.out_QT[pair, column])

    def _too_large(self, index: int, stage: PlannedStage, column: int) -> InfeasibleError:
        network = self.network
        size = network.param_bytes_LT[:, column] * self.job.copies + network.kept_bytes_LT[:, column]
        layer = max(stage.layers, key=lambda position: float(size[position]))
        over = format_size(math.ceil(stage.memory_bytes - self.job.memory_bytes))
        return InfeasibleError(
            f"stage {index + 1} needs {format_size(math.ceil(stage.memory_bytes))}, {over} more than there is",
            where=f"its largest layer is {network.names[layer]}, {len(stage.layers)} layers in all",
            fix="more memory, more stages, a smaller microbatch, or recomputing",
        )

    def _pair(self, rest: Sequence[Sequence[int]], cut: Sequence[int]) -> int:
        """The pair whose difference a stage is."""
        large = np.zeros(len(self.network.names), np.bool_)
        large[[item for part in rest for item in part]] = True
        small = large.copy()
        small[list(cut)] = False
        ends = [self._number.get(item.tobytes(), -1) for item in (large, small)]
        if min(ends) < 0 or not cut:
            raise InputError("stages are no cut of the layers in order", where="plan", fix="each layer in one stage")
        pairs = range(int(self.ptr_I[ends[0]]), int(self.ptr_I[ends[0] + 1]))
        return next(pair for pair in pairs if self.small_Q[pair] == ends[1])

    @cached_property
    def _number(self) -> dict[bytes, int]:
        return {self.lattice.members(index).tobytes(): index for index in range(self.lattice.num_downsets)}


def _largest(values_LT: Floats, between: object) -> Floats:
    """The largest of one value over the layers of each stage [Q, T]."""
    assert callable(between)
    result: Floats | None = None
    for value in np.unique(values_LT):
        has = between((values_LT >= value).astype(np.float64)) > 0
        result = np.where(has, value, 0.0) if result is None else np.where(has, value, result)
    assert result is not None
    return result


def _pairs(network: Network, lattice: Lattice) -> tuple[Ints, Ints, Ints, Floats, Floats]:
    """Nested downsets, and bytes that enter and leave what lies between them, by degree."""
    inside_II = lattice_kernels.nesting(lattice.words_IW, lattice.parent_I, lattice.added_I)
    large_Q, small_Q = np.nonzero(inside_II.T)
    ptr_I = np.searchsorted(large_Q, np.arange(lattice.num_downsets + 1))
    members_IL = np.stack([lattice.members(index) for index in range(lattice.num_downsets)])
    stage_QL = members_IL[large_Q] & ~members_IL[small_Q]
    in_QT = np.zeros((len(large_Q), len(network.degrees)))
    out_QT = np.zeros_like(in_QT)
    for src, dst, sent_T in zip(network.src, network.dst, network.sent_bytes_ET, strict=True):
        in_QT += (~stage_QL[:, src] & stage_QL[:, dst])[:, None] * sent_T
        out_QT += (stage_QL[:, src] & ~stage_QL[:, dst])[:, None] * sent_T
    return ptr_I, small_Q, large_Q, in_QT, out_QT
