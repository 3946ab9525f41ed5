"""Which phase and which layer an operator belongs to, and which calls run again in the backward pass.

In: the rich iteration with its module marks. Out: a phase and a module path per event. Forward operators lie inside
the marks; a backward operator takes the layer of the forward operator that made its autograd node (equal sequence
numbers); an update takes the layer whose parameters it touches. A checkpoint calls its operators under autograd, which
the engine does not do with its own; one engine node runs one range of calls again, beginning with what the checkpoint
kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from windtunnel.graph import Phase
from windtunnel.sources.torch.annotate import GRADIENT, MODULE, PARAMETER, STATE
from windtunnel.sources.torch.compiled import REGION, UPDATE_REGION
from windtunnel.sources.torch.kernels import COMPILED
from windtunnel.sources.torch.ops import Operator
from windtunnel.sources.torch.profile import Events
from windtunnel.sources.torch.timeline_points import Points

__all__ = ["Repeats", "labels_within", "layers_of", "parameter_storages", "phases_of"]

_BACKWARD = "autograd::engine::evaluate_function"
_STEP = "Optimizer.step#"
_ZERO_GRADIENTS = "Optimizer.zero_grad#"
_UPDATES = (_STEP, _ZERO_GRADIENTS, UPDATE_REGION)
_LOADER = "enumerate(DataLoader)"
_REDUCER = "torch.distributed.ddp.reducer::"  # what a backward pass ends with where gradients are averaged
NO_CALL = -1
_MAX_SKIPPED = 8  # calls of a range that a second run may leave out, or runs outside of autograd


def phases_of(events: Events, points: Points) -> list[Phase]:
    """Phase of every event of ``points`` (module marks included)."""
    phases: list[Phase | None] = []
    losses = _losses_in_steps(events, points)
    for event, row in enumerate(points.rows.tolist()):
        own = _phase_of_name(events.names[row])
        parent = int(points.parent[event])
        inherited = phases[parent] if parent >= 0 else None
        inherited = Phase.FORWARD if event in losses else inherited
        if own is None and inherited is None and events.names[row].startswith(COMPILED):
            own = Phase.FORWARD  # of code that was compiled before anybody looked
        # a forward that a checkpoint runs again is part of the backward pass; a step that calls back for its loss
        # runs modules, and only what is compiled of the step itself is a region in it
        is_compiled_step = inherited is Phase.UPDATE and events.names[row].startswith(REGION)
        is_part = own is Phase.FORWARD and (inherited is Phase.BACKWARD or is_compiled_step)
        phases.append(inherited if own is None or is_part else own)
    averages = [events.names[row].startswith(_REDUCER) for row in points.rows.tolist()]
    return _between(phases, averages, _zeroes_gradients(events, points))


def _zeroes_gradients(events: Events, points: Points) -> list[bool]:
    """Events of setting gradients to zero: a loop may do it anywhere before its backward pass."""
    result: list[bool] = []
    for event, row in enumerate(points.rows.tolist()):
        parent = int(points.parent[event])
        result.append((parent >= 0 and result[parent]) or events.names[row].startswith(_ZERO_GRADIENTS))
    return result


def _losses_in_steps(events: Events, points: Points) -> set[int]:
    """Operators right within an optimizer's step that lead to a backward pass: a closure computes its loss there."""
    result: set[int] = set()
    following: dict[int, Phase] = {}  # by step: what comes next in it
    for event in range(len(points.rows) - 1, -1, -1):
        parent = int(points.parent[event])
        if parent < 0 or not events.names[int(points.rows[parent])].startswith(_STEP):
            continue
        own = _phase_of_name(events.names[int(points.rows[event])])
        if own is not None:
            following[parent] = own
        elif following.get(parent) is Phase.BACKWARD:
            result.add(event)
    return result


def _phase_of_name(name: str) -> Phase | None:
    if name.startswith((MODULE, REGION)):
        return Phase.FORWARD
    if name.startswith((_BACKWARD, _REDUCER)):
        return Phase.BACKWARD
    if name.startswith(_UPDATES):
        return Phase.UPDATE
    return Phase.DATA if name.startswith(_LOADER) else None


