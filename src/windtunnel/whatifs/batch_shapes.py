"""The inputs of operators at another batch size.

In: what a capture noted of each operator's inputs (shapes, types, strides, bytes of parameters). Out: the same at
another batch, and by how much its flops and bytes grow. Which dimension holds the samples is found out: parameters do
not; of a product, one of its sizes does; of all else, the first one or two dimensions, where their size is one that
holds samples elsewhere in the graph. Not here: the graph (``another_batch``), prices.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from windtunnel.graph.flops import PRODUCT_OPERANDS

__all__ = ["Growth", "Inputs", "carriers", "resize_operator"]

Path = tuple[int, ...]

_ITEM_BYTES = {"float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8, "int": 4, "bool": 1}
_MAX_TENSORS = 12  # among which parameters are looked for
_TABLES = ("embedding_dense_backward", "embedding_backward")  # whose result is as large as a parameter


class _Tensor(NamedTuple):
    """A tensor among the inputs: where it stands, its shape, its bytes."""

    path: Path
    shape: tuple[int, ...]
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a capture noted of one operator's inputs.

    Parameters
    ----------
    operator : str
        Schema name.
    shapes, dtypes, strides : str
        JSON text, one entry per argument.
    param_bytes : int
        Bytes of those inputs that are parameters.
    is_backward : bool
    """

    operator: str
    shapes: str
    dtypes: str = ""
    strides: str = ""
    param_bytes: int = 0
    is_backward: bool = False

    @property
    def name(self) -> str:
        """Without name space and overload."""
        return self.operator.rpartition("::")[2].partition(".")[0].rstrip("_")

    def tensors(self) -> list[_Tensor]:
        """All of them, lists of tensors opened; a number has no dimension and does not count."""
        types = json.loads(self.dtypes) if self.dtypes else []
        return list(_tensors(json.loads(self.shapes) if self.shapes else [], types, ()))

    def parameters(self, tensors: Sequence[_Tensor]) -> frozenset[Path]:
        """Those tensors whose bytes add up to those of the parameters, later arguments first."""
        if not self.param_bytes or len(tensors) > _MAX_TENSORS:
            return frozenset()
        # A capture notes how many bytes of an operator's inputs are parameters, not which: the smallest subset of
        # tensors with that sum, preferring later arguments, as weights come after data.
        for count in range(1, len(tensors) + 1):
            for some in itertools.combinations(reversed(tensors), count):
                if sum(item.num_bytes for item in some) == self.param_bytes:
                    return frozenset(item.path for item in some)
        return frozenset()


@dataclass(frozen=True, slots=True)
class Growth:
    """Inputs at the other batch, and its flops and bytes over the captured ones."""

    inputs: Inputs
    flops_ratio: float = 1.0
    read_ratio: float = 1.0
    written_ratio: float = 1.0


def carriers(captured: Iterable[Inputs], batch_size: int) -> frozenset[int]:
    """Sizes of first dimensions that hold samples: the batch, and what it was made one with (rows, heads, channels)."""
    result = {batch_size}
    for item in captured:
        tensors = item.tensors()
        # Samples may be merged with another dimension (batch x heads, batch x positions): such sizes are collected
        # from the whole graph, since a single operator does not show it.
        known = item.parameters(tensors)
        result |= {
            tensor.shape[0] * tensor.shape[1]
            for tensor in tensors
            if len(tensor.shape) > 2 and tensor.shape[0] == batch_size
        }
        for symbol, size in _symbols(item, tensors).items():
            is_free = not any(path in known for path, _ in symbol.dims)
            if is_free and (symbol.name == "batch" or (symbol.name == "rows" and known)):
                result.add(size)
    return frozenset(size for size in result if size and size % batch_size == 0)


def resize_operator(captured: Inputs, sizes: frozenset[int], old: int, new: int) -> Growth:
    """One operator at the other batch.

    Parameters
    ----------
    captured : Inputs
    sizes : frozenset of int
        What ``carriers`` found in the whole graph.
    old, new : int
        Batch sizes.

    Examples
    --------
    >>> inputs = Inputs("aten::mm", "[[64,256],[256,32]]", '["Tensor(float)","Tensor(float)"]', "", 32768)
    >>> resized = resize_operator(inputs, frozenset({8, 64}), 8, 16)
    >>> resized.inputs.shapes, resized.flops_ratio, round(resized.read_ratio, 2)
    ('[[128,256],[256,32]]', 2.0, 1.67)
    """
    tensors = captured.tensors()
    known = captured.parameters(tensors)
    symbols = _symbols(captured, tensors)
    if symbols:
        selected = _find_batch_symbol(captured, symbols, known, sizes, old)
        scaled_dims = dict(selected.dims) if selected else {}
        writes = bool(selected) and selected.name != "inner"  # type: ignore[union-attr]
    else:
        scaled_dims = _places(tensors, known, sizes, old, has_parameters=captured.param_bytes > 0)
        writes = bool(scaled_dims) and captured.name not in _TABLES
    if not scaled_dims:
        return Growth(captured)
    before = sum(tensor.num_bytes for tensor in tensors)
    after = sum(tensor.num_bytes * (new / old if tensor.path in scaled_dims else 1.0) for tensor in tensors)
    shapes, strides = json.loads(captured.shapes), json.loads(captured.strides) if captured.strides else []
    for path, dim in scaled_dims.items():
        _scale_shape(shapes, strides, path, dim, (old, new))
    extended = replace(captured, shapes=_text(shapes), strides=_text(strides) if captured.strides else "")
    return Growth(extended, new / old, after / before if before else new / old, new / old if writes else 1.0)


