"""Durations of layers on every chip of a space.

In: layers by tensor degree, templates with a clock and a memory, a link. Out: ``LayerTimes``: seconds of each distinct
layer, pass and degree on each chip, by the best list schedule of its operators, what no schedule is below, and joules.
What is the same is computed once: products depend on tensor cores and the buffer, vectors on vector cores. Not here:
plans (``stages``), choices (``search``), cycles of one operator (``cost.accelerators``).

Source: PHAZE (Wang et al., ICML 2024), section 4.
"""

# P chips, U distinct layers, T tensor degrees, N operators

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.progress import Progress
from windtunnel.cost.collective import ring_ratio
from windtunnel.hardware.templates import Templates
from windtunnel.systems.chips.accelerators import Gemms, Machines, product_cycles
from windtunnel.systems.chips.accelerators.energy import product_energy_j, vector_energy_j
from windtunnel.systems.chips.layers import Layer, Layers, PhaseWork
from windtunnel.systems.chips.lists import list_cycles
from windtunnel.systems.chips.operations import TENSOR, VECTOR
from windtunnel.systems.chips.stages import Network

__all__ = ["ChipSpace", "LayerTimes", "Model", "layer_times", "phase_cycles"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ChipSpace:
    """Chips to choose from.

    Parameters
    ----------
    templates : Templates
    clock_hz : float
    memory_bandwidth_bytes_per_s : float
        Between a chip and its memory.
    mode : str
        How products are priced: see ``cost.accelerators.engine.MODES``.
    """

    templates: Templates
    clock_hz: float = 1.05e9
    memory_bandwidth_bytes_per_s: float = 1.2e12
    mode: str = "tiled"

    def __len__(self) -> int:
        return len(self.templates)

    @cached_property
    def cores(self) -> Ints:
        """Tensor and vector cores of each [P, 2]."""
        return np.stack([self.templates.num_tensor_cores, self.templates.num_vector_cores], axis=1)

    @cached_property
    def area_um2(self) -> Floats:
        """Area of each chip, [P]."""
        return self.templates.area_um2

    def take(self, rows: Ints | NDArray[np.bool_]) -> ChipSpace:
        """Return the chips in ``rows``."""
        return replace(self, templates=self.templates.take(rows))

    @cached_property
    def _products(self) -> tuple[ChipSpace, Ints]:
        """Chips that differ in what products take, and which of them each is like."""
        templates = self.templates
        parts = (templates.num_tensor_cores, templates.width, templates.depth, templates.sram_bytes)
        return self._alike(parts if self.mode == "tiled" else parts[:3])

    @cached_property
    def _vectors(self) -> tuple[ChipSpace, Ints]:
        return self._alike((self.templates.num_vector_cores, self.templates.vector_width))

    def _alike(self, columns: Sequence[Ints]) -> tuple[ChipSpace, Ints]:
        _, first, inverse = np.unique(np.stack(columns), axis=1, return_index=True, return_inverse=True)
        return self.take(first), inverse.ravel()

    def machines(self, *, is_single: bool) -> Machines:
        """Return the chips as machines with all tensor cores, or with one."""
        created = Machines.of(self.templates, clock_hz=self.clock_hz,
                           bandwidth_bytes_per_s=self.memory_bandwidth_bytes_per_s)  # fmt: skip
        return replace(created, count=np.ones_like(created.count)) if is_single else created

    def products(self, work: PhaseWork, *, is_single: bool) -> Ints:
        """Cycles of every operator's product on every chip, on one core or on all."""
        cycles = np.zeros((len(self), len(work.operations)), np.int64)
        rows = np.flatnonzero(work.operations.kind_N != VECTOR)
        if rows.size:
            chips, alike = self._products
            count, m, n, k = work.product_N4[rows].T
            result = product_cycles(Gemms.of(m, n, k, count), chips.machines(is_single=is_single), self.mode)
            cycles[:, rows] = np.ceil(result - 1e-6).astype(np.int64).T[alike]
        return cycles

    def vectors(self, work: PhaseWork, *, is_single: bool) -> Ints:
        """Cycles of every operator's vector part on every chip, on one core or on all."""
        cycles = np.zeros((len(self), len(work.operations)), np.int64)
        rows = np.flatnonzero(work.operations.kind_N != TENSOR)
        if rows.size:
            chips, alike = self._vectors
            num_elements = chips.templates.vector_width * (1 if is_single else chips.templates.num_vector_cores)
            elements, cycles_each = work.vector_N2[rows].T
            cycles[:, rows] = (-(-elements // num_elements[:, None]) * cycles_each)[alike]
        return cycles

    def energy_j(self, work: PhaseWork) -> Floats:
        """Joules of all operators of a pass on every chip [P]: products by array and buffer, vectors by the buffer."""
        templates = self.templates
        products, alike = self._alike((templates.width, templates.depth, templates.sram_bytes))
        result = np.zeros(len(products))
        rows = np.flatnonzero(work.operations.kind_N != VECTOR)
        if rows.size:
            count, m, n, k = work.product_N4[rows].T
            result += product_energy_j(Gemms.of(m, n, k, count), products.machines(is_single=True)).sum(axis=0)
        rows = np.flatnonzero(work.operations.kind_N != TENSOR)
        if rows.size:
            num_elements = work.vector_N2[rows].prod(
                axis=1
            )  # "add" takes a cycle per element, so that these are its elements
            moved = work.moved_bytes_N[rows]
            machines = products.machines(is_single=True)
            result += vector_energy_j(["add"] * len(rows), num_elements, moved, machines).sum(axis=0)
        return result[alike]


def phase_cycles(work: PhaseWork, space: ChipSpace) -> tuple[Ints, Ints]:
    """Cycles of every operator on every chip: on one core, and on all cores of its type, int64 [P, N] each."""
    single, spread = (
        space.products(work, is_single=item) + space.vectors(work, is_single=item) for item in (True, False)
    )
    return single, spread


@dataclass(frozen=True, eq=False)
class LayerTimes:
    """Seconds of distinct layers on chips.

    Parameters
    ----------
    forward_PUT, backward_PUT : float64 [P, U, T]
        Cycles of the best list schedule.
    min_forward_PUT, min_backward_PUT : float64 [P, U, T]
        What no schedule is below.
    forward_j_PUT, backward_j_PUT : float64 [P, U, T]
        Joules on one of the tensor ranks.
    """

    forward_PUT: Floats
    backward_PUT: Floats
    min_forward_PUT: Floats
    min_backward_PUT: Floats
    forward_j_PUT: Floats
    backward_j_PUT: Floats

    @cached_property
    def columns(self) -> Floats:
        """All times of a chip in a row, [P, 2 U T]."""
        return self._columns(self.forward_PUT, self.backward_PUT)

    @cached_property
    def min_columns(self) -> Floats:
        """Columns of the lower bounds on all schedules."""
        return self._columns(self.min_forward_PUT, self.min_backward_PUT)

    @staticmethod
    def _columns(forward: Floats, backward: Floats) -> Floats:
        num = len(forward)
        return np.concatenate([forward.reshape(num, -1), backward.reshape(num, -1)], axis=1)


@dataclass(frozen=True, eq=False)
class Model:
    """A network of a microbatch, by tensor degree: its distinct layers, and how often they follow each other.

    Parameters
    ----------
    name : str
    microbatch : int
    by_degree : mapping of int to Layers
        Embedding, one layer, head.
    depth : int
        How often the one layer is there.
    """

    name: str
    microbatch: int
    by_degree: Mapping[int, Layers]
    depth: int

    @property
    def degrees(self) -> tuple[int, ...]:
        """Tensor degrees in ascending order."""
        return tuple(sorted(self.by_degree))

    @cached_property
    def distinct(self) -> Ints:
        """Which distinct layer each layer of the network is."""
        return np.array([0, *[1] * self.depth, 2], np.int64)

    def network(self) -> Network:
        """Return all layers as one chain."""
        of = self.distinct
        first = self.by_degree[self.degrees[0]].layers
        counts = iter(range(1, self.depth + 1))
        names = tuple(
            f"{first[index].name}.{next(counts)}" if index == 1 else first[index].name for index in of.tolist()
        )
        sent_LT = np.array(
            [[self._boundary_bytes(degree, index) for degree in self.degrees] for index in (0, 1)], np.float64
        )
        columns = {
            name: np.array([[getattr(self.by_degree[t].layers[index],
                field) for t in self.degrees] for index in range(3)],
                           np.float64)[of]
            for name, field in (("param_bytes_LT", "param_bytes"), ("kept_bytes_LT", "kept_bytes"),
                                ("written_bytes_LT", "written_bytes"), ("extra_bytes_LT", "extra_bytes"))
        }  # fmt: skip
        chain = np.arange(len(of) - 1)
        return Network(names, self.degrees, chain, chain + 1, sent_LT[of[:-1]],
                       is_split_L=np.ones(len(of), np.bool_), **columns)  # fmt: skip

    def _boundary_bytes(self, degree: int, layer: int) -> int:
        layers = self.by_degree[degree]
        return int(layers.sent_bytes[(layers.src == layer) & (layers.dst == layer + 1)].sum())

    def phases(self) -> list[tuple[int, int, str, Layer]]:
        """Distinct layer, place of the degree, pass, and the layer."""
        return [
            (position, index, phase, layer)
            for index, degree in enumerate(self.degrees)
            for position, layer in enumerate(self.by_degree[degree].layers)
            for phase in ("forward", "backward")
        ]


def layer_times(
    model: Model, space: ChipSpace, bandwidth_bytes_per_s: float, progress: Progress | None = None
) -> LayerTimes:
    """Seconds of every distinct layer on every chip.

    Parameters
    ----------
    bandwidth_bytes_per_s : float
        Of a device's link, over which tensor ranks sum around a ring.
    progress : callable
        Called with (what, done, total).
    """
    shape = (len(space), 3, len(model.degrees))
    names = ("forward", "backward", "least forward", "least backward", "forward joules", "backward joules")
    result = {name: np.zeros(shape) for name in names}
    phases = model.phases()
    for done, (index, position, phase, layer) in enumerate(phases, start=1):
        work: PhaseWork = getattr(layer, phase)
        cycles_P, bound_P = list_cycles(work.operations, *phase_cycles(work, space), space.cores)
        degree = model.degrees[position]
        sums_s = ring_ratio(degree) * work.sum_bytes / bandwidth_bytes_per_s
        result[phase][:, index, position] = cycles_P / space.clock_hz + sums_s
        result[f"least {phase}"][:, index, position] = bound_P / space.clock_hz + sums_s
        result[f"{phase} joules"][:, index, position] = space.energy_j(work)
        if progress is not None:
            progress("pricing layers on chips", done, len(phases))
    return LayerTimes(*result.values())