def _between(phases: list[Phase | None], averages: list[bool], zeroes: list[bool]) -> list[Phase]:
    """Operators in no module, backward or optimizer: what comes next says what they are for."""
    resolved: list[Phase] = [Phase.OTHER] * len(phases)
    following: Phase | None = None
    before_average = False
    for event in range(len(phases) - 1, -1, -1):
        own = phases[event]
        if own is not None:
            if not zeroes[event]:
                following, before_average = own, averages[event]
            resolved[event] = own
        elif before_average:
            resolved[event] = Phase.BACKWARD  # it gets gradients out of their buckets
        elif following in (Phase.FORWARD, Phase.BACKWARD):
            resolved[event] = Phase.FORWARD
        elif following is Phase.UPDATE and Phase.BACKWARD in phases[:event]:
            resolved[event] = Phase.UPDATE  # clipping, unscaling
    return resolved


def layers_of(
    events: Events, points: Points, phases: list[Phase], operators: list[Operator], storages: dict[int, str]
) -> list[str]:
    """Module path of every event of ``points``; empty where there is none."""
    layers = labels_within(events, points, MODULE)
    claimed = _gradient_writers(events, points, phases, operators)
    compiled = _find_compiled_events(events, points)
    for event, phase in enumerate(phases):
        if phase is Phase.UPDATE:
            layers[event] = _layer_of_parameters(operators[event], storages)
        elif event in compiled and not layers[event]:
            layers[event] = claimed.get(event) or _layer_of_parameters(operators[event], storages, shares=True)
    return layers


def _find_compiled_events(events: Events, points: Points) -> set[int]:
    """Find the events within compiled code."""
    result: set[int] = set()
    for event, row in enumerate(points.rows.tolist()):
        if int(points.parent[event]) in result or events.names[row].startswith(COMPILED):
            result.add(event)
    return result


def _gradient_writers(events: Events, points: Points, phases: list[Phase], operators: list[Operator]) -> dict[int, str]:
    """Layer whose gradient an event of a backward pass was the last to write, by event."""
    gradients = _storages_of(events, (GRADIENT,))
    result: dict[int, str] = {}
    for event in range(len(points.rows) - 1, -1, -1):
        if phases[event] is Phase.BACKWARD:
            written = {span.storage for span in (*operators[event].writes, *operators[event].mutates)} & set(gradients)
            owners = {gradients.pop(storage).rpartition(".")[0] for storage in written}
            if owners:
                result[event] = _common(owners)
    return result


def labels_within(events: Events, points: Points, mark: str, *, also_around: bool = False) -> list[str]:
    """What the nearest ``mark`` around every event of ``points`` says; in a backward node, that of its forward.

    ``also_around``: a forward without a mark around it has that of its first call, as a function of the program has.
    """
    labels = _enclosing(events, points, mark, {})
    if also_around:
        labels = _with_first_calls(labels, points.parent.tolist())
    return _enclosing(events, points, mark, _node_makers(events, points, labels))


def _with_first_calls(labels: list[str], parents: list[int]) -> list[str]:
    first = list(labels)
    for event in range(len(labels) - 1, 0, -1):  # children come behind their parents, the first one last
        if not labels[parents[event]] and first[event]:
            first[parents[event]] = first[event]
    return first


def _enclosing(events: Events, points: Points, mark: str, made_by: dict[int, str]) -> list[str]:
    """Label of the nearest mark or backward node around every event."""
    labels: list[str] = []
    previous = ""
    for event, row in enumerate(points.rows.tolist()):
        name, parent = events.names[row], int(points.parent[event])
        label = labels[parent] if parent >= 0 else ""
        if name.startswith(mark):
            label = name.removeprefix(mark)
        elif name.startswith(_BACKWARD):
            # a gradient is accumulated at once after the node that made it
            label = previous = made_by.get(int(events.sequence[row]), previous)
        labels.append(label)
    return labels


def _node_makers(events: Events, points: Points, labels: list[str]) -> dict[int, str]:
    """Label by sequence number: the last forward operator that begins with a number makes its node."""
    return {
        int(events.sequence[row]): labels[event]
        for event, row in enumerate(points.rows.tolist())
        if events.sequence[row] >= 0 and not _is_of_engine(events, points, event)
    }


def _is_of_engine(events: Events, points: Points, event: int) -> bool:
    """Whether an event is a backward node, or the engine's call of it: those repeat the number of their forward."""
    parent = int(points.parent[event])
    names = [events.names[int(points.rows[index])] for index in (event, parent) if index >= 0]
    return any(name.startswith(_BACKWARD) for name in names)


