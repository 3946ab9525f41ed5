"""Parts of a program as functions of their own: what a compiler or a checkpoint sees, and losses in chunks.

In: prepared calls of a range. Out: ``Segment``: a ``torch.fx`` module over the tensors that enter, giving those that
leave. Not here: when it runs (``interpreter``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from windtunnel.cost.rerun.arguments import Prepared, Slot
from windtunnel.cost.rerun.chunked_loss import cross_entropy_in_chunks
from windtunnel.errors import PriceError

__all__ = ["Segment", "build_segments"]

_COMPILED: dict[Hashable, Callable[..., Any]] = {}  # by setting and calls
_MAX_COMPILED = 64


@dataclass
class Segment:
    """Calls [first, last) as one function from the versions ``enters`` to the slots ``leaves``."""

    first: int
    last: int
    function: Callable[..., Any]
    enters: list[int]
    leaves: list[Slot]
    dies: tuple[int, ...]

    def run(self, values: dict[int, Any]) -> Any:
        """The tensors that leave."""
        return self.function(*(values[version] for version in self.enters))


def build_segments(
    rows: list[Prepared],
    checkpointed: tuple[tuple[int, int], ...],
    compiled: tuple[tuple[int, int], ...],
    chunked: tuple[tuple[int, int, int], ...],
    stand_ins: Mapping[int, Sequence[torch.Tensor]],
    setting: Hashable = None,
) -> dict[int, Segment]:
    """Segments by the call that they begin with; ``stand_ins`` are results of calls that are not to be run.

    What is compiled is shared between all that run the same calls in the same ``setting``: threads, types, sizes.

    Raises
    ------
    PriceError
        A call in a segment cannot be run again.
    """
    result = {}
    for first, last in checkpointed:
        result[first] = _segment(rows, first, last, _wrap_in_checkpoint, stand_ins)
    for first, last in compiled:
        result[first] = _segment(rows, first, last, _compile_once(setting), stand_ins)
    for first, last, num_chunks in chunked:
        changed = _in_chunks(rows[first:last], num_chunks)
        if any(first <= index < last for index in stand_ins):
            raise PriceError("a part of the loss cannot be run again")
        segment = _segment(
            [*rows[:first], *changed, *rows[last:]], first, first + len(changed), lambda function, _: function, {}
        )
        result[first] = replace(segment, last=last)
    return result


def _in_chunks(rows: Sequence[Prepared], num_chunks: int) -> list[Prepared]:
    """The calls of a loss without those that make its logits, and the loss in chunks in their place."""
    layer, loss = rows[0], rows[-1]
    logits = {slot.version for slot in layer.outputs}
    on_path = [layer]
    for row in rows[1:-1]:  # views and copies of the logits
        if logits & {slot.version for slot in row.inputs}:
            on_path.append(row)
            logits |= {slot.version for slot in row.outputs}
    num_rows = loss.inputs[1].spec.num_elements
    _, labels, _, reduction, ignore_index, label_smoothing = loss.positional
    settings = {
        "num_chunks": num_chunks,
        "reduction": ("none", "mean", "sum")[reduction],
        "ignore_index": ignore_index,
        "label_smoothing": label_smoothing,
    }
    bias = layer.positional[2] if len(layer.positional) > 2 else None
    chunked = replace(
        loss,
        function=_loss_in_chunks,
        positional=[*layer.positional[:2], bias, labels, num_rows],
        keywords=settings,
        inputs=[*layer.inputs, *loss.inputs[1:]],
        dies=tuple({version for row in (*on_path, loss) for version in row.dies} - logits),
    )
    return [row for row in rows[:-1] if not any(row is other for other in on_path)] + [chunked]


def _loss_in_chunks(rows: Any, weight: Any, bias: Any, labels: Any, num_rows: int, **settings: Any) -> Any:
    # a loss of the next token leaves out the last row of each sequence: so many rows as there are labels
    selected = rows.reshape(-1, rows.shape[-1])[:num_rows]
    return cross_entropy_in_chunks(selected, weight, bias, labels.flatten(), **settings)


def _wrap_in_checkpoint(function: Callable[..., Any], num_held: int) -> Callable[..., Any]:
    def rerun(*tensors: Any) -> Any:
        held = tensors[:num_held]
        return checkpoint(lambda *activations: function(*held, *activations), *tensors[num_held:], use_reentrant=False)

    return rerun


def _compile_once(setting: Hashable) -> Callable[[Callable[..., Any], int], Callable[..., Any]]:
    """A wrapper that compiles a function once for all that run it in the same setting.

    All interpreters of a program compile the same ranges: the old form of each change, and each form once more for its
    memory. Tracing alone takes about a second each time.
    """

    def wrap(function: Any, _num_held: int) -> Callable[..., Any]:
        nodes = function.graph.nodes
        if any(node.op == "get_attr" for node in nodes):  # stand-ins have values of their own
            return _compile(function)
        recipe = (setting, *((node.op, node.target, f"{node.args} {node.kwargs}") for node in nodes))
        compiled = _COMPILED.pop(recipe) if recipe in _COMPILED else _compile(function)
        _COMPILED[recipe] = compiled  # the latest is last
        while len(_COMPILED) > _MAX_COMPILED:
            del _COMPILED[next(iter(_COMPILED))]
        return compiled

    return wrap


def _compile(function: Any) -> Callable[..., Any]:
    # the method, not the module: calling a module runs global hooks, and what is traced with them is traced anew
    compiled: Callable[..., Any] = torch.compile(function.forward, dynamic=False)
    return compiled


def _segment(
    rows: list[Prepared],
    first: int,
    last: int,
    wrap: Callable[[Callable[..., Any], int], Callable[..., Any]],
    stand_ins: Mapping[int, Sequence[torch.Tensor]],
) -> Segment:
    inner = rows[first:last]
    given = {key - first: values for key, values in stand_ins.items() if first <= key < last}
    problem = next((row.problem for index, row in enumerate(inner) if row.problem and index not in given), "")
    if problem:
        raise PriceError(f"a part of the program cannot be run again: {problem}")
    created = {slot.version for row in inner for slot in row.outputs}
    held = {slot.version for row in rows[:last] for slot in (*row.inputs, *row.outputs) if slot.is_held}
    needed = dict.fromkeys(slot.version for row in inner for slot in row.inputs if slot.version not in created)
    # activations last: what is left are parameters and buffers, which the module owns rather than receives
    enters = sorted(needed, key=lambda version: version not in held)
    num_held = sum(version in held for version in needed)
    later = {slot.version for row in rows[last:] for slot in row.inputs}
    leaves = [slot for row in inner for slot in row.outputs if slot.version in later or slot.is_root]
    dies = tuple({version for row in inner for version in row.dies} - created)
    return Segment(first, last, wrap(_function(inner, enters, leaves, given), num_held), enters, leaves, dies)


def _function(
    inner: list[Prepared], enters: list[int], leaves: list[Slot], given: Mapping[int, Sequence[torch.Tensor]]
) -> torch.fx.GraphModule:
    holder, graph = torch.nn.Module(), torch.fx.Graph()
    nodes: dict[int, Any] = {version: graph.placeholder(f"enter{version}") for version in enters}
    for number, row in enumerate(inner):
        if number in given:
            for slot, value in zip(row.outputs, given[number], strict=True):
                holder.register_buffer(f"given{slot.version}", value)
                nodes[slot.version] = graph.get_attr(f"given{slot.version}")
            continue
        positional, keywords = row.arguments(nodes)
        result = graph.call_function(row.function, tuple(positional), keywords)
        for index, slot in enumerate(row.outputs):
            nodes[slot.version] = (
                result if len(row.outputs) == 1 else graph.call_function(operator.getitem, (result, index))
            )
    graph.output(tuple(nodes[slot.version] for slot in leaves))
    return torch.fx.GraphModule(holder, graph)
