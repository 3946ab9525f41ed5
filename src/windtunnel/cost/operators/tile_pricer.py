"""The tile model as a pricer of captured graphs.

In: work of a graph (operator and shapes as captured) and a GPU. Out: prices with intervals, from a file that
``windtunnel models train tile`` wrote: ``tile=FILE``. Without a file it prices nothing, since no measurement is
shipped. Not here: the model (``tile``), CPUs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.cost.bounds import bounds
from windtunnel.cost.operators.physics import ITEM_BYTES
from windtunnel.cost.operators.table import OpTable
from windtunnel.cost.operators.tile import TileModel
from windtunnel.cost.pricer import Prices, exact_prices
from windtunnel.cost.work import Work, shapes_of
from windtunnel.graph.flops import PRODUCT_OPERANDS
from windtunnel.hardware import Device

__all__ = ["TilePricer", "operator_of", "tile"]

Shapes = Sequence[Sequence[int]]
Row = tuple[str, tuple[float, ...]]

_ELEMENTWISE = ("add", "div", "mul", "pow", "relu", "gelu", "tanh")
_UNARY = ("relu", "gelu", "tanh")
_ROWS = {"_softmax": "softmax", "softmax": "softmax", "native_layer_norm": "ln", "layer_norm": "ln"}


def _product(left: Sequence[int], right: Sequence[int]) -> Row | None:
    if len(left) == 2 and len(right) == 2 and left[1] == right[0]:
        return "linear", (1, left[0], left[1], right[1])
    if len(left) == 3 and len(right) == 3 and left[2] == right[1]:
        return "bmm", (left[0], left[1], left[2], right[2])
    return None


def _linear(images: Sequence[int], weight: Sequence[int]) -> Row:
    return "linear", (1, math.prod(images[:-1]), images[-1], weight[0])


def operator_of(name: str, shapes: Shapes) -> Row | None:
    """The op of an op set and its sizes; None where the tile model has no such operator.

    Examples
    --------
    >>> operator_of("aten::addmm", [[8], [4, 16], [16, 8]])
    ('linear', (1, 4, 16, 8))
    >>> operator_of("aten::add_", [[4, 16], []])
    ('addu', (4, 16))
    """
    plain = name.rpartition("::")[2].partition(".")[0]
    plain = plain.removesuffix("_")
    if any(size <= 0 for shape in shapes for size in shape):
        return None
    if plain in PRODUCT_OPERANDS:
        left, right = (shapes[operand] for operand in PRODUCT_OPERANDS[plain])
        return _linear(left, right) if plain == "linear" else _product(left, right)
    if not shapes or not shapes[0]:
        return None
    rows = (math.prod(shapes[0][:-1]), shapes[0][-1])
    if plain in _ROWS:
        return _ROWS[plain], rows
    if plain not in _ELEMENTWISE:
        return None
    is_scalar = len(shapes) < 2 or math.prod(shapes[1]) == 1
    return plain + ("u" if is_scalar and plain not in _UNARY else ""), rows


@dataclass(frozen=True, eq=False)
class TilePricer:
    """A trained tile model that prices captured work.

    Parameters
    ----------
    model : TileModel, optional
        None prices nothing.
    name : str
    """

    model: TileModel | None
    name: str = "tile"

    def covers(self, work: Work, device: Device) -> NDArray[np.bool_]:
        """Rows of operators that it knows, on a GPU whose cache is known, bool [P]."""
        if self.model is None or device.kind != "gpu" or device.last_cache_bytes is None:
            return np.zeros(len(work), dtype=bool)
        known = (_row(name, text) for name, text in zip(work.operator.tolist(), work.shapes.tolist(), strict=True))
        is_known = np.array([row is not None for row in known], dtype=bool)
        types = [name in ITEM_BYTES and name in device.peak_flops_per_s for name in work.dtype.tolist()]
        return np.asarray(is_known & np.array(types, dtype=bool), dtype=np.bool_)

    def price(self, work: Work, device: Device) -> Prices:
        """Prices of rows that it covers."""
        assert self.model is not None
        prices = exact_prices(bounds(work.flops, 0.0, flops_per_s=np.inf, bytes_per_s=np.inf))
        for dtype in dict.fromkeys(work.dtype.tolist()):
            rows = np.flatnonzero(work.dtype == dtype)
            prices = prices.replace_rows(rows, self._prices(work.take(rows), device, dtype))
        return prices

    def _prices(self, work: Work, device: Device, dtype: str) -> Prices:
        assert self.model is not None
        result = [_row(name, text) for name, text in zip(work.operator.tolist(), work.shapes.tolist(), strict=True)]
        table = OpTable.of_rows([(device.name, *row) for row in result if row is not None])
        priced = self.model.price(table, {device.name: device}, dtype)
        low, high = (priced.bounds.efficiency(1e6 * end) for end in (priced.high_ms, priced.low_ms))
        level = self.model.intervals.level if self.model.intervals else 0.9
        return Prices(priced.bounds, priced.efficiency, low, high, level)


def _row(name: str, text: str) -> Row | None:
    try:
        return operator_of(name, shapes_of(text)) if text else None
    except (ValueError, IndexError):
        return None  # shapes of another form: another model may know them


@registry.cost_model("tile", source="Lee, Phanishayee and Mahajan, NeuSight, ASPLOS 2025")
def tile(checkpoint: str = "") -> TilePricer:
    """Operators on GPUs that were never measured, from a file of ``windtunnel models train tile``."""
    if not checkpoint:
        return TilePricer(None)
    from windtunnel.cost.operators.tile_file import load_tile

    return TilePricer(load_tile(checkpoint))