def _layer_of_parameters(operator: Operator, storages: dict[int, str], *, shares: bool = False) -> str:
    """The layer whose parameters an operator touches; of several the module that holds them all, or none."""
    touched: Iterable[str] = {
        storages[span.storage].rpartition(".")[0]
        for span in (*operator.reads, *operator.mutates)
        if span.storage in storages
    }
    owners = list(touched)
    return owners[0] if len(owners) == 1 else _common(owners) if shares else ""


def _common(paths: Iterable[str]) -> str:
    """The path of the innermost module that holds all of these."""
    rows = [path.split(".") for path in paths]
    alike = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*rows, strict=False))
    return ".".join(parts[0] for parts in alike)


def parameter_storages(events: Events, operators: dict[int, Operator]) -> dict[int, str]:
    """Name of the parameter that a storage holds, or whose optimizer state it holds, from the roll call."""
    del operators
    return _storages_of(events, (PARAMETER, STATE))


def _storages_of(events: Events, kinds: tuple[str, ...]) -> dict[int, str]:
    """Name of the parameter by the storage that a roll call showed for it."""
    named: dict[int, str] = {}
    for row in np.flatnonzero([name.startswith(kinds) for name in events.names]).tolist():
        name = events.names[row].removeprefix(next(kind for kind in kinds if events.names[row].startswith(kind)))
        name = name.partition(":")[0]
        node = events.nodes.get(int(events.record_id[row])) if len(events.record_id) else None
        for value in node["inputs"]["values"] if node else []:
            named[value[1]] = name
    return named


class Repeats:
    """Finds the calls that nodes repeat.

    Parameters
    ----------
    calls : list
        The program as written so far; the caller goes on appending to it.
    parameters : mapping
        Name by tensor id.
    """

    def __init__(self, calls: list[dict[str, Any]], parameters: Mapping[int, str]) -> None:
        self._calls = calls
        self._parameters = parameters
        self._done: set[int] = set()
        self._engine_node = NO_CALL
        self._last = NO_CALL
        self._ranges: list[list[int]] = []

    @property
    def ranges(self) -> list[list[int]]:
        """Calls [first, last) that run again together, in the order of the forward pass."""
        return sorted(self._ranges)

    def find(self, node: Mapping[str, Any], engine_node: int) -> int:
        """The call that a node of the backward pass repeats, -1 if it repeats none."""
        is_new = engine_node != self._engine_node
        call = self._anywhere(node) if is_new else self._next(node)
        if call == NO_CALL:
            return NO_CALL
        if is_new:
            self._engine_node = engine_node
            self._ranges.append([call, call + 1])
        self._ranges[-1] = [min(self._ranges[-1][0], call), max(self._ranges[-1][1], call + 1)]
        self._last = call
        self._done.add(call)
        return call

    def _next(self, node: Mapping[str, Any]) -> int:
        """One of the calls behind the one that was repeated last."""
        requested = self._form(node["schema"], node["inputs"]["shapes"], node["inputs"]["values"])
        for index in range(self._last + 1, min(self._last + 1 + _MAX_SKIPPED, len(self._calls))):
            call = self._calls[index]
            if "mark" in call:
                break
            if index not in self._done and requested == self._form(call["schema"], call["shapes"], call["inputs"]):
                return index
        return NO_CALL

    def _anywhere(self, node: Mapping[str, Any]) -> int:
        """The latest call of this form that read the same parameters, or the same storages where it read none."""
        values = node["inputs"]["values"]
        requested = self._form(node["schema"], node["inputs"]["shapes"], values)
        for index in range(len(self._calls) - 1, -1, -1):
            call = self._calls[index]
            if "mark" in call or index in self._done:
                continue
            if requested != self._form(call["schema"], call["shapes"], call["inputs"]):
                continue
            if requested[-1] or _storages(values) == _storages(call["inputs"]):
                return index
        return NO_CALL

    def _form(self, schema: str, shapes: Any, values: Any) -> tuple[str, str, tuple[int, ...]]:
        read = tuple(value[0] for value in _tensors(values) if value[0] in self._parameters)
        return schema, str(shapes), read


def _tensors(values: Any) -> list[list[Any]]:
    """Tensors among recorded values: lists of their ids, storage, offset, size and device."""
    result = []
    for value in values:
        if isinstance(value, list):
            is_tensor = len(value) == 6 and isinstance(value[-1], str)
            result += [value] if is_tensor else _tensors(value)
    return result


def _storages(values: Any) -> list[int]:
    return [value[1] for value in _tensors(values)]
