"""Every net of a small search space: cells of four nodes, stacked three times five.

In: a number below 15,625, or six operations. Out: a module in pure torch. The topology is that of NAS-Bench-201: node
j sums what its edges from all earlier nodes make of them; a stage of five cells has 16, 32, then 64 channels, a
residual block halves the image between stages. Edges ``none``, and what only such edges lead to or from, are not
built, as no deployed net would run them. Not here: training, search (``systems.utilization.cells.search``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windtunnel.base.extras import require
from windtunnel.errors import InputError

if TYPE_CHECKING:
    import torch

__all__ = ["EDGES", "NUM_CELLS", "OPERATIONS", "Cell", "cell_parts", "network"]

OPERATIONS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
EDGES = ((1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2))
"""(node, earlier node), in the order in which the benchmark's names list them."""
NUM_CELLS = len(OPERATIONS) ** len(EDGES)


@dataclass(frozen=True, slots=True)
class Cell:
    """Six operations, one per edge of ``EDGES``.

    Raises
    ------
    InputError
        There are not six, or one is unknown.

    Examples
    --------
    >>> Cell.of_index(0).name
    '|none~0|+|none~0|none~1|+|none~0|none~1|none~2|'
    >>> Cell.of_index(12345).index
    12345
    """

    operations: tuple[str, ...]

    def __post_init__(self) -> None:
        unknown = [name for name in self.operations if name not in OPERATIONS]
        if unknown or len(self.operations) != len(EDGES):
            raise InputError(
                f"a cell has {len(EDGES)} operations, these are {', '.join(self.operations)}",
                where=", ".join(unknown),
                fix=f"choose from {', '.join(OPERATIONS)}",
            )

    @classmethod
    def of_index(cls, index: int) -> Cell:
        """Return the cell of a number, from its digits to base five.

        Raises
        ------
        InputError
            There is no such number.
        """
        if not 0 <= index < NUM_CELLS:
            raise InputError(f"no cell has the number {index}", where="index", fix=f"use 0 to {NUM_CELLS - 1}")
        base = len(OPERATIONS)
        return cls(tuple(OPERATIONS[index // base**position % base] for position in range(len(EDGES))))

    @property
    def index(self) -> int:
        """The number of the cell."""
        return sum(
            OPERATIONS.index(name) * len(OPERATIONS) ** position for position, name in enumerate(self.operations)
        )

    @property
    def name(self) -> str:
        """Return the cell in the notation of the benchmark."""
        nodes = [
            "".join(f"|{name}~{src}" for (dst, src), name in zip(EDGES, self.operations, strict=True) if dst == node)
            for node in (1, 2, 3)
        ]
        return "|+".join(nodes) + "|"

    def live_edges(self) -> list[tuple[int, int, str]]:
        """Return (node, earlier node, operation) of edges on a path from the input to the output."""
        edges = [(dst, src, name) for (dst, src), name in zip(EDGES, self.operations, strict=True) if name != "none"]
        reached, useful = {0}, {3}
        for dst, src, _ in edges:
            if src in reached:
                reached.add(dst)
        for dst, src, _ in reversed(edges):
            if dst in useful:
                useful.add(src)
        return [(dst, src, name) for dst, src, name in edges if src in reached and dst in useful]


def network(
    cell: Cell | int,
    *,
    channels: int = 16,
    cells_per_stage: int = 5,
    num_classes: int = 10,
    seed: int = 0,
) -> torch.nn.Module:
    """The whole net of a cell, in ``eval`` mode, for images [batch, 3, height, width].

    Parameters
    ----------
    cell : Cell or int
    channels : int
        Of the first stage; each of the next two has twice as many.
    cells_per_stage : int
    num_classes : int
    seed : int
        Of the weights.

    Raises
    ------
    InputError
        There is no such cell.
    MissingExtraError
        PyTorch is not installed.
    """
    require("torch", extra="torch")
    import torch
    from torch import nn

    cell = Cell.of_index(cell) if isinstance(cell, int) else cell
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        stem = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))
        body = list(_body(cell, channels, cells_per_stage))
        width = 4 * channels
        head = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return nn.Sequential(stem, *body, head, nn.Linear(width, num_classes)).eval()


def cell_parts(name: str, channels: int = 16) -> list[tuple[Any, int]]:
    """Return the building blocks of a name, each with the stage of its input: -1 for the image.

    ``frame`` is all but the cells; ``sum`` adds two features, ``nothing`` is a cell that no way leads through; every
    operation but ``none`` has one block per stage.
    """
    import torch
    from torch import nn

    width = 4 * channels
    if name == "frame":
        head = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return [
            (nn.Sequential(nn.Conv2d(3, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)).eval(), -1),
            (_reduction(channels, 2 * channels).eval(), 0),
            (_reduction(2 * channels, 4 * channels).eval(), 1),
            (nn.Sequential(head, nn.Linear(width, 10)).eval(), 2),
        ]
    functions = {"sum": lambda features: features + features, "nothing": torch.zeros_like}
    if name in functions:
        return [(functions[name], stage) for stage in range(3)]
    return [(_operation(name, channels * 2**stage).eval(), stage) for stage in range(3)]


def _body(cell: Cell, channels: int, cells_per_stage: int) -> Iterator[torch.nn.Module]:
    for stage in range(3):
        width = channels * 2**stage
        if stage:
            yield _reduction(width // 2, width)
        for _ in range(cells_per_stage):
            yield _cell_module(cell, width)


def _operation(name: str, channels: int) -> torch.nn.Module:
    from torch import nn

    if name == "skip_connect":
        return nn.Identity()
    if name == "avg_pool_3x3":
        return nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
    kernel = 3 if name == "nor_conv_3x3" else 1
    return _relu_conv(channels, channels, kernel, 1)


def _relu_conv(inputs: int, outputs: int, kernel: int, stride: int) -> torch.nn.Module:
    from torch import nn

    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(nn.ReLU(), convolution, nn.BatchNorm2d(outputs))


def _cell_module(cell: Cell, channels: int) -> torch.nn.Module:
    import torch
    from torch import nn

    edges = cell.live_edges()

    class Nodes(nn.Module):
        """Four nodes, each the sum of the outputs of its edges."""

        def __init__(self) -> None:
            super().__init__()
            self.edges = nn.ModuleList([_operation(name, channels) for _, _, name in edges])

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            nodes: dict[int, Any] = {0: features}
            for (dst, src, _), module in zip(edges, self.edges, strict=True):
                created = module(nodes[src])
                nodes[dst] = nodes[dst] + created if dst in nodes else created
            return nodes[3] if 3 in nodes else torch.zeros_like(features)

    return Nodes()


def _reduction(inputs: int, outputs: int) -> torch.nn.Module:
    from torch import nn

    class Reduction(nn.Module):
        """A residual block that halves the image."""

        def __init__(self) -> None:
            super().__init__()
            self.first = _relu_conv(inputs, outputs, 3, 2)
            self.second = _relu_conv(outputs, outputs, 3, 1)
            pool = nn.AvgPool2d(2, stride=2)
            self.shortcut = nn.Sequential(pool, nn.Conv2d(inputs, outputs, 1, bias=False))

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.shortcut(features) + self.second(self.first(features))
            return result

    return Reduction()
