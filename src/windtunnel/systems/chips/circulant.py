"""Blocks of each layer and the engine for them, chosen together.

In: layers with what each size of block loses of the accuracy, limits of a chip. Out: ``CirculantAnswer``: the front of
cycles, multipliers and lost accuracy, each with a block per layer and an engine; nothing within the limits is better
than what is on it. Losses of layers are taken to add up. A layer of block 1 is dense, on the chip's array. Not here:
cycles (``cost``), the training that tells what is lost.

Source: Liao et al. (ICCAD 2017), Wang et al. (AAAI 2018): algorithm and engine are chosen together.
"""

# N layers, K sizes of blocks, E engines

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from windtunnel.base.pareto import is_best
from windtunnel.base.tables import Table
from windtunnel.cost.fixed_point import relative_error
from windtunnel.errors import InfeasibleError, InputError
from windtunnel.hardware.accelerators import Accelerator
from windtunnel.hardware.parts import FourierEngine
from windtunnel.systems.chips.accelerators import Gemms, Machines, product_cycles
from windtunnel.systems.chips.accelerators.fourier_engine import BlockLayer, EngineUse, engine_use

__all__ = ["CirculantAnswer", "Design", "Layer", "Limits", "design", "read_layers"]

_BUTTERFLIES, _DEPTHS, _MULTIPLIERS = (2, 4, 8, 16, 32), (1, 2, 4), (16, 32, 64, 128, 256)
_DENSE = 1


@dataclass(frozen=True)
class Layer:
    """One layer.

    Parameters
    ----------
    name : str
    outputs, inputs : int
    rows : int
        How often it is applied to a sample: pixels, or 1.
    losses : mapping of int to float
        Points of accuracy by size of block; dense loses none.
    """

    name: str
    outputs: int
    inputs: int
    rows: int
    losses: Mapping[int, float]

    @property
    def choices(self) -> dict[int, float]:
        """Sizes of blocks with their losses, dense first."""
        return {_DENSE: 0.0, **dict(sorted(self.losses.items()))}


@dataclass(frozen=True)
class Limits:
    """Limits on a design.

    Parameters
    ----------
    accuracy_points : float
        Points of accuracy that may be lost.
    num_multipliers, num_memory_blocks : int
        Real multipliers of the engine, and blocks of 36 Kib for weights.
    word_bits : int
    batch : int
        Samples in flight.
    """

    accuracy_points: float = 1.0
    num_multipliers: int = 1024
    num_memory_blocks: int = 1024
    word_bits: int = 16
    batch: int = 64


@dataclass(frozen=True)
class Design:
    """A design point: an engine, a block size for each layer, and their cost per sample."""

    engine: FourierEngine
    blocks: tuple[int, ...]
    cycles: float
    lost_points: float
    num_memory_blocks: int
    num_weights: int

    @property
    def goals(self) -> tuple[float, float, float]:
        """Objectives of the design, all to be minimized."""
        return self.cycles, float(self.engine.num_real_multipliers), self.lost_points


