"""The program of one iteration: the operators that Python itself called, in order.

In: the rich iteration and what was discovered. Out: plain JSON, one row per outermost operator with its schema and
all its arguments (tensors by identity, shape, type and stride), a mark where a backward pass or an update happens,
and the optimizers; and which of those calls each slice of a thread belongs to. A backward node belongs to the call
that created it. Partial flights (room cost) run such a program again in another form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from windtunnel.sources.torch.annotate import MODULE, PARAMETER, Discovery, module_paths, state_bytes
from windtunnel.sources.torch.compiled import REGION, UPDATE_REGION
from windtunnel.sources.torch.kernels import COMPILED as GENERATED
from windtunnel.sources.torch.phase_and_layer import Repeats
from windtunnel.sources.torch.profile import Events
from windtunnel.sources.torch.timeline_points import Points, walk

__all__ = [
    "NO_CALL",
    "calls_of_slices",
    "keep_models",
    "keep_optimizers",
    "keep_program",
    "repeats_of_slices",
    "trace_program",
]

NO_CALL = -1
COMPILED = "compiled"  # the mark of a call of compiled code whose operators are not written down
_HOOKED_UPDATE = "update within backward"  # belongs to no call of the forward pass, and parts no backward pass in two
_COMPILED_CALLS = ("CompiledFunction", GENERATED)  # torch's own events, of regions that nothing has marked
_EVALUATE = "autograd::engine::evaluate_function"
Node = dict[str, Any]


def keep_program(
    rich: Events, discovery: Discovery, operators: Events | None = None
) -> tuple[dict[str, Any], dict[int, int], set[int]]:
    """The program of the rich iteration, the call of every record-function id, and which ids repeat a forward pass.

    Parameters
    ----------
    rich : Events
        The iteration as it is.
    discovery : Discovery
    operators : Events, optional
        An iteration in which compiled code ran operator by operator.
    """
    program, call_of, repeated = _read_trace(rich, discovery, opens_compiled=False)
    if operators is None or not any(call.get("mark") == COMPILED for call in program["calls"]):
        return program, call_of, repeated
    opened, _, _ = _read_trace(operators, discovery, opens_compiled=True)
    place_of = _same_calls(program["calls"], opened)
    if place_of is None:
        return program, call_of, repeated
    return opened, {record_id: place_of.get(call, NO_CALL) for record_id, call in call_of.items()}, repeated


def _same_calls(calls: list[dict[str, Any]], opened: dict[str, Any]) -> dict[int, int] | None:
    """Call by call, where it is in the program whose compiled code was opened; None where they are not the same."""
    last_of = dict(opened["compiled"])
    tokens, indices, index = [], [], 0
    rows = opened["calls"]
    while index < len(rows):
        indices.append(index)
        tokens.append(COMPILED if index in last_of else rows[index].get("mark") or rows[index]["schema"])
        index = last_of.get(index, index + 1)
    local = [call.get("mark") or call["schema"] for call in calls]
    if local != tokens:
        return None
    return dict(enumerate(indices))


def _read_trace(
    rich: Events, discovery: Discovery, *, opens_compiled: bool
) -> tuple[dict[str, Any], dict[int, int], set[int]]:
    marker = rich.markers()[0]
    inside = set(rich.record_id[rich.inside(marker)].tolist()) if len(rich.record_id) else set()
    nodes = _nest_by_time(rich, {record_id: node for record_id, node in rich.nodes.items() if record_id in inside})
    sequences = dict(zip(rich.record_id.tolist(), rich.sequence.tolist(), strict=False))
    parameters = {
        int(value[0]): node["name"].removeprefix(PARAMETER)
        for node in rich.nodes.values()
        if node["name"].startswith(PARAMETER)
        for value in node["inputs"]["values"]
    }
    frozen = [name for name, parameter in discovery.parameters().items() if not parameter.requires_grad]
    return trace_program(nodes, sequences, parameters, frozen, opens_compiled=opens_compiled)


def _nest_by_time(rich: Events, nodes: Mapping[int, Node]) -> dict[int, Node]:
    """Nodes whose parents are those that enclose them in time.

    An operator that ends by an exception, as a checkpoint ends its second run early, stays the parent of all that
    follows in the execution trace.
    """
    nested = dict(nodes)
    marker = rich.markers()[0]
    rows = rich.inside(marker)
    for thread in np.unique(rich.thread[rows]).tolist():
        points = walk(rich, rows[rich.thread[rows] == thread])
        enclosing: list[int] = []  # by event: id of the nearest node around it, itself included
        for row, parent in zip(points.rows.tolist(), points.parent.tolist(), strict=True):
            around = enclosing[parent] if parent >= 0 else NO_CALL
            record_id = int(rich.record_id[row])
            if record_id in nodes:
                nested[record_id] = {**nodes[record_id], "ctrl_deps": around}
                around = nodes[record_id]["id"]
            enclosing.append(around)
    return nested


def calls_of_slices(rich: Events, points: Points, call_of: Mapping[int, int]) -> list[int]:
    """The call of every slice, ``NO_CALL`` for Python between operators."""
    record_ids = rich.record_id[points.rows].tolist() if len(rich.record_id) else [0] * len(points.rows)
    calls = [call_of.get(record_id, NO_CALL) for record_id in record_ids]
    return [calls[event] if event >= 0 else NO_CALL for event in points.owner[: points.num_slices].tolist()]


def repeats_of_slices(rich: Events, points: Points, repeated: set[int]) -> list[bool]:
    """Which slices run a part of the forward pass again: operators, and the Python that calls them.

    Within an engine node all that comes before the last repeated operator is that Python: what a checkpoint kept is
    asked for first.
    """
    record_ids = rich.record_id[points.rows].tolist() if len(rich.record_id) else [0] * len(points.rows)
    engine: list[int] = []
    for event, row in enumerate(points.rows.tolist()):
        parent = int(points.parent[event])
        inherited = engine[parent] if parent >= 0 else NO_CALL
        engine.append(event if rich.names[row].startswith(_EVALUATE) else inherited)
    owners = points.owner[: points.num_slices].tolist()
    last = {engine[owner]: index for index, owner in enumerate(owners) if owner >= 0 and record_ids[owner] in repeated}
    return [owner >= 0 and index <= last.get(engine[owner], NO_CALL) for index, owner in enumerate(owners)]


def keep_models(discovery: Discovery) -> list[str]:
    """Titles of the models that have parameters; of several, a title comes first in the paths of its layers."""
    paths = module_paths(discovery.models)
    return [paths[id(model)] for model in discovery.models if any(True for _ in model.parameters())]


def keep_optimizers(discovery: Discovery) -> list[dict[str, Any]]:
    """Class, options, parameters and bytes of state of every optimizer, as plain JSON."""
    names = {id(parameter): name for name, parameter in discovery.parameters().items()}
    return [
        {
            "class": f"{type(optimizer).__module__}.{type(optimizer).__qualname__}",
            "groups": [_group(group, names, discovery) for group in optimizer.param_groups],
            "state_bytes": state_bytes(optimizer),
        }
        for optimizer in discovery.optimizers
    ]


def _group(group: Mapping[str, Any], names: Mapping[int, str], discovery: Discovery) -> dict[str, Any]:
    options = {key: value for key, value in group.items() if key != "params"}
    trained = [parameter for parameter in group["params"] if parameter.requires_grad]
    return {
        "options": {key: _plain(value) for key, value in options.items()},
        "parameters": [names.get(id(parameter), "") for parameter in trained],
        "shapes": [list(parameter.shape) for parameter in trained],
        "dtypes": [str(parameter.dtype).removeprefix("torch.") for parameter in trained],
        "sparse": [discovery.has_sparse_gradient(parameter) for parameter in trained],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else None
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (bool, int, float, str)) or value is None else str(value)


def trace_program(
    nodes: Mapping[int, Node],
    sequences: Mapping[int, int],
    parameters: Mapping[int, str],
    frozen: Iterable[str] = (),
    *,
    opens_compiled: bool = False,
) -> tuple[dict[str, Any], dict[int, int], set[int]]:
    """Write down the calls of the iteration that ``nodes`` (by record-function id) hold.

    Parameters
    ----------
    nodes : mapping of record-function id to node, of one iteration
    sequences : mapping of record-function id to autograd sequence number, -1 where no node was made
    parameters : mapping of tensor id to parameter name
    frozen : names of parameters without gradient
    opens_compiled : bool
        Write down the operators within compiled code; else a mark stands for each call of it.

    Returns
    -------
    program : dict
        ``{"parameters": {tensor id: name}, "frozen": [...], "calls": [...], "recomputed": [[first, last], ...]}``; the
        last where checkpoints run calls again. With ``opens_compiled`` also ``"compiled"``: ranges of calls, [first,
        last), that run as compiled code, and ``"layers"`` of these calls.
    call_of : dict
        Record-function id to row of ``calls``; nodes outside of every call are absent.
    repeated : set
        Record-function ids of what checkpoints run again in the backward pass.
    """
    writer = _Writer(_closures(nodes), parameters, opens_compiled=opens_compiled)
    for record_id in sorted(nodes):
        writer.visit(record_id, nodes[record_id], sequences.get(record_id, NO_CALL))
    program: dict[str, Any] = {
        "parameters": {str(key): name for key, name in parameters.items()},
        "frozen": sorted(frozen),
        "calls": writer.calls,
    }
    if writer.repeats.ranges:
        program["recomputed"] = writer.repeats.ranges
    if opens_compiled:
        program["compiled"] = [[first, last] for first, last in writer.ranges.values() if first < last]
        program["layers"] = writer.layers
    return program, writer.call_of, writer.repeated


def _closures(nodes: Mapping[int, Node]) -> dict[int, int]:
    """Optimizer steps that call back for the loss, by node id: the last record that belongs to such a call."""
    step_of: dict[int, int] = {}
    last: dict[int, int] = {}
    for record_id in sorted(nodes):
        node = nodes[record_id]
        is_step = _region(node["name"]) == "update"
        step = node["id"] if is_step else step_of.get(node["ctrl_deps"])
        if step is None:
            continue
        step_of[node["id"]] = step
        if _region(node["name"]) == "backward":
            last[step] = record_id
    return last


class _Writer:
    """Visits nodes as they began; a parent always comes before its children.

    A step that calls back for the loss is an update only behind its last backward pass.
    """

    def __init__(
        self, closures: Mapping[int, int], parameters: Mapping[int, str], *, opens_compiled: bool = False
    ) -> None:
        self._closures = closures
        self._opens_compiled = opens_compiled
        self.ranges: dict[int, tuple[int, int]] = {}  # node id of a region -> its calls
        self.layers: dict[str, str] = {}  # of calls within compiled code
        self._region_of: dict[int, int] = {}  # node id -> node id of the region that it lies in
        self._layer_of: dict[int, str] = {}  # node id -> layer of the nearest mark around it
        self.calls: list[dict[str, Any]] = []
        self.call_of: dict[int, int] = {}
        self._inside: dict[int, int] = {}  # node id -> call that it lies in
        self._outside: dict[int, str] = {}  # node id -> "backward" or "update"
        self._by_sequence: dict[int, int] = {}
        self._last_backward = NO_CALL
        self.repeats = Repeats(self.calls, parameters)
        self.repeated: set[int] = set()
        self._again: dict[int, int] = {}  # node id -> call that it repeats
        self._engine_node = NO_CALL

    def visit(self, record_id: int, node: Node, sequence: int) -> None:
        parent = node["ctrl_deps"]
        if node["id"] in self._closures:
            return
        outer = self._outside.get(parent, "")
        region = outer or _region(node["name"])
        if outer == "backward" and node["name"].startswith(("Optimizer.", UPDATE_REGION)):
            region = _HOOKED_UPDATE
        if record_id > self._closures.get(parent, record_id):
            region = "update"
        if region:
            self._outside[node["id"]] = region
            if region == _HOOKED_UPDATE:
                return
            if region == "backward" and self._repeat(record_id, node, sequence):
                return
            self._mark(region, sequence)
            if region == "backward" and self._last_backward != NO_CALL:
                self.call_of[record_id] = self._last_backward
            return
        call = self._inside.get(parent, NO_CALL)
        self._see_marks(node, parent)
        if call == NO_CALL and self._is_closed(node):
            call = len(self.calls)
            self.calls.append({"mark": COMPILED})
        if call == NO_CALL and node["schema"]:
            call = len(self.calls)
            self.calls.append(_call(node))
            self._record_compiled_call(node["id"], call)
        if call == NO_CALL:
            return
        self._inside[node["id"]] = self.call_of[record_id] = call
        if sequence >= 0:
            self._by_sequence[sequence] = call
            if not self.calls[call].get("mark"):
                self.calls[call]["grad"] = True

    def _is_closed(self, node: Node) -> bool:
        """Whether a node is a call of compiled code whose operators are not looked at, or were never seen."""
        name = str(node["name"])
        if node["id"] in self._region_of:
            return name.startswith(REGION) and not self._opens_compiled
        return name.startswith(_COMPILED_CALLS)

    def _see_marks(self, node: Node, parent: int) -> None:
        """Pass on which region and which layer a node lies in."""
        number, name = node["id"], node["name"]
        if name.startswith(REGION):
            self._region_of[number] = number
            self.ranges[number] = (len(self.calls), len(self.calls))
        elif parent in self._region_of:
            self._region_of[number] = self._region_of[parent]
        if name.startswith(MODULE):
            self._layer_of[number] = name.removeprefix(MODULE)
        elif parent in self._layer_of:
            self._layer_of[number] = self._layer_of[parent]

    def _record_compiled_call(self, number: int, call: int) -> None:
        region = self._region_of.get(number)
        if region is not None:
            self.ranges[region] = (self.ranges[region][0], call + 1)
            self.layers[str(call)] = self._layer_of.get(number, "")

    def _repeat(self, record_id: int, node: Node, sequence: int) -> bool:
        """Whether a node of the backward pass belongs to a call that a checkpoint runs again."""
        if _region(node["name"]):
            self._engine_node = node["id"]
            return False
        call = self._again.get(node["ctrl_deps"], NO_CALL)
        if call == NO_CALL and sequence >= 0 and node["schema"]:
            call = self.repeats.find(node, self._engine_node)
        if call == NO_CALL:
            return False
        self._again[node["id"]] = self.call_of[record_id] = call
        self.repeated.add(record_id)
        if sequence >= 0:
            self._by_sequence[sequence] = call
            self.calls[call]["grad"] = True
        return True

    def _mark(self, region: str, sequence: int) -> None:
        if not self.calls or self.calls[-1].get("mark") != region:
            self.calls.append({"mark": region})
        if region == "backward":
            self._last_backward = self._by_sequence.get(sequence, self._last_backward)


def _region(name: str) -> str:
    if name.startswith(_EVALUATE):
        return "backward"
    if name.startswith(("Optimizer.step", UPDATE_REGION)):
        return "update"
    return ""


def _call(node: Node) -> dict[str, Any]:
    inputs, outputs = node["inputs"], node["outputs"]
    return {
        "schema": node["schema"],
        "inputs": inputs["values"],
        "shapes": inputs["shapes"],
        "types": inputs["types"],
        "strides": inputs.get("strides", []),
        "outputs": outputs["values"],
        "output_shapes": outputs["shapes"],
        "output_types": outputs["types"],
        "grad": False,
    }
