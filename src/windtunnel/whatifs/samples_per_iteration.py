"""How many samples an iteration trains on, seen from its operators.

In: a captured program, or a graph of operators that says with what its models were called. Out: a size, 0 where that is
not clear. Not here: another size (``batch``, ``another_batch``).
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from windtunnel.cost.rerun import Call, Program, TensorSpec, data_of, random_inputs, tensors_of
from windtunnel.graph import Graph, Kind, Phase
from windtunnel.whatifs.layer_gradients import one_iteration

__all__ = [
    "batch_size_of",
    "batch_size_of_operators",
    "batches_of",
    "batches_of_operators",
    "input_shapes_of",
    "passes_of",
    "passes_of_operators",
]

Shape = tuple[int, ...]
_ALIGNED = frozenset({"add", "div", "masked_fill", "mul", "sub", "where"})  # repeat a tensor of fewer dimensions
# operators whose arguments say which dimension holds the samples: which argument, which of its dimensions, how many
# dimensions it has at least
_RECURRENT = {"lstm": 1, "gru": 1, "rnn_tanh": 1, "rnn_relu": 1, "mkldnn_rnn_layer": 5}  # their hidden state
_HIDDEN_DIM, _HIDDEN_DIMS = -2, 3
_CELLS = frozenset({"lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"})
_LOADER = ".*DataLoader.*"
_MAX_REDUCED_BYTES = 8  # what a loss writes: one number


def batch_size_of(program: Program) -> int:
    """The size by which inputs and outputs of a model can be parted; 0 where that is not clear.

    Every tensor that enters a model votes for its first dimension by which the model's outputs can be parted: a
    data set from which the step draws, weights, and inputs of time steps first are not taken for the batch. Where
    operators say in which dimension their samples are (recurrent layers, attention, convolutions), that one counts. The
    size counts by which most tensors can be parted (one that begins with 1 is repeated), then the one with most
    votes, with votes of more dimensions, and a larger one than 1.
    """
    entering, outputs = _around_models(program)
    entering = entering or [spec.shape for spec in program.data_inputs().values() if spec.shape]
    calls = ((call.operator, call.shapes) for call in program.calls if not call.mark)
    return _vote_on_size(entering, outputs, _sample_sizes(calls))


def batch_size_of_operators(graph: Graph) -> int:
    """The same of a graph that keeps no program: seen from the inputs of its models and what its losses reduce."""
    entering = [shape for shape in input_shapes_of(graph) if shape]
    if not entering or "input_shapes" not in graph.tasks:
        return 0
    tasks = graph.tasks
    rows = np.flatnonzero(graph.select(kind=Kind.COMPUTE, phase=Phase.FORWARD)).tolist()
    ops, strings = tasks.strings("op"), tasks.strings("input_shapes")
    calls = [(ops.decode(row), json.loads(strings.decode(row) or "[]")) for row in rows]
    reduced = [
        next(iter(_shapes(shapes)), ())
        for row, (_, shapes) in zip(rows, calls, strict=True)
        if 0 < tasks["bytes_written"][row] <= _MAX_REDUCED_BYTES < tasks["bytes_read"][row]
    ]
    return _vote_on_size(entering, _without_means([shape for shape in reduced if shape]), _sample_sizes(calls))


def passes_of(program: Program) -> int:
    """How many backward passes add into the gradients of one update: those that begin with the same first operator."""
    passes, most, is_open = 0, 1, False
    # Passes whose models begin with another operator belong to another loss, and are not accumulated. What the script
    # does before, with its data and the last loss, says nothing.
    has_layers = any(call.layer for call in program.calls)
    begins: list[str] = []
    for call in program.calls:
        if call.mark == "update":
            most, passes, begins = max(most, passes), 0, []
        elif call.mark == "backward":
            passes, is_open = passes + is_open, False
        elif call.grad and not is_open and (call.layer or not has_layers):
            is_open = True
            begins.append(call.schema + call.signature)
            if begins[0] != begins[-1]:
                passes, begins = 0, begins[-1:]
    return max(most, passes)


def batches_of(program: Program) -> int:
    """How many batches an iteration trains on: backward passes with data that no earlier one read; 0 if not clear.

    A batch that passes read again, as models that are trained in turns do, counts once. Noise that the script draws is
    data where there is no other, as in a script that draws its batches.
    """
    made_of: dict[int, frozenset[Hashable]] = {}  # by identity of data
    created, noise, current = set[Hashable](), set[Hashable](), set[Hashable]()
    passes: list[set[Hashable]] = []
    num_updates = 0
    for seen in _follow_data(program):
        sources = frozenset[Hashable]().union(*(made_of.get(spec.identity, {spec.identity}) for spec in seen.data))
        if seen.call.mark == "backward":
            passes.append(current)
            current = set()
        elif seen.is_model:
            current |= sources
        elif not seen.call.mark:
            size = max((spec.num_elements for spec in seen.data), default=0)
            for spec in seen.results:
                # a part of a tensor, or several together, are other samples; the same part again is the same
                is_part = spec.num_elements != size
                name = (seen.call.schema, seen.call.signature, spec.path, sources) if sources else spec.identity
                made_of[spec.identity] = frozenset({name}) if is_part else sources
                created |= made_of[spec.identity] - sources
            noise |= set() if seen.call.phase is Phase.DATA else set(random_inputs(seen.call))
        num_updates += seen.call.mark == "update"
    data = set[Hashable]().union(*passes) - noise
    known, count = set[Hashable](), 0
    for read in passes:
        new = (read & data if data else read) - known
        count, known = count + bool(new), known | new
    if count <= 1 and not (data & created):  # the same tensors again and again stand for batches
        return passes_of(program)
    return 0 if not data and num_updates > 1 else count


def passes_of_operators(graph: Graph) -> int:
    """The same of a graph that keeps no program: seen from its phases, where each pass calls models on equal shapes."""
    if "phase" not in graph.tasks:
        return 1
    rows = np.flatnonzero(graph.select(kind=Kind.COMPUTE))
    rows = rows[np.argsort(graph.tasks.get("order", np.arange(graph.num_tasks))[rows], kind="stable")]
    passes, max_passes, is_open = 0, 0, False
    for phase in graph.tasks["phase"][rows].tolist():
        if phase == Phase.UPDATE:
            passes = 0
        elif phase == Phase.BACKWARD:
            passes, is_open = passes + is_open, False
        is_open |= phase == Phase.FORWARD
        max_passes = max(max_passes, passes)
    entering = input_shapes_of(graph)
    is_equal = bool(entering) and entering == entering[: len(entering) // max(max_passes, 1)] * max_passes
    return max_passes if is_equal else 1


def batches_of_operators(graph: Graph) -> int:
    """The same of a graph that keeps no program: also seen from how often it takes a batch from a loader."""
    passes = passes_of_operators(graph)
    if "phase" not in graph.tasks:
        return passes
    rows = np.flatnonzero(one_iteration(graph, None))
    rows = rows[np.argsort(graph.tasks.get("order", np.arange(graph.num_tasks))[rows], kind="stable")]
    is_loader = graph.select(phase=Phase.DATA, name=_LOADER)[rows]
    # a batch is taken between other work: stretches of the phase in which a loader runs
    is_data = graph.tasks["phase"][rows] == Phase.DATA
    stretch = np.cumsum(np.diff(is_data, prepend=False))
    return max(passes, len(np.unique(stretch[is_loader])))


def input_shapes_of(graph: Graph) -> list[Shape]:
    """Shapes of the tensors that the models are called with, where the graph says so."""
    return [tuple(shape) for shape in graph.meta.shapes.get("inputs", ())]


def _vote_on_size(entering: list[Shape], outputs: list[Shape], sample_sizes: frozenset[int]) -> int:
    """The size that most tensors agree about."""
    votes: dict[int, list[int]] = {}
    # what begins with several ones is repeated over samples, as tables of positions are
    voting = [shape for shape in entering if shape[:2] != (1, 1)] or entering
    for shape in voting:
        if size := _parting(shape, outputs, sample_sizes):
            votes.setdefault(size, []).append(len(shape))
    ranks = {
        size: (sum(shape[0] == 1 or _parts(size, shape) for shape in entering), len(dims), max(dims), size > 1)
        for size, dims in votes.items()
    }
    best = max(ranks.values(), default=None)
    result = [size for size, rank in ranks.items() if rank == best]
    return result[0] if len(result) == 1 else 0


def _sample_sizes(calls: Iterable[tuple[str, Any]]) -> frozenset[int]:
    """Numbers of samples that operators state by the layout of their arguments."""
    return frozenset(size for operator, shapes in calls if (size := _samples(operator, shapes)) > 0)


def _samples(operator: str, shapes: Any) -> int:
    name = operator.rpartition("::")[2].partition(".")[0].rstrip("_")
    if name in _RECURRENT and len(shapes) > _RECURRENT[name]:
        hidden = next(iter(_shapes([shapes[_RECURRENT[name]]])), ())
        is_batched = len(hidden) >= _HIDDEN_DIMS or (name == "mkldnn_rnn_layer" and len(hidden) > 1)
        return hidden[_HIDDEN_DIM] if is_batched else 0
    first = next(iter(_shapes(shapes)), ())
    is_attention = "scaled_dot_product" in name and len(first) == 4
    is_convolution = "conv" in name and len(first) >= 3
    return first[0] if name in _CELLS or is_attention or is_convolution else 0


def _shapes(values: Any) -> Iterator[Shape]:
    for value in values:
        if isinstance(value, list | tuple) and value:
            if all(isinstance(size, int) for size in value):
                yield tuple(value)
            else:
                yield from _shapes(value)


class _Seen(NamedTuple):
    """A call, its results, and what it reads: results of models, and data, which no model made."""

    call: Call
    results: list[TensorSpec]
    created: list[TensorSpec]
    data: list[TensorSpec]
    is_model: bool


def _follow_data(program: Program) -> Iterator[_Seen]:
    """All calls with what they read; a tensor that no call produced is data."""
    origin: dict[int, str] = {}
    for call in program.calls:
        specs = tensors_of(call.inputs, call.shapes, call.types, call.strides)
        results = tensors_of(call.outputs, call.output_shapes, call.output_types)
        created = [spec for spec in specs if origin.get(spec.identity) == "model"]
        outside = [] if call.mark else [spec for spec in data_of(call) if spec.identity not in program.parameters]
        # numbers say nothing of the batch: positions plus a number stay positions
        data = [spec for spec in outside if spec.shape and origin.get(spec.identity, "data") == "data"]
        is_model = bool(created) or any(spec.identity in program.parameters for spec in specs)
        is_data = bool(data or random_inputs(call)) or call.phase is Phase.DATA
        origin |= {spec.identity: "model" if is_model else "data" if is_data else "own" for spec in results}
        yield _Seen(call, results, created, data, is_model)


def _around_models(program: Program) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Shapes of the data that enter models, each tensor once, and of what losses reduce to a number."""
    entering: dict[int, tuple[int, ...]] = {}
    sources: dict[int, frozenset[int]] = {}  # of what models compute: those of ``entering`` that it depends on
    repeated: set[int] = set()
    targets: dict[int, tuple[int, ...]] = {}  # enter losses alone: a step may learn of some of its data only
    outputs: list[tuple[int, ...]] = []
    for seen in _follow_data(program):
        if not seen.is_model:
            continue
        is_aligned = seen.call.operator.removeprefix("aten::").rstrip("_") in _ALIGNED
        dims = max((len(spec.shape) for spec in seen.created), default=0) if is_aligned else 0
        # what is repeated over a model's first dimensions, as positions are, says nothing of the batch
        result = {spec.identity: spec.shape for spec in seen.data if len(spec.shape) >= max(dims, 1)}
        is_loss = bool(seen.results) and all(spec.num_elements == 1 for spec in seen.results)
        if is_loss:
            targets |= result
        else:
            entering = result | entering
        aligned = [(len(spec.shape), sources.get(spec.identity, frozenset())) for spec in seen.created]
        repeated |= _find_repeats(aligned) if is_aligned else frozenset()
        depends = frozenset(result).union(*(of_tensor for _, of_tensor in aligned))
        sources |= {spec.identity: depends for spec in seen.results}
        if is_loss:
            outputs += [spec.shape for spec in seen.created if spec.num_elements > 1]
    entering = entering or targets
    voting = [shape for identity, shape in entering.items() if identity not in repeated]
    return voting or list(entering.values()), _without_means(outputs)


