"""Any graph on any accelerator: operators as products and vector work.

In: work of a graph, an ``Accelerator``. Out: prices: a launch, and the cycles of its arrays at their best tiling with
those of its vector units, or of its memory, whichever is longer. It prices nothing on other devices. Not here: taking
operators apart (``parts``), cycles (``engine``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.cost.bounds import Binding, bounds_on
from windtunnel.cost.pricer import Prices
from windtunnel.cost.pricing import in_type
from windtunnel.cost.work import Work, shapes_of, work_of
from windtunnel.graph import Graph
from windtunnel.graph.kernel_classes import MATRIX_CLASSES, class_of
from windtunnel.hardware import Device
from windtunnel.hardware.accelerators import Accelerator, OperatorRate
from windtunnel.systems.chips.accelerators.energy import product_energy_j, vector_energy_j
from windtunnel.systems.chips.accelerators.engine import Machines, product_cycles
from windtunnel.systems.chips.accelerators.parts import Parts, parts_of
from windtunnel.systems.chips.accelerators.vectors import cycles_per_element, short_name

__all__ = ["AcceleratorPricer", "accelerator", "duration_ns", "energy_j", "graph_energy_j"]

# P rows of work
Floats = NDArray[np.float64]

_PLAIN = OperatorRate(overhead_ns=0.0)
_AGAIN = 1.5  # a row that is read once more: two reads and a write in place of one each
_ITEM_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "fp64": 8}
_NORMAL_90 = 1.645  # ends of 90 % of a normal distribution


class AcceleratorPricer:
    """The closed forms, for devices that say what they are built of."""

    name: ClassVar[str] = "accelerator"

    def covers(self, work: Work, device: Device) -> NDArray[np.bool_]:
        """Rows that state flops or bytes and whose products have shapes, on an accelerator, bool [P]."""
        if not isinstance(device, Accelerator):
            return np.zeros(len(work), dtype=bool)
        states = (work.flops > 0) | (work.bytes_moved > 0) | work.is_empty
        has_type = np.array([item in device.peak_flops_per_s for item in work.dtype.tolist()], dtype=bool)
        return np.asarray(states & has_type & parts_of(work).is_known, dtype=np.bool_)

    def price(self, work: Work, device: Device) -> Prices:
        """Prices of rows that it covers; with an interval where the chip's rates have a spread."""
        assert isinstance(device, Accelerator)
        result = bounds_on(device, work.flops, work.bytes_moved, dtype=work.dtype.tolist())
        compute_ns, memory_ns = _busy_ns(work, device)
        spent = np.maximum(result.overhead_ns + np.maximum(compute_ns, memory_ns), result.bound_ns)
        spread = np.array([_rate(device, item).ratio_std for item in work.operator.tolist()])
        width = np.where(spread > 0, _NORMAL_90 * spread, np.nan)
        middle, low, high = (
            np.where(spent > 0, result.bound_ns / np.maximum(spent * factor, 1e-9), 1.0)
            for factor in (1.0, 1 + width, 1 - width)
        )
        busy = np.where(compute_ns > memory_ns, Binding.COMPUTE, Binding.MEMORY)
        is_launch = result.overhead_ns > np.maximum(compute_ns, memory_ns)
        binding = np.where(is_launch, Binding.OVERHEAD, busy).astype(np.int8)
        return Prices(replace(result, binding=binding), middle, low, high)


@registry.cost_model("accelerator", source="SCALE-Sim (ISPASS 2020), Timeloop (ISPASS 2019), LLMCompass (ISCA 2024)")
def accelerator() -> AcceleratorPricer:
    """Price operators on a chip by its arrays, vector units, buffers and memory."""
    return AcceleratorPricer()


def duration_ns(work: Work, device: Accelerator, *, is_alone: bool = False) -> Floats:
    """How long each row takes [P]: a launch, and arrays with vector units, or memory, whichever is longer.

    Parameters
    ----------
    work : Work
    device : Accelerator
    is_alone : bool
        True: each operator is a separate call, as in a table of measurements, with the whole overhead of its call;
        False: one after another, where only a launch is left of it.
    """
    compute_ns, memory_ns = _busy_ns(work, device)
    alone_ns = np.array([_rate(device, item).overhead_ns for item in work.operator.tolist()])
    overhead_ns = alone_ns if is_alone else float(device.launch_overhead_ns or 0)
    return np.asarray(overhead_ns + np.maximum(compute_ns, memory_ns), dtype=np.float64)