# --- products -----------------------------------------------------------------------------------------------


class _Symbol(NamedTuple):
    """One size of a product, and every (tensor, dimension) that has it."""

    name: str
    dims: tuple[tuple[Path, int], ...]


def _symbols(captured: Inputs, tensors: Sequence[_Tensor]) -> dict[_Symbol, int]:
    """Sizes of (rows x inner) times (inner x columns), empty where the operator is no such product."""
    where = PRODUCT_OPERANDS.get(captured.name)
    result = {tensor.path: tensor.shape for tensor in tensors}
    if where is None or any((index,) not in result for index in where):
        return {}
    (left, right), (a, b) = ((where[0],), (where[1],)), (result[(where[0],)], result[(where[1],)])
    if len(a) < 2 or len(b) < 2 or (captured.name != "linear" and len(a) != len(b)):
        return {}
    inner, columns = (-1, -2) if captured.name == "linear" else (-2, -1)
    row = 0 if captured.name == "linear" else len(a) - 2
    added = result.get((0,), ()) if where[0] == 1 else ()
    rows = [(left, row), *[((0,), len(added) - 2)] * (len(added) == len(a))]
    cols = [(right, len(b) + columns), *[((0,), len(added) - 1)] * (len(added) > 0)]
    num_rows = math.prod(a[:-1]) if captured.name == "linear" else a[-2]
    symbols = {
        _Symbol("rows", tuple(rows)): num_rows,
        _Symbol("inner", ((left, len(a) - 1), (right, len(b) + inner))): a[-1],
        _Symbol("columns", tuple(cols)): b[columns],
    }
    if captured.name in ("bmm", "baddbmm"):
        batch = [(left, 0), (right, 0), *[((0,), 0)] * (len(added) == len(a))]
        symbols = {_Symbol("batch", tuple(batch)): a[0], **symbols}
    return symbols


def _find_batch_symbol(
    captured: Inputs, symbols: dict[_Symbol, int], known: frozenset[Path], sizes: frozenset[int], old: int
) -> _Symbol | None:
    """The size that holds the samples: none of a parameter; a gradient of a weight sums over them."""
    first = ("batch", "inner", "rows", "columns") if captured.is_backward else ("batch", "rows", "inner", "columns")
    free = [symbol for symbol in symbols if not any(path in known for path, _ in symbol.dims)]
    ordered = sorted(free, key=lambda item: first.index(item.name))
    # First exact sizes that hold samples elsewhere, then any multiple of the batch.
    for holds in (lambda size: size in sizes, lambda size: size and size % old == 0):
        for item in ordered:
            if holds(symbols[item]):
                return item
    return None


# --- all other operators --------------------------------------------------------------------------------------


def _places(
    tensors: Sequence[_Tensor], known: frozenset[Path], sizes: frozenset[int], old: int, *, has_parameters: bool
) -> dict[Path, int]:
    """The dimension to scale of each tensor that holds samples."""
    alike = {tensor.shape for tensor in tensors if tensor.path in known}  # a copy of a parameter, its running mean
    others = [tensor for tensor in tensors if tensor.path not in known and tensor.shape not in alike]
    wide = [entry for entry in others if len(entry.shape) > 1]
    main = next(((entry, dim) for entry in wide if (dim := _dim(entry.shape, sizes, old)) is not None), None)
    if main is None:
        return {entry.path: 0 for entry in others if len(entry.shape) == 1 and entry.shape[0] in sizes}
    size = main[0].shape[main[1]]
    result: dict[Path, int] = {}
    for item in others:
        same = next((dim for dim in range(min(2, len(item.shape))) if item.shape[dim] == size), None)
        dim = same if same is not None or has_parameters or len(item.shape) < 2 else _dim(item.shape, sizes, old)
        if dim is not None:
            result[item.path] = dim
    return result


def _dim(shape: tuple[int, ...], sizes: frozenset[int], old: int) -> int | None:
    if shape[0] in sizes:
        return 0
    return 1 if shape[1] == old else None


# --- text -----------------------------------------------------------------------------------------------------


def _tensors(shapes: Any, types: Any, path: Path) -> Iterator[_Tensor]:
    for index, shape in enumerate(shapes):
        kind = types[index] if isinstance(types, list) and index < len(types) else ""
        if isinstance(shape, list) and shape and all(isinstance(size, int) for size in shape):
            item = _ITEM_BYTES.get(str(kind).partition("Tensor(")[2].partition(")")[0], 4)
            yield _Tensor((*path, index), tuple(shape), item * math.prod(shape))
        elif isinstance(shape, list):
            yield from _tensors(shape, [kind] * len(shape), (*path, index))


def _scale_shape(shapes: Any, strides: Any, path: Path, dim: int, sizes: tuple[int, int]) -> None:
    """In place; strides that reach over the dimension grow with it."""
    shape, stride = _at(shapes, path), _at(strides, path)
    old, new = sizes
    if isinstance(stride, list) and len(stride) == len(shape):
        # A stride at least as long as the scaled dimension passes over all of it, so that it grows with it.
        reach = stride[dim] * shape[dim]
        for index, step in enumerate(stride):
            if index != dim and reach and step >= reach:
                stride[index] = step * new // old
    shape[dim] = shape[dim] * new // old


def _at(values: Any, path: Path) -> Any:
    for index in path:
        if not isinstance(values, list) or index >= len(values):
            return None
        values = values[index]
    return values


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
