"""Which phase and which layer an operator belongs to (room sources, private).

In: the rich iteration with its module marks. Out: a phase and a module path per event. Forward operators lie inside
the marks; a backward operator takes the layer of the forward operator that made its autograd node (equal sequence
numbers); an update takes the layer whose parameters it touches.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from windtunnel.graph import Phase
from windtunnel.sources.torch._ops import Operator
from windtunnel.sources.torch._points import Points
from windtunnel.sources.torch._profile import Events
from windtunnel.sources.torch.annotate import MODULE, PARAMETER, STATE

__all__ = ["layers_of", "parameter_storages", "phases_of"]

_BACKWARD = "autograd::engine::evaluate_function"
_STEP = "Optimizer.step#"
_UPDATES = (_STEP, "Optimizer.zero_grad#")
_LOADER = "enumerate(DataLoader)"
_REDUCER = "torch.distributed.ddp.reducer::"  # what a backward pass ends with where gradients are averaged


def phases_of(events: Events, points: Points) -> list[Phase]:
    """Phase of every event of ``points`` (module marks included)."""
    phases: list[Phase | None] = []
    losses = _losses_in_steps(events, points)
    for event, row in enumerate(points.rows.tolist()):
        own = _phase_of_name(events.names[row])
        parent = int(points.parent[event])
        inherited = phases[parent] if parent >= 0 else None
        inherited = Phase.FORWARD if event in losses else inherited
        # a forward that a checkpoint runs again is part of the backward pass
        is_again = own is Phase.FORWARD and inherited is Phase.BACKWARD
        phases.append(inherited if own is None or is_again else own)
    averages = [events.names[row].startswith(_REDUCER) for row in points.rows.tolist()]
    return _between(phases, averages)


def _losses_in_steps(events: Events, points: Points) -> set[int]:
    """Operators right within an optimizer's step that lead to a backward pass: a closure computes its loss there."""
    found: set[int] = set()
    following: dict[int, Phase] = {}  # by step: what comes next in it
    for event in range(len(points.rows) - 1, -1, -1):
        parent = int(points.parent[event])
        if parent < 0 or not events.names[int(points.rows[parent])].startswith(_STEP):
            continue
        own = _phase_of_name(events.names[int(points.rows[event])])
        if own is not None:
            following[parent] = own
        elif following.get(parent) is Phase.BACKWARD:
            found.add(event)
    return found


def _phase_of_name(name: str) -> Phase | None:
    if name.startswith(MODULE):
        return Phase.FORWARD
    if name.startswith((_BACKWARD, _REDUCER)):
        return Phase.BACKWARD
    if name.startswith(_UPDATES):
        return Phase.UPDATE
    return Phase.DATA if name.startswith(_LOADER) else None


def _between(phases: list[Phase | None], averages: list[bool]) -> list[Phase]:
    """Operators in no module, backward or optimizer: what comes next says what they are for."""
    resolved: list[Phase] = [Phase.OTHER] * len(phases)
    following: Phase | None = None
    before_average = False
    for event in range(len(phases) - 1, -1, -1):
        own = phases[event]
        if own is not None:
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
    made_by = _node_makers(events, points, _enclosing(events, points, {}))
    layers = _enclosing(events, points, made_by)
    for event, phase in enumerate(phases):
        if phase is Phase.UPDATE:
            layers[event] = _layer_of_parameters(operators[event], storages)
    return layers


def _enclosing(events: Events, points: Points, made_by: dict[int, str]) -> list[str]:
    """Layer of the nearest module mark or backward node around every event."""
    layers: list[str] = []
    previous = ""
    for event, row in enumerate(points.rows.tolist()):
        name, parent = events.names[row], int(points.parent[event])
        layer = layers[parent] if parent >= 0 else ""
        if name.startswith(MODULE):
            layer = name.removeprefix(MODULE)
        elif name.startswith(_BACKWARD):
            # a gradient is accumulated at once after the node that made it
            layer = previous = made_by.get(int(events.sequence[row]), previous)
        layers.append(layer)
    return layers


def _node_makers(events: Events, points: Points, layers: list[str]) -> dict[int, str]:
    """Layer by sequence number: the last forward operator that begins with a number makes its node."""
    return {
        int(events.sequence[row]): layers[event]
        for event, row in enumerate(points.rows.tolist())
        if events.sequence[row] >= 0 and not _is_of_engine(events, points, event)
    }


def _is_of_engine(events: Events, points: Points, event: int) -> bool:
    """Whether an event is a backward node, or the engine's call of it: those repeat the number of their forward."""
    parent = int(points.parent[event])
    names = [events.names[int(points.rows[place])] for place in (event, parent) if place >= 0]
    return any(name.startswith(_BACKWARD) for name in names)


def _layer_of_parameters(operator: Operator, storages: dict[int, str]) -> str:
    touched: Iterable[str] = {
        storages[span.storage].rpartition(".")[0]
        for span in (*operator.reads, *operator.mutates)
        if span.storage in storages
    }
    owners = list(touched)
    return owners[0] if len(owners) == 1 else ""


def parameter_storages(events: Events, operators: dict[int, Operator]) -> dict[int, str]:
    """Name of the parameter that a storage holds, or whose optimizer state it holds, from the roll call."""
    named: dict[int, str] = {}
    for row in np.flatnonzero([name.startswith((PARAMETER, STATE)) for name in events.names]).tolist():
        name = events.names[row].removeprefix(PARAMETER).removeprefix(STATE).partition(":")[0]
        node = events.nodes.get(int(events.record_id[row])) if len(events.record_id) else None
        for value in node["inputs"]["values"] if node else []:
            named[value[1]] = name
    del operators
    return named
