"""A graph at another batch size: all that a cost model reads is of the other batch.

In: a graph, its batch size and another. Out: the graph with shapes, strides, flops and bytes of the other; equal work
is thought about once. Not here: which dimension holds the samples (``batch_shapes``), prices, running operators again
(``batch``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.rerun import program_of
from windtunnel.errors import InputError, PriceError
from windtunnel.graph import Graph, Kind, Phase, Strings
from windtunnel.whatifs.batch_shapes import Growth, Inputs, carriers, resize_operator
from windtunnel.whatifs.placing import select_unpriced
from windtunnel.whatifs.samples_per_iteration import (
    batch_size_of,
    batch_size_of_operators,
    batches_of,
    batches_of_operators,
    input_shapes_of,
    passes_of,
    passes_of_operators,
)

__all__ = ["batch_of", "batches_per_iteration", "can_change_batch", "passes_per_update", "sizes_between", "with_batch"]

# T tasks, P distinct inputs of operators
Ints = NDArray[np.int64]
_RATIOS = {"flops": "flops_ratio", "bytes_read": "read_ratio", "bytes_written": "written_ratio"}


def batch_of(graph: Graph, dim: int | None = None) -> int:
    """The batch size of one forward pass that the captured program shows; 0 where it shows none.

    Parameters
    ----------
    graph : Graph
    dim : int, optional
        Of the inputs that holds the samples; by default what the program itself tells.

    Raises
    ------
    InputError
        The inputs do not agree in that dimension, or none has it.
    """
    try:
        program = program_of(graph)
    except PriceError:
        program = None
    if dim is None:
        return batch_size_of_operators(graph) if program is None else batch_size_of(program)
    inputs = input_shapes_of(graph) if program is None else [tensor.shape for tensor in program.data_inputs().values()]
    shapes = [shape for shape in inputs if -len(shape) <= dim < len(shape)]
    sizes = sorted({shape[dim] for shape in shapes})
    if len(sizes) != 1:
        result = f"sizes {', '.join(map(str, sizes))}" if sizes else "no size"
        raise InputError(
            f"the inputs have {result} in dimension {dim}, so that is not the batch",
            where=f"inputs of shape {', '.join(str(list(shape)) for shape in sorted(set(shapes))[:5]) or 'none'}",
            fix="name the dimension in which all inputs have the batch size: --batch-dim 0 counts from the front",
        )
    return sizes[0]


def passes_per_update(graph: Graph) -> int:
    """How many forward and backward passes, each over a batch, accumulate into the gradients of one update."""
    try:
        return passes_of(program_of(graph))
    except PriceError:
        return passes_of_operators(graph)


def batches_per_iteration(graph: Graph) -> int:
    """How many batches an iteration trains on; 0 where that is not clear."""
    try:
        return batches_of(program_of(graph))
    except PriceError:
        return batches_of_operators(graph)


def with_batch(graph: Graph, captured: int, requested: int) -> Graph:
    """The graph with the work of another batch: what handles samples grows, parameters and updates do not.

    Shapes and strides change as flops and bytes do, so that whatever a cost model reads is of the new batch. Where the
    graph tells no shapes, all that computes outside of the update grows, but for the bytes of its parameters.

    Raises
    ------
    InputError
        A size is not positive, or the captured one is not known.
    """
    if requested < 1:
        raise InputError(f"a batch cannot have {requested} samples", fix="use 1 or more")
    is_traced = not can_change_batch(graph)
    if captured < 1 or (is_traced and captured != requested):
        raise InputError(
            "a job that was traced without being run cannot get another batch"
            if is_traced
            else "the graph does not show its batch size",
            fix="trace the script again, with that batch: windtunnel capture --dry-run"
            if is_traced
            else "capture it with windtunnel, name the dimension with --batch-dim, or leave out --batch-size",
        )
    loads = graph.select(phase=Phase.DATA) & ~graph.select(kind=Kind.COMPUTE)
    return _at_batch(graph, captured, requested).scale(loads, requested / captured)


def can_change_batch(graph: Graph) -> bool:
    """Whether the work of another batch can be worked out: messages of a dry run are those of its own batch alone."""
    return bool(graph.meta.program) or not bool(select_unpriced(graph).any())


def sizes_between(captured: int, requested: int) -> list[int]:
    """The captured size and its doubles (or halves) on the way to the wanted one, which is the last.

    Examples
    --------
    >>> sizes_between(8, 40), sizes_between(8, 3), sizes_between(8, 8)
    ([8, 16, 32, 40], [8, 4, 3], [8])
    """
    result = [captured]
    while captured and (result[-1] * 2 <= requested or result[-1] // 2 >= requested > 0):
        result.append(result[-1] * 2 if requested > captured else result[-1] // 2)
    return result if result[-1] == requested or not requested else [*result, requested]


def _at_batch(graph: Graph, captured: int, requested: int) -> Graph:
    """Change what computes outside of the update."""
    computes: NDArray[np.bool_] = graph.select(kind=Kind.COMPUTE)
    selected = np.flatnonzero(computes & ~graph.select(phase=Phase.UPDATE) if "phase" in graph.tasks else computes)
    inputs, row_N = _distinct(graph, selected)
    sizes = carriers(inputs, captured)
    extended = [
        resize_operator(tensor, sizes, captured, requested)
        if tensor.shapes
        else _of_unknown_shapes(tensor, requested / captured)
        for tensor in inputs
    ]
    columns: dict[str, Any] = {
        name: _scale_bytes(
            graph, name, selected, np.array([getattr(item, ratio) for item in extended])[row_N] if extended else 1.0
        )
        for name, ratio in _RATIOS.items()
        if name in graph.tasks
    }
    for name, strings in (
        ("input_shapes", [item.inputs.shapes for item in extended]),
        ("input_strides", [item.inputs.strides for item in extended]),
    ):
        if name in graph.tasks:
            columns[name] = _replace_strings(graph.tasks.strings(name), selected, strings, row_N)
    return graph.set_columns(columns)


def _distinct(graph: Graph, rows: Ints) -> tuple[list[Inputs], Ints]:
    """Distinct inputs, and the row of each chosen task in them [N]."""
    # Layers of one shape repeat: a model of a thousand operators has some dozens of distinct inputs, and each
    # is resized once.
    strings = [_text(graph, name, rows) for name in ("op", "input_shapes", "input_dtypes", "input_strides")]
    params = graph.tasks["param_bytes"][rows] if "param_bytes" in graph.tasks else np.zeros(len(rows), np.int64)
    phase = graph.tasks["phase"][rows] if "phase" in graph.tasks else np.zeros(len(rows), np.int64)
    keys = np.stack([*(text.codes.astype(np.int64) for text in strings), params, phase == Phase.BACKWARD], axis=1)
    result, row_N = np.unique(keys, axis=0, return_inverse=True)
    inputs = [
        Inputs(
            strings[0].values[op],
            strings[1].values[shapes],
            strings[2].values[dtypes],
            strings[3].values[strides],
            param_bytes,
            bool(is_backward),
        )
        for op, shapes, dtypes, strides, param_bytes, is_backward in result.tolist()
    ]
    return inputs, row_N.reshape(-1).astype(np.int64)


def _text(graph: Graph, name: str, rows: Ints) -> Strings:
    result = name if name in graph.tasks else "name" if name == "op" else ""
    return graph.tasks.strings(result).take(rows) if result else Strings.repeat("", len(rows))


def _of_unknown_shapes(captured: Inputs, factor: float) -> Growth:
    return Growth(captured, factor, factor, factor)


def _scale_bytes(graph: Graph, name: str, rows: Ints, ratio: Any) -> Ints:
    """Where shapes are not known, bytes of parameters stay: they are what is read again and again."""
    values: Ints = graph.tasks[name].copy()
    known = values[rows].astype(np.float64)
    #      bytes = fixed (parameters) + ratio * the rest
    fixed = np.zeros(len(rows))
    if name == "bytes_read" and "param_bytes" in graph.tasks and "input_shapes" not in graph.tasks:
        fixed = np.minimum(graph.tasks["param_bytes"][rows].astype(np.float64), known)
    values[rows] = np.rint(fixed + ratio * (known - fixed)).astype(np.int64)
    return values


def _replace_strings(column: Strings, rows: Ints, strings: list[str], row_N: Ints) -> Strings:
    """The column with the texts of the chosen rows."""
    new = Strings.of(strings)
    values = tuple(dict.fromkeys((*column.values, *new.values)))
    index = {text: code for code, text in enumerate(values)}
    codes = column.codes.copy()
    if len(rows):
        codes[rows] = np.array([index[text] for text in strings], dtype=np.int32)[row_N]
    return Strings(codes, values)
