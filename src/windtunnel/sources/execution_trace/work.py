"""What every operator of an execution trace does, and where.

In: nodes. Out: ``Work`` per node: its tensors as spans of storages, the accelerator that computes it, and of
collectives group and payload. Operators are described as those of captured steps are. Not here: order, edges.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import TraceError
from windtunnel.graph.kernel_classes import BACKENDS, collective_of
from windtunnel.graph.meta import ProcessGroup
from windtunnel.sources.execution_trace.nodes import Document, Node, Side, tensors
from windtunnel.sources.torch.ops import Operator, Role, Span, describe, resolve_recipes

__all__ = ["HOST", "Collective", "Work", "describe_nodes", "is_wait", "process_groups", "sequence_of"]

Int = NDArray[np.int64]
HOST = "cpu"
_RECORD = "record_param_comms"
_ANNOTATIONS = tuple(f"{backend}:" for backend in BACKENDS)
_NOT_COMMUNICATION = ("wait", "init")
_TOO_MUCH = 2**62


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective or message; ``sequence`` is -1 where it is not known."""

    name: str
    group: str
    sequence: int
    message_bytes: int


@dataclass(frozen=True, slots=True)
class Work:
    """What one node does: ``device`` computes it, ``is_copy`` between two memories, ``blocks`` its thread till done."""

    operator: Operator
    device: str
    is_copy: bool = False
    blocks: bool = False
    collective: Collective | None = None

    @property
    def computes(self) -> bool:
        """Whether the operator does arithmetic."""
        return self.operator.role is Role.COMPUTE


def describe_nodes(document: Document, parent: Int) -> list[Work]:
    """Work of every node [N].

    Raises
    ------
    TraceError
        The tensors of an operator do not fit to each other (which node).
    """
    nodes = document.nodes
    works = [_describe(document, node, _above(nodes, parent, event)) for event, node in enumerate(nodes)]
    around = {event for event, work in enumerate(works) if work.collective is not None}
    for event in sorted(around):
        above = int(parent[event])
        while above >= 0:  # c10d::allreduce_ only calls what communicates
            if nodes[above].schema.startswith(("c10d::", "_c10d_functional::")):
                works[above] = replace(works[above], operator=replace(works[above].operator, role=Role.COMPOSITE))
            above = int(parent[above])
    resolved = resolve_recipes([work.operator for work in works], parent.tolist())
    return [replace(work, operator=operator) for work, operator in zip(works, resolved, strict=True)]


def _above(nodes: list[Node], parent: Int, event: int) -> Node | None:
    return nodes[parent[event]] if parent[event] >= 0 else None


def _describe(document: Document, node: Node, above: Node | None) -> Work:
    try:
        work = _work(node, above)
        spans = (*work.operator.reads, *work.operator.writes, *work.operator.mutates)
        if max(work.operator.flops, sum(abs(span.high) + span.num_bytes for span in spans)) > _TOO_MUCH:
            raise ValueError("its tensors are too large to be any")
        return work
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise TraceError(
            f"the inputs or outputs of node {node.id} cannot be understood: {error}",
            where=f"{document.path}: node {node.id} ({node.name[:60]!r})",
            fix="record it again; if it is as PyTorch wrote it, leave that operator out",
        ) from error


def _work(node: Node, above: Node | None) -> Work:
    inputs, outputs = _tensors_of(node.inputs), _tensors_of(node.outputs)
    device = next((tensor[5] for tensor in (*outputs, *inputs) if tensor[5] not in ("", HOST)), HOST)
    if _communicates(node, above):
        operator = _touching(node, outputs=True)
        return Work(operator, device, collective=_collective(node, operator))
    if node.details.get("kernel_backend") and not node.schema:
        # which of its arguments a generated kernel writes is not recorded: any of them may be
        return Work(_touching(node, outputs=False), device)
    operator = describe(_as_step_node(node))
    sides = {tensor[5] for tensor in (*inputs, *outputs)} - {""}
    is_copy = node.schema.startswith(("aten::copy_", "aten::_copy_from")) and len(sides) > 1
    to_host = is_copy and bool(outputs) and outputs[0][5] == HOST and not _value(node, 2)
    return Work(operator, device, is_copy, blocks=operator.role is Role.READ or to_host)


def _value(node: Node, place: int) -> Any:
    return node.inputs.values[place] if place < len(node.inputs.values) else None


