"""Nodes of a PyTorch execution trace between file and graph.

In: a file that ``ExecutionTraceObserver`` wrote, of any schema from 1.0.1 to 1.1.1. Out: ``Node``, one form for all,
in the order in which the operators began. Not here: what an operator does, the graph.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from windtunnel.base.reading import ReadLimit, parse_json, read_decompressed
from windtunnel.errors import TraceError

__all__ = ["SCHEMAS", "Document", "Node", "read_document", "tensors"]

SCHEMAS = ("1.0.1", "1.0.2", "1.0.3", "1.1.0", "1.1.1")  # before "-chakra..."
_Id = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
_Number = Annotated[int, msgspec.Meta(ge=-(2**62), lt=2**62)]
_LARGEST = 2**48  # elements, bytes; beyond that it is no size
_BYTES_PER_JSON_BYTE = 5  # of a real trace; the limit has room for worse
_DEEPEST = 32  # real inputs are tensors in lists of lists
_ROOT = "[pytorch|profiler|execution_"
_EXPORT = "stop the observer (unregister_callback) before the file is copied, and copy it whole"


class Side(msgspec.Struct):
    """Inputs or outputs of a node."""

    values: list[Any] = []
    shapes: list[Any] = []
    types: list[str] = []
    strides: list[Any] = []


class _Attribute(msgspec.Struct):
    name: str
    value: Any = None


class _Nested(msgspec.Struct):
    id: _Id
    name: str
    ctrl_deps: _Id
    inputs: Side
    outputs: Side
    attrs: list[_Attribute]


class _Flat(msgspec.Struct):
    id: _Id
    name: str
    parent: _Id
    rf_id: _Number
    fw_parent: _Id
    seq_id: _Number
    scope: _Number
    tid: _Id
    fw_tid: _Id
    op_schema: str
    inputs: list[Any]
    input_shapes: list[Any]
    input_types: list[str]
    outputs: list[Any]
    output_shapes: list[Any]
    output_types: list[str]


class _Numbers(msgspec.Struct):
    """Attributes that every node has."""

    rf_id: _Number
    seq_id: _Number
    scope: _Number
    tid: _Id
    fw_parent: _Id = 0
    fw_tid: _Id = 0
    op_schema: str = ""


class _Head(msgspec.Struct):
    schema: str
    nodes: msgspec.Raw
    pid: Any = None


class Node(NamedTuple):
    """One call of an operator, or an annotation; ``details`` holds the attributes that only some nodes have."""

    id: int
    name: str
    parent: int
    forward_parent: int
    record_id: int
    sequence: int
    scope: int
    thread: int
    forward_thread: int
    schema: str
    inputs: Side
    outputs: Side
    details: dict[str, Any]


class Document(NamedTuple):
    """What a file says: nodes in id order, without those that only stand for the process and its threads."""

    path: Path
    schema: str
    nodes: list[Node]


def read_document(path: Path, read_limit: int | None = None, *, allow_missing: bool = False) -> Document:
    """Read ``.json`` or ``.json.gz``; the content decides, not the name.

    Parameters
    ----------
    path : Path
    read_limit : int, optional
    allow_missing : bool
        Nodes may lie inside one that is not there, as those do that follow an operator which an exception ended: a
        checkpoint ends its second run so.

    Raises
    ------
    TraceError
        The file is cut (byte), has an unknown schema, lacks a field (which node), or its nodes contradict each other.
    """
    data = read_decompressed(ReadLimit(path, read_limit), cost=_BYTES_PER_JSON_BYTE)
    head = _decode(path, data, _Head)
    schema = head.schema.partition("-")[0]
    if schema not in SCHEMAS:
        raise TraceError(
            f"the schema {head.schema[:40]!r} is not known",
            where=f"{path}: field schema",
            fix=f"known are {', '.join(SCHEMAS)} (with or without -chakra); record it again with another PyTorch",
        )
    raw = head.nodes
    nodes = [_of_flat(node) for node in _decode(path, data, list[_Flat], raw)] if schema == "1.0.1" else []
    if schema != "1.0.1":
        nodes = [_convert_nested_node(path, node) for node in _decode(path, data, list[_Nested], raw)]
    nodes.sort(key=lambda node: node.id)
    _check_tree(path, nodes, allow_missing=allow_missing)
    work = [node for node in nodes if not node.name.startswith(_ROOT)]
    if not work:
        raise TraceError(
            "the trace has no operators",
            where=f"{path}: {len(nodes)} nodes",
            fix="let the observer run while the model does",
        )
    for node in work:
        _check_tensors(path, node)
    return Document(path, head.schema, work)


def _decode(path: Path, data: bytearray, kind: Any, nodes: msgspec.Raw | None = None) -> Any:
    try:
        return msgspec.json.decode(data if nodes is None else nodes, type=kind)
    except msgspec.ValidationError as error:
        location = str(error).replace("`$", "`file" if nodes is None else "`nodes")
        raise TraceError(
            f"this is no execution trace as ExecutionTraceObserver writes it: {location}", where=str(path), fix=_EXPORT
        ) from error
    except msgspec.DecodeError as error:
        if "truncated" in str(error):
            where = f"{path}: byte {len(data):,}, its end"
            raise TraceError("the trace is cut off: the JSON stops", where=where, fix=_EXPORT) from error
        parse_json(bytes(data), str(path), error=TraceError)  # says the line
        raise TraceError(f"the trace is no JSON: {error}", where=str(path), fix=_EXPORT) from error
    except (RecursionError, UnicodeError) as error:
        parse_json(bytes(data), str(path), error=TraceError)
        raise TraceError(f"the trace is no JSON: {error}", where=str(path), fix=_EXPORT) from error


def _of_flat(node: _Flat) -> Node:
    return Node(
        node.id, node.name, node.parent, node.fw_parent, node.rf_id, node.seq_id, node.scope, node.tid, node.fw_tid,
        node.op_schema,
        Side(node.inputs, node.input_shapes, node.input_types),
        Side(node.outputs, node.output_shapes, node.output_types),
        {},
    )  # fmt: skip


def _convert_nested_node(path: Path, node: _Nested) -> Node:
    details = {attribute.name: attribute.value for attribute in node.attrs}
    try:
        numbers = msgspec.convert(details, _Numbers)
    except msgspec.ValidationError as error:
        raise _node_error(path, node, f"its attributes are wrong: {error}") from error
    for name in _Numbers.__struct_fields__:
        details.pop(name, None)
    return Node(
        node.id, node.name, node.ctrl_deps, numbers.fw_parent, numbers.rf_id, numbers.seq_id, numbers.scope,
        numbers.tid, numbers.fw_tid, numbers.op_schema, node.inputs, node.outputs,
        {name: value for name, value in details.items() if value not in ("", None)},
    )  # fmt: skip


def _node_error(path: Path, node: Any, message: str) -> TraceError:
    return TraceError(message, where=f"{path}: node {node.id} ({node.name[:60]!r})", fix=_EXPORT)


def _check_tree(path: Path, nodes: list[Node], *, allow_missing: bool) -> None:
    """Ids are unique, and what a node lies inside began before it; only the process lies inside itself."""
    known: set[int] = set()
    for node in nodes:
        if node.id in known:
            raise _node_error(path, node, f"node id {node.id} occurs more than once")
        known.add(node.id)
        is_root = node.name.startswith(_ROOT)
        if node.parent > node.id or (node.parent == node.id and not is_root):
            raise _node_error(path, node, f"node {node.id} lies inside node {node.parent}: the calls form a cycle")
        if node.parent not in known and not is_root and not allow_missing:
            raise _node_error(path, node, f"node {node.id} lies inside node {node.parent}, which is not there")


def _check_tensors(path: Path, node: Node) -> None:
    for side in (node.inputs, node.outputs):
        if not len(side.values) == len(side.shapes) == len(side.types):
            counts = f"{len(side.values)} values, {len(side.shapes)} shapes, {len(side.types)} types"
            raise _node_error(path, node, f"inputs or outputs do not fit together: {counts}")
        deepest = max(_depth(side.values), _depth(side.shapes), _depth(side.strides))
        if deepest > _DEEPEST:
            raise _node_error(path, node, f"its inputs or outputs are nested {deepest} deep, at most {_DEEPEST} can be")
        for index, (value, kind) in enumerate(zip(side.values, side.types, strict=True)):
            result = tensors(value)
            if result and "Tensor" not in kind:  # a list that only looks like one
                side.values[index] = str(value)
                continue
            for tensor in result:
                if not all(isinstance(number, int) and 0 <= number < _LARGEST for number in tensor[:5]):
                    raise _node_error(
                        path, node, f"{str(tensor)[:80]} is no tensor (id, storage, offset, elements, bytes)"
                    )


def _depth(value: Any) -> int:
    """How deeply lists are nested, without recursion."""
    depth, level = 0, [value]
    while level:
        level = [
            item
            for entry in level
            if isinstance(entry, list | dict)
            for item in (entry.values() if isinstance(entry, dict) else entry)
        ]
        depth += 1
    return depth


def tensors(value: Any) -> list[list[Any]]:
    """All tensors in one input or output: lists [id, storage, offset, elements, bytes of one, device]."""
    if not isinstance(value, list):
        return []
    if len(value) == 6 and isinstance(value[5], str):
        return [value]
    return [tensor for item in value for tensor in tensors(item)]