@dataclass(frozen=True)
class CirculantAnswer:
    """The front, quickest first.

    Parameters
    ----------
    layers : tuple of Layer
    front : tuple of Design
    dense_cycles : float
        Cycles of a sample without compressed layers.
    dense_weights : int
    energy_j, fixed_point_error : float
        Of the quickest: energy of a sample; what fixed point changes, of the layer in blocks where that is largest.
    uses : mapping of str to EngineUse
        Of the quickest: what a batch takes of the engine, by layer in blocks.
    """

    layers: tuple[Layer, ...]
    front: tuple[Design, ...]
    dense_cycles: float
    dense_weights: int
    energy_j: float
    fixed_point_error: float
    uses: Mapping[str, EngineUse]

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain JSON values."""
        result = [{**asdict(item), "num_real_multipliers": item.engine.num_real_multipliers} for item in self.front]
        names = ("dense_cycles", "dense_weights", "energy_j", "fixed_point_error")
        return {
            "layers": [layer.name for layer in self.layers],
            "front": result,
            **{name: getattr(self, name) for name in names},
            "uses": {name: asdict(use) for name, use in self.uses.items()},
        }

    def table(self, max_rows: int | None = None) -> Table:
        """Return the designs of the front."""
        columns = {"cycles": "{:,.0f}", "speed-up": "{:.1f}x", "loss": "{:.2f}", "multipliers": "{:,}",
                   "memory": "{:,}", "compression": "{:.1f}x", "engine": str, "block sizes": str}  # fmt: skip
        rows = [
            (item.cycles, self.dense_cycles / item.cycles, item.lost_points, item.engine.num_real_multipliers,
             item.num_memory_blocks, self.dense_weights / item.num_weights,
             f"{item.engine.num_butterflies}x{item.engine.depth}+{item.engine.num_multipliers}",
             ",".join(map(str, item.blocks)))
            for item in self.front[:max_rows]
        ]  # fmt: skip
        return Table(columns, rows, wraps="block sizes")


def read_layers(path: Path) -> tuple[Layer, ...]:
    """Layers from a JSON object: ``{"layers": [{"name", "outputs", "inputs", "rows", "losses": {"8": 0.2}}]}``.

    Raises
    ------
    InputError
        The file is not there, no JSON, or a layer is of another form; names the layer.
    """
    try:
        given = json.loads(path.read_text(encoding="utf-8"))["layers"]
        result = tuple(
            Layer(
                str(entry["name"]), int(entry["outputs"]), int(entry["inputs"]), int(entry.get("rows", 1)),
                {int(block): float(loss) for block, loss in entry["losses"].items()},
            )
            for entry in given
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"no layers can be read: {error}",
            where=str(path),
            fix='write {"layers": [{"name": "fc1", "outputs": 512, "inputs": 784, "losses": {"8": 0.2, "16": 0.7}}]}',
        ) from error
    if not result:
        raise InputError("there are no layers", where=str(path))
    for item in result:
        if item.rows < 1:
            raise InputError(f"rows of {item.name} cannot be {item.rows}", where=str(path), fix="1 or more")
        for block in item.losses:
            BlockLayer(item.outputs, item.inputs, block)
    return result


def design(layers: Sequence[Layer], limits: Limits, chip: Accelerator) -> CirculantAnswer:
    """The front of all engines and all blocks within the limits.

    Raises
    ------
    InfeasibleError
        Nothing fits; says by how much.
    """
    dense = _dense_cycles(layers, chip)
    result: list[Design] = []
    for engine in _engines(limits):
        result += _of_engine(layers, dense, engine, limits)
    if not result:
        dense_blocks = FourierEngine(word_bits=limits.word_bits).num_memory_blocks(_num_weights(layers))
        raise InfeasibleError(
            f"no blocks fit {limits.num_memory_blocks} blocks of memory and {limits.num_multipliers} multipliers at a "
            f"loss of {limits.accuracy_points:g} points",
            where=f"{len(layers)} layers, dense {dense_blocks:,} blocks of memory",
            fix="allow a larger loss, more memory, or blocks of larger size",
        )
    result.sort(key=lambda design: (design.goals, design.num_memory_blocks))
    is_kept = is_best([item.goals for item in result])
    # of designs that are equal in all goals the first stands for all: least memory
    front = list({item.goals: item for item, keep in zip(result[::-1], is_kept[::-1], strict=True) if keep}.values())[
        ::-1
    ]
    looked_at = _evaluate_design(layers, front[0], limits)
    return CirculantAnswer(tuple(layers), tuple(front), float(sum(dense)), _num_weights(layers), *looked_at)


def _num_weights(layers: Sequence[Layer]) -> int:
    """Return the number of weights of all layers before compression."""
    return sum(layer.outputs * layer.inputs for layer in layers)


def _dense_cycles(layers: Sequence[Layer], chip: Accelerator) -> list[float]:
    """Return the cycles of a sample on the chip's array, by layer."""
    machines = Machines.of_accelerator(chip, chip.arrays[0])
    products = Gemms.of(*([getattr(layer, name) for layer in layers] for name in ("rows", "outputs", "inputs")))
    return [float(product_cycle) for product_cycle in product_cycles(products, machines)[:, 0]]


def _engines(limits: Limits) -> Iterator[FourierEngine]:
    for sizes in product(_BUTTERFLIES, _DEPTHS, _MULTIPLIERS):
        engine = FourierEngine(*sizes, word_bits=limits.word_bits)
        if engine.num_real_multipliers <= limits.num_multipliers:
            yield engine


def _of_engine(layers: Sequence[Layer], dense: Sequence[float], engine: FourierEngine, limits: Limits) -> list[Design]:
    """Return the undominated block sizes of an engine, layer by layer: what is dominated now remains so."""
    # (cycles, lost points, memory blocks, weights), blocks
    kept: list[tuple[tuple[float, float, int, int], tuple[int, ...]]] = [((0.0, 0.0, 0, 0), ())]
    for layer, dense_cycles in zip(layers, dense, strict=True):
        extended = []
        for block, loss in layer.choices.items():
            cycles, memory, weights = _of_layer(layer, block, dense_cycles, engine, limits)
            for (time, missing, blocks, size), selected in kept:
                total = (time + cycles, missing + loss, blocks + memory, size + weights)
                if total[1] <= limits.accuracy_points + 1e-9 and total[2] <= limits.num_memory_blocks:
                    extended.append((total, (*selected, block)))
        if not extended:
            return []
        is_kept = is_best([total[:3] for total, _ in extended])
        kept = [item for item, keep in zip(extended, is_kept, strict=True) if keep]
    return [Design(engine, item, *total) for total, item in kept]


def _of_layer(
    operand: Layer, block: int, dense_cycles: float, engine: FourierEngine, limits: Limits
) -> tuple[float, int, int]:
    """Cycles of a sample, blocks of memory, weights."""
    if block == _DENSE:
        size = operand.outputs * operand.inputs
        return dense_cycles, engine.num_memory_blocks(size), size
    layer = BlockLayer(operand.outputs, operand.inputs, block)
    use = engine_use(layer, engine, limits.batch * operand.rows)
    return use.cycles / limits.batch, use.num_memory_blocks, layer.num_weights


def _evaluate_design(
    layers: Sequence[Layer], best: Design, limits: Limits
) -> tuple[float, float, dict[str, EngineUse]]:
    """Energy of a sample; of layers in blocks the largest deviation of fixed point, and their use."""
    energy, error, uses = 0.0, 0.0, {}
    for item, block in zip(layers, best.blocks, strict=True):
        if block == _DENSE:
            continue
        layer = BlockLayer(item.outputs, item.inputs, block)
        uses[item.name] = use = engine_use(layer, best.engine, limits.batch)
        energy += use.energy_j / limits.batch * item.rows
        error = max(error, relative_error(*layer.num_blocks, block, limits.word_bits))
    return energy, error, uses