def _busy_ns(work: Work, device: Accelerator) -> tuple[Floats, Floats]:
    """Return the busy time of arrays and vector units, and that of the memory, [P]."""
    assert device.clock_hz is not None  # an accelerator without a clock cannot be made
    parts, rates = parts_of(work), [_rate(device, item) for item in work.operator.tolist()]
    names = np.where(parts.is_product, "softmax", work.operator).tolist()
    per_element = cycles_per_element(names)
    cycles = _array_cycles(work, parts, device) + np.asarray(
        -(-parts.elements // device.num_lanes) * per_element, dtype=np.float64
    )
    passes = np.array([rate.passes for rate in rates])
    # Length of a row of the first tensor [P].
    known = {text: next((item[-1] for item in shapes_of(text) if item), 0) for text in set(work.shapes.tolist())}
    lengths = np.array([known[text] for text in work.shapes.tolist()], dtype=np.float64)
    sizes: Floats = np.array([_ITEM_BYTES.get(item, 4) for item in work.dtype.tolist()], dtype=np.float64)
    moved = work.bytes_moved * passes * np.where((lengths * sizes) > [rate.row_bytes for rate in rates], _AGAIN, 1.0)
    memory_ns = 1e9 * moved / (device.bandwidth_bytes_per_s * device.memory_ratio)
    return 1e9 * cycles / device.clock_hz, np.asarray(memory_ns, dtype=np.float64)


def energy_j(work: Work, device: Accelerator) -> Floats:
    """Return the energy of each row, [P]; see ``energy``."""
    parts = parts_of(work)
    machines = Machines.of_accelerator(device, device.arrays[0])
    products = product_energy_j(parts.products, machines)[:, 0] * parts.times
    elements = np.where(parts.is_product, 0, parts.elements)
    moved = np.where(parts.is_product, 0.0, work.bytes_moved)
    vectors = vector_energy_j(work.operator.tolist(), elements, moved, machines)[:, 0]
    scores = np.where(parts.is_product, parts.elements, 0)
    softmax = vector_energy_j(["softmax"] * len(work), scores, np.zeros(len(work)), machines)[:, 0]
    return np.asarray(np.bincount(parts.row, products, len(work)) + vectors + softmax, dtype=np.float64)


def graph_energy_j(graph: Graph, device: Accelerator, dtype: str = "") -> float:
    """Return the energy of all computation of a graph.

    Parameters
    ----------
    graph : Graph
    device : Accelerator
    dtype : str
        Type of the work that was captured in fp32.
    """
    work, _ = work_of(graph)
    work = in_type(work, dtype) if dtype else work
    return float(energy_j(work, device) @ work.num_tasks)


def _rate(device: Accelerator, operator: str) -> OperatorRate:
    """Return the measured rate of an operator on this chip, else that of all unnamed operators."""
    is_product = class_of(operator) in MATRIX_CLASSES
    name = "product" if is_product else short_name(operator)[0]
    return device.operators.get(name, device.operators.get("other", _PLAIN))


def _array_cycles(work: Work, parts: Parts, device: Accelerator) -> Floats:
    """Cycles of the products of each row; those of attention keep their scores on the chip, so memory stalls none."""
    if not len(parts.row):
        return np.zeros(len(work))
    is_inside = np.array([class_of(item).startswith("attention") for item in work.operator.tolist()], dtype=bool)
    modes = np.where(is_inside[parts.row], "compute", "tiled")
    spent = np.zeros(len(parts.row))
    for mode in dict.fromkeys(modes.tolist()):
        selected = modes == mode
        kinds = [Machines.of_accelerator(device, array) for array in device.arrays]
        spent[selected] = np.min(
            [product_cycles(parts.products.take(selected), kind, mode)[:, 0] for kind in kinds], axis=0
        )
    return np.asarray(np.bincount(parts.row, spent * parts.times, len(work)), dtype=np.float64)
