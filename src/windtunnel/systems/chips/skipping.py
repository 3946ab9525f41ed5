"""A training step on a grid that skips zeros: layers, passes, the step itself.

In: masks of a real training, a chip with a ``SparseGrid``, and the captured graph of a step. Out: ``GridAnswer``:
cycles of every layer by pass and mode, and how long the step takes on the chip in each mode. What is no recorded layer
takes what the chip's arrays and vector units take. Not here: cycles (``cost``), the what-if without masks
(``chips.whatif``).
"""

# T tasks

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from windtunnel.base.progress import Progress
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import Graph, Kind
from windtunnel.hardware.accelerators import Accelerator
from windtunnel.simulate import replay
from windtunnel.sources.zeros.records import LayerRecord
from windtunnel.systems.chips.accelerators.sparse import (
    MODES,
    PHASES,
    LayerCycles,
    LayerZeros,
    functional,
    layer_cycles,
    shape_of,
)
from windtunnel.systems.chips.whatif import layer_tasks
from windtunnel.whatifs.forecast import forecast

__all__ = ["MODE_WORDS", "GridAnswer", "find_miscounted_layers", "on_grid", "zeros_of"]

_COST_SOURCE = "sparse grid, simulated"
MODE_WORDS = {
    "dc": "dense",
    "in": "zero operands skipped",
    "out": "masked gradients skipped",
    "in+out": "both skipped",
    "in+out+wr": "both, work shared",
}
"""Labels of the modes that skip zeros."""


def zeros_of(record: LayerRecord) -> LayerZeros:
    """A record as the layer that the grid works on."""
    windows = (record.stride, record.padding, record.dilation, record.groups)
    shape = shape_of(record.inputs, record.weight, *windows)
    return LayerZeros(
        record.layer, shape, record.X_bits, record.dY_bits, is_masked=record.is_masked, is_first=record.is_first
    )


@dataclass(frozen=True)
class GridAnswer:
    """Layers on a grid.

    Parameters
    ----------
    chip : str
    iteration : int
        Of the training, whose zeros these are.
    layers : tuple of LayerCycles
    zeros : tuple of LayerZeros
    steps_ns : mapping of str to int
        The step by mode, where a graph of it is given: what the host does for it included.
    busy_ns : mapping of str to int
        What the chip computes of it.
    unmatched : tuple of str
        Layers that have no task in that graph.
    """

    chip: str
    iteration: int
    layers: tuple[LayerCycles, ...]
    zeros: tuple[LayerZeros, ...]
    steps_ns: dict[str, int] = field(default_factory=dict)
    busy_ns: dict[str, int] = field(default_factory=dict)
    unmatched: tuple[str, ...] = ()

    def total(self, mode: str, phases: tuple[str, ...] = PHASES, what: str = "cycles") -> float:
        """Return the sum over layers."""
        return float(sum(layer.total(mode, phases, what) for layer in self.layers))

    def speedup(self, mode: str, phases: tuple[str, ...] = PHASES, what: str = "cycles") -> float:
        """Return the speedup of all layers together over the dense mode."""
        spent = self.total(mode, phases, what)
        return self.total("dc", phases, what) / spent if spent else 1.0

    def to_dict(self) -> dict[str, object]:
        """Return the answer as plain JSON values."""
        layers = [
            {
                "name": layer.name,
                "input_density": zeros.input_density,
                "gradient_density": zeros.gradient_density,
                "is_masked": zeros.is_masked,
                "passes": {
                    phase: {
                        "cycles": dict(step_pass.cycles),
                        "step_cycles": dict(step_pass.step_cycles),
                        "macs": dict(step_pass.macs),
                        "moved_bytes": dict(step_pass.moved_bytes),
                        "energy_j": dict(step_pass.energy_j),
                        "bound_cycles": step_pass.bound_cycles,
                        "scan_cycles": step_pass.scan_cycles,
                    }
                    for phase, step_pass in layer.passes.items()
                },
            }
            for layer, zeros in zip(self.layers, self.zeros, strict=True)
        ]
        return {
            "chip": self.chip,
            "iteration": self.iteration,
            "layers": layers,
            "speedup": {
                mode: {"backward": self.speedup(mode, ("backward",)), "iteration": self.speedup(mode)} for mode in MODES
            },
            "steps_ns": self.steps_ns,
            "busy_ns": self.busy_ns,
            "unmatched": list(self.unmatched),
        }


