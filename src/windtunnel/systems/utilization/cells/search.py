"""Search of the space of cells by predicted cost.

In: measured times of a few dozen kernels. Out: ``CellSearch``: what optuna tried, and the front of it, with predicted
utilization or latency as an objective, or with flops alone. A cell's price is the sum of its edges' prices, exactly
what tracing the whole net would give, so that all 15,625 can be priced in a second. Not here: running the winners
(``run``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from windtunnel.base.extras import require
from windtunnel.cost import Peak
from windtunnel.cost.kernels import Kernel
from windtunnel.cost.lookup import Overhead, Table
from windtunnel.cost.tracing import trace
from windtunnel.errors import InputError
from windtunnel.sources.torch.flop_count import count
from windtunnel.systems.utilization.cells.networks import EDGES, OPERATIONS, Cell, cell_parts

__all__ = [
    "OBJECTIVES",
    "CellParts",
    "CellPrices",
    "CellSearch",
    "PricedCell",
    "front_of",
    "hypervolume",
    "search_cells",
]

OBJECTIVES = {"latency": "minimize", "flops": "minimize", "parameters": "maximize", "utilization": "maximize"}
_STAGES, _CELLS_PER_STAGE = 3, 5


@dataclass(frozen=True, slots=True)
class PricedCell:
    """A cell and what its net is predicted to be.

    Parameters
    ----------
    cell : Cell
    latency_ns : float
    flops, parameters : int
        Of the whole net, flops for the whole batch.
    utilization : float
    """

    cell: Cell
    latency_ns: float
    flops: int
    parameters: int
    utilization: float

    def value(self, objective: str) -> float:
        """The value of an objective, as ``OBJECTIVES`` names them."""
        return float(self.latency_ns if objective == "latency" else getattr(self, objective))


@dataclass(frozen=True)
class _Part:
    """The cost that one building block adds to a net."""

    kernels: tuple[Kernel, ...]
    flops: int
    parameters: int


class CellParts:
    """Kernels, flops and parameters of every building block of the space.

    Parameters
    ----------
    batch_size, image_size, channels : int
    """

    def __init__(self, *, batch_size: int = 1, image_size: int = 32, channels: int = 16) -> None:
        require("torch", extra="torch")
        self.batch_size, self.image_size, self.channels = batch_size, image_size, channels
        self._frame = [self._part(module, stage) for module, stage in cell_parts("frame", channels)]
        self._edges = {
            (name, stage): self._part(module, stage)
            for name in (*OPERATIONS[1:], "sum", "nothing")
            for module, stage in cell_parts(name, channels)
        }

    def _part(self, module: Any, stage: int) -> _Part:
        import torch
        from torch._subclasses import FakeTensorMode

        # a stage before the first is the image itself; the frame's blocks say what they are given
        width = 3 if stage < 0 else self.channels * 2**stage
        side = self.image_size // 2 ** max(stage, 0)
        shape = (self.batch_size, width, side, side)
        kernels = tuple(trace(module, [torch.empty(shape)]))
        with torch.inference_mode(), FakeTensorMode(allow_non_fake_inputs=True):
            counted = count(lambda: module(torch.zeros(shape)))
        parameters = sum(parameter.numel() for parameter in module.parameters()) if hasattr(module, "parameters") else 0
        return _Part(kernels, counted.total, parameters)

    def of(self, cell: Cell) -> Iterator[tuple[_Part, int]]:
        """Return the building blocks of the network with their counts."""
        yield from ((part, 1) for part in self._frame)
        edges = cell.live_edges()
        num_sums = len(edges) - len({dst for dst, _, _ in edges})
        for stage in range(_STAGES):
            for name, number in Counter(name for _, _, name in edges).items():
                yield self._edges[name, stage], _CELLS_PER_STAGE * number
            if num_sums:
                yield self._edges["sum", stage], _CELLS_PER_STAGE * num_sums
            if not edges:
                yield self._edges["nothing", stage], _CELLS_PER_STAGE

    def kernels(self) -> list[Kernel]:
        """Return every distinct kernel of the space."""
        parts = [*self._frame, *self._edges.values()]
        return list(dict.fromkeys(kernel for part in parts for kernel in part.kernels))


@dataclass(frozen=True)
class CellPrices:
    """Prices of all cells.

    Parameters
    ----------
    parts : CellParts
    table : mapping of Kernel to float
        Nanoseconds of every kernel of the space.
    overhead : Overhead
    peak : Peak
    """

    parts: CellParts
    table: Table
    overhead: Overhead
    peak: Peak

    def price(self, cell: Cell) -> PricedCell:
        """Predict the net of a cell."""
        alone_ns, calls, flops, parameters = 0.0, 0, 0, 0
        for part, number in self.parts.of(cell):
            alone_ns += number * sum(self.table[kernel] for kernel in part.kernels)
            calls += number * len(part.kernels)
            flops += number * part.flops
            parameters += number * part.parameters
        latency_ns = self.overhead.scale * alone_ns + self.overhead.per_call_ns * calls
        return PricedCell(cell, latency_ns, flops, parameters, 1e9 * flops / latency_ns / self.peak.flops_per_s)


@dataclass(frozen=True)
class CellSearch:
    """The result of one search.

    Parameters
    ----------
    objectives : tuple of str
    tried : tuple of PricedCell
        Distinct cells, in the order of trial.
    front : tuple of PricedCell
        Those that no other tried cell beats in all objectives.
    """

    objectives: tuple[str, ...]
    tried: tuple[PricedCell, ...]
    front: tuple[PricedCell, ...]


def search_cells(
    prices: CellPrices, objectives: Sequence[str] = ("parameters", "latency"), *, num_trials: int = 300, seed: int = 0
) -> CellSearch:
    """Search with optuna's NSGA-II.

    Parameters
    ----------
    prices : CellPrices
    objectives : sequence of str
        Of ``OBJECTIVES``, two or more.
    num_trials, seed : int

    Raises
    ------
    InputError
        An objective is unknown, or there is only one.
    MissingExtraError
        The extra ``search`` is not installed.

    Notes
    -----
    Source: arXiv 2212.07936 for utilization as the signal; Deb et al., NSGA-II, 2002. No accuracies are known here:
    the number of parameters stands for what a net can learn.
    """
    unknown = [name for name in objectives if name not in OBJECTIVES]
    if unknown or len(objectives) < 2:
        raise InputError(
            "a search weighs two or more objectives against each other",
            where=", ".join(unknown or objectives),
            fix=f"choose from {', '.join(OBJECTIVES)}",
        )
    optuna = require("optuna", extra="search")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        directions=[OBJECTIVES[name] for name in objectives],
        sampler=optuna.samplers.NSGAIISampler(seed=seed, population_size=min(50, max(4, num_trials // 6))),
    )
    tried: dict[Cell, PricedCell] = {}

    def objective(trial: Any) -> tuple[float, ...]:
        cell = Cell(tuple(trial.suggest_categorical(f"{dst}<-{src}", OPERATIONS) for dst, src in EDGES))
        priced = tried.setdefault(cell, prices.price(cell))
        return tuple(priced.value(name) for name in objectives)

    study.optimize(objective, n_trials=num_trials)
    result = tuple(tried.values())
    return CellSearch(tuple(objectives), result, front_of(result, objectives))


def front_of(cells: Iterable[PricedCell], objectives: Sequence[str]) -> tuple[PricedCell, ...]:
    """Return the Pareto front of cells; of equal cells one stays."""
    signs = [1.0 if OBJECTIVES[name] == "minimize" else -1.0 for name in objectives]
    points = {
        tuple(sign * cell.value(name) for sign, name in zip(signs, objectives, strict=True)): cell
        for cell in reversed(list(cells))
    }
    kept: list[tuple[float, ...]] = []
    for point in sorted(points):
        if not any(all(a <= b for a, b in zip(other, point, strict=True)) for other in kept):
            kept.append(point)
    return tuple(points[point] for point in kept)


def hypervolume(points: Iterable[tuple[float, float]], reference: tuple[float, float]) -> float:
    """Return the hypervolume of points (both coordinates minimized) relative to a worse reference point.

    Examples
    --------
    >>> hypervolume([(1.0, 2.0), (2.0, 1.0)], (3.0, 3.0))
    3.0
    """
    area, lowest = 0.0, reference[1]
    for x, y in sorted(points):
        if x < reference[0] and y < lowest:
            area += (reference[0] - x) * (lowest - y)
            lowest = y
    return area