def _find_repeats(aligned: list[tuple[int, frozenset[int]]]) -> frozenset[int]:
    """Inputs that only tensors of fewer dimensions depend on, as looked-up positions that are added to scores."""
    dims = max((count for count, _ in aligned), default=0)
    full = frozenset[int]().union(*(of_tensor for count, of_tensor in aligned if count == dims))
    fewer = frozenset[int]().union(*(of_tensor for count, of_tensor in aligned if 0 < count < dims))
    return fewer - full if full else frozenset()


def _without_means(outputs: list[Shape]) -> list[Shape]:
    """A loss of means over the batch, as that which balances experts, says nothing of its size."""
    outputs = [shape for shape in outputs if shape[0] > 1] or outputs
    return [shape for shape in outputs if len(shape) > 1] or outputs


def _parting(shape: Shape, outputs: list[Shape], sample_sizes: frozenset[int]) -> int:
    """The first size of a tensor by which all outputs can be parted, theirs where it has several of each; 0: none."""
    parting = [size for size in shape if size and all(_parts(size, output) for output in outputs)]
    stated = next((size for size in parting if size in sample_sizes), 0)
    if stated:
        return stated
    first = {output[0] for output in outputs}
    if len(first) == 1 and shape[0] and not shape[0] % min(first):
        return min(first)
    # any tensor can be parted by 1: that is a batch only if the samples come first
    return next((size for size in parting if size > 1 or shape[0] == 1), 0)


def _parts(size: int, shape: tuple[int, ...]) -> bool:
    return any(side % size == 0 for side in shape)