def _tensors_of(side: Side) -> list[list[Any]]:
    return [tensor for value in side.values for tensor in tensors(value)]


def _as_step_node(node: Node) -> dict[str, Any]:
    return {
        "schema": node.schema,
        "inputs": msgspec.structs.asdict(node.inputs),
        "outputs": msgspec.structs.asdict(node.outputs),
    }


def _touching(node: Node, *, outputs: bool) -> Operator:
    """Reads all inputs; changes all outputs in place, or all inputs."""
    changed = node.outputs if outputs and _tensors_of(node.outputs) else node.inputs
    spelled = ", ".join(f"Tensor(a{row}!) x{row}" for row in range(len(changed.values)))
    whole = {"schema": f"{node.name.partition('(')[0]}({spelled}) -> ()", "outputs": msgspec.structs.asdict(Side())}
    mutates = describe({**whole, "inputs": msgspec.structs.asdict(changed)}).mutates
    read = describe({**whole, "inputs": msgspec.structs.asdict(node.inputs)})
    return replace(read, role=Role.COMPUTE, mutates=mutates, writes=(), schema="", flops=0)


# --- collectives --------------------------------------------------------------------------------------


def _communicates(node: Node, above: Node | None) -> bool:
    if not (_tensors_of(node.inputs) or _tensors_of(node.outputs)):
        return False
    if node.name == _RECORD:
        return _collective_name(node) not in _NOT_COMMUNICATION
    # older PyTorch has only the annotation of the backend
    return node.name.startswith(_ANNOTATIONS) and (above is None or above.name != _RECORD)


def _collective_name(node: Node) -> str:
    reported = node.details.get("collective_name")
    if isinstance(reported, str):
        return reported
    strings = [value for value, kind in zip(node.inputs.values, node.inputs.types, strict=True) if kind == "String"]
    return str(strings[0]) if strings else node.name


def _collective(node: Node, operator: Operator) -> Collective:
    sizes = (_sum_bytes(operator.reads), _sum_bytes(operator.mutates))
    name = collective_of(_collective_name(node), is_collective=True)
    return Collective(name, _group_of(node), sequence_of(node), max(sizes))


def _sum_bytes(spans: tuple[Span, ...]) -> int:
    return sum(span.num_bytes for span in set(spans))


def sequence_of(node: Node) -> int:
    """Number of the collective in its process group, which a wait repeats; -1 where it is not recorded."""
    number = next(iter(_numbers(node)), None)
    is_known = node.name == _RECORD and isinstance(number, int) and 0 <= number < _TOO_MUCH
    return int(number) if is_known and number is not None else -1


def _numbers(node: Node) -> list[Any]:
    """What follows the tensors: sequence number, process group (its number, or its name and description), ..."""
    rest = zip(node.inputs.values, node.inputs.types, strict=True)
    return [value for value, kind in rest if kind in ("Int", "Tuple[String,String]")]


def _group_of(node: Node) -> str:
    reported = node.details.get("pg_name")
    if isinstance(reported, str):
        return reported
    result = _numbers(node)
    if node.name != _RECORD or len(result) < 2:
        return ""
    return str(result[1][0] if isinstance(result[1], list) and result[1] else result[1])


def is_wait(node: Node) -> bool:
    """Whether the node makes its stream wait for a collective."""
    return node.name == _RECORD and _collective_name(node) == "wait"


def process_groups(nodes: list[Node], used: list[str]) -> tuple[ProcessGroup, ...]:
    """Name and ranks of the process groups ``used``, as the trace tells them."""
    reported: dict[str, str] = {}
    for node in nodes:
        if node.name.strip("# ") == "process_group:init" and node.inputs.values:
            reported |= _parse_groups(node.inputs.values[0])
    return tuple(ProcessGroup.read(name, reported.get(name, "")) for name in used)


def _parse_groups(text: Any) -> dict[str, str]:
    try:
        groups = msgspec.json.decode(text) if isinstance(text, str) else []
    except msgspec.DecodeError:
        return {}
    result = [group for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []
    by_number = {str(group.get("backend_id")): group for group in result if "backend_id" in group}
    by_name = {str(group.get("pg_name", "")): group for group in result}
    return {name: str(group.get("ranks", "")) for name, group in {**by_number, **by_name}.items()}