def on_grid(
    records: Sequence[LayerRecord],
    chip: Accelerator,
    graph: Graph | None = None,
    *,
    progress: Progress | None = None,
) -> GridAnswer:
    """Price every layer on the chip's grid, and the step of a graph with them.

    Parameters
    ----------
    records : sequence of LayerRecord
        Records of one iteration.
    chip : Accelerator
    graph : Graph, optional
        A captured step of the same network.
    progress : callable

    Raises
    ------
    InputError
        The chip has no grid that skips zeros.
    NotApplicableError
        No layer of the records is in the graph.
    """
    if chip.sparse_grid is None:
        raise InputError(
            f"{chip.name} has no grid that skips zeros",
            where="chip",
            fix="choose sparse-grid, or give the device a sparse_grid",
        )
    zeros, layers = [zeros_of(record) for record in records], []
    for number, zero in enumerate(zeros, start=1):
        layers.append(layer_cycles(zero, chip.sparse_grid))
        if progress is not None:
            progress("simulating layers", number, len(zeros))
    answer = GridAnswer(chip.name, records[0].iteration, tuple(layers), tuple(zeros))
    return answer if graph is None else _with_steps(answer, graph, chip)


def find_miscounted_layers(answer: GridAnswer, *, seed: int = 0, progress: Progress | None = None) -> tuple[str, ...]:
    """Layers whose passes, computed number by number, disagree with their cycles; none, or a defect of ours."""
    wrong = []
    for number, (zeros, cycles) in enumerate(zip(answer.zeros, answer.layers, strict=True), start=1):
        if not functional.multiplications_agree(zeros, cycles, seed):
            wrong.append(zeros.name)
        if progress is not None:
            progress("computing layers", number, len(answer.layers))
    return tuple(wrong)


def _with_steps(answer: GridAnswer, graph: Graph, chip: Accelerator) -> GridAnswer:
    """Add the duration of the step in each mode, and layers that the graph lacks."""
    assert chip.clock_hz is not None  # an accelerator without a clock cannot be made
    priced = forecast(graph, chip, dtype="fp16").graph
    layers = [(*both, layer_tasks(priced, both[0].name)) for both in zip(answer.zeros, answer.layers, strict=True)]
    unmatched = tuple(entry.name for entry, _, masks in layers if not any(mask.any() for mask in masks))
    if len(unmatched) == len(layers):
        raise NotApplicableError(
            "no layer of the masks is in the graph",
            where=", ".join(unmatched[:3]),
            fix="capture both from one script: windtunnel capture --zeros",
        )
    steps, busy = {}, {}
    on_chip = priced.select(kind=Kind.COMPUTE) & (priced.tasks["resource"] == priced.num_resources - 1)
    for mode in MODES:
        duration = priced.duration_ns.copy()
        for item, cycles, masks in layers:
            for mask, phases in zip(masks, (("forward",), ("backward", "weights")), strict=True):
                done = tuple(phase for phase in phases if phase in cycles.passes)
                flops = priced.tasks["flops"][mask].astype(np.float64)
                if flops.sum():  # of all images of the step, of which the masks are some
                    # The products of one pass as a graph counts them: pixels outside of the image included.
                    images = flops.sum() / (2.0 * (item.shape.num_output_pixels * item.shape.num_weights) * len(done))
                    spent_ns = cycles.total(mode, done, "step_cycles") * images * 1e9 / chip.clock_hz
                    duration[mask] = np.rint(spent_ns * flops / flops.sum()).astype(np.int64)
        steps[mode] = int(replay(priced.set_duration(priced.all_tasks, duration, cost_source=_COST_SOURCE)).makespan_ns)
        busy[mode] = int(duration[on_chip].sum())
    return replace(answer, steps_ns=steps, busy_ns=busy, unmatched=unmatched)
