"""Loop nests from printed tensor programs (room cost): the JSON trees of CDMPP's dumps in, ``Nest`` out.

A printed program has no buffer shapes: arguments become one-dimensional, as long as the largest index that is read or
written. Vector indices ``ramp(base, stride, lanes)`` become a vectorized loop around the store. Arguments that share
a printed name cannot be told apart and count as one buffer. Not here: features.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.model.nest import (
    THREADS,
    Allocate,
    Attribute,
    Buffer,
    Expression,
    For,
    If,
    Nest,
    Node,
    Store,
)

__all__ = ["nest_from_printed"]

BINARY = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floordiv",
    ast.Mod: "floormod",
}
COMPARE = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne"}
FUNCTIONS = ("floordiv", "floormod", "min", "max")
KINDS = {"for": "serial", "parallel": "parallel", "vectorized": "vectorized", "unrolled": "unrolled"}
LANE = "lane"
DOT = "__dot__"  # names such as conv.global are no Python names


def nest_from_printed(function: Mapping[str, Any]) -> Nest:
    """One ``{k: 'func', name, args, c: [...]}`` tree as a nest.

    Raises
    ------
    InputError
        A node or an expression that is not understood, with its text.
    """
    reader = _Reader(str(function.get("name", "")))
    body = reader.nodes(function["c"], {})
    return Nest(body, reader.buffers(), reader.name, is_gpu=reader.is_gpu)


class _Reader:
    """Walks one printed function; remembers how far each buffer is touched."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_gpu = False
        self.reach: dict[str, int] = {}
        self.allocated: dict[str, Buffer] = {}

    def buffers(self) -> dict[str, Buffer]:
        """Allocated buffers as declared, arguments as far as they are touched."""
        flat = {name: Buffer(name, (max(reach, 0) + 1,)) for name, reach in self.reach.items()}
        return flat | self.allocated

    def nodes(self, nodes: Sequence[Mapping[str, Any]], ranges: dict[str, tuple[int, int]]) -> tuple[Node, ...]:
        """Siblings; a thread binding holds for all that follow it."""
        result: list[Node] = []
        for place, node in enumerate(nodes):
            if node["k"] == "attr" and node["key"] == "thread_extent":
                children = (*node.get("c", ()), *nodes[place + 1 :])
                return (*result, self._thread(node, children, ranges))
            if node["k"] != "else":
                following = nodes[place + 1] if place + 1 < len(nodes) else {}
                result.extend(self._node(node, following, ranges))
        return tuple(result)

    def _thread(self, node: Mapping[str, Any], children: Any, ranges: dict[str, tuple[int, int]]) -> For:
        found = re.search(r"iter_var\(([\w.]+)", node["node"])
        thread = found.group(1) if found else ""
        if thread not in THREADS:
            raise InputError(f"unknown thread binding {node['node']!r}", where=self.name)
        self.is_gpu = True
        extent = int(node["value"])
        body = self.nodes(children, ranges | {thread: (0, extent - 1)})
        return For(thread, extent, body, kind="thread", thread=thread)

    def _node(self, node: Mapping[str, Any], following: Mapping[str, Any], ranges: Any) -> tuple[Node, ...]:
        kind = node["k"]
        if kind == "store":
            return (self._store(node, ranges),)
        if kind == "allocate":
            dtype, _, lanes = node["dtype"].partition("x")  # float32x64: vectors of 64
            self.allocated[node["buf"]] = Buffer(node["buf"], (int(node["n"]) * int(lanes or 1),), dtype)
            return (Allocate(node["buf"], self.nodes(node.get("c", ()), ranges)),)
        if kind == "attr":
            return (Attribute(node["key"], node["value"], self.nodes(node.get("c", ()), ranges)),)
        if kind == "if":
            otherwise = following.get("c", ()) if following.get("k") == "else" else ()
            condition = self._parse(node["cond"], ranges)
            return (If(condition, self.nodes(node["c"], ranges), self.nodes(otherwise, ranges)),)
        if kind in KINDS:
            begin, extent = int(node["min"]), int(node["ext"])
            body = self.nodes(node["c"], ranges | {node["var"]: (begin, begin + extent - 1)})
            loop: Any = KINDS[kind]
            return (For(node["var"], extent, body, kind=loop, minimum=begin),)
        return ()  # calls for their effect, such as barriers, store nothing

    def _store(self, node: Mapping[str, Any], ranges: dict[str, tuple[int, int]]) -> Node:
        found = re.search(r"ramp\(.*, (\d+)\)", f"{node['idx']} {node['value']}")
        lanes = int(found.group(1)) if found else 1
        inner = ranges | {LANE: (0, lanes - 1)}
        index, value = self._parse(node["idx"], inner), self._parse(node["value"], inner)
        self._touch(node["buf"], index, inner)
        store = Store(node["buf"], (index,), value)
        return For(LANE, lanes, (store,), kind="vectorized") if lanes > 1 else store

    def _parse(self, text: str, ranges: dict[str, tuple[int, int]]) -> Expression:
        plain = re.sub(r"\((?:u?int\d+|float\d+|bool)\)", "", str(text))
        plain = re.sub(r"\b(\d+(?:\.\d*)?(?:e[-+]?\d+)?)f\b", lambda m: repr(float(m[1])), plain)
        plain = plain.replace("&&", " and ").replace("||", " or ").replace("tir.", "")
        plain = re.sub(r"(?<=\w)\.(?=[A-Za-z_])", DOT, plain)
        plain = re.sub(r"!(?!=)", " not ", plain)
        try:
            return self._convert(ast.parse(plain.strip(), mode="eval").body, ranges)
        except SyntaxError as error:
            raise InputError(f"not an expression: {str(text)[:80]!r}", where=self.name) from error

    def _convert(self, node: ast.expr, ranges: dict[str, tuple[int, int]]) -> Expression:
        def convert(child: ast.expr) -> Expression:
            return self._convert(child, ranges)

        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return node.value
        if isinstance(node, ast.Name):
            return _name(node)
        if isinstance(node, ast.BinOp):
            return (BINARY[type(node.op)], convert(node.left), convert(node.right))
        if isinstance(node, ast.Compare):
            return (COMPARE[type(node.ops[0])], convert(node.left), convert(node.comparators[0]))
        if isinstance(node, ast.BoolOp):
            joined = convert(node.values[0])
            for value in node.values[1:]:
                joined = ("and" if isinstance(node.op, ast.And) else "or", joined, convert(value))
            return joined
        if isinstance(node, ast.UnaryOp):
            inner = convert(node.operand)
            if isinstance(node.op, ast.Not):
                return ("not", inner)
            return -inner if isinstance(inner, int | float) else ("sub", 0, inner)
        if isinstance(node, ast.Subscript):
            name, index = _name(node.value), convert(node.slice)
            self._touch(name, index, ranges)
            return ("load", name, index)
        if isinstance(node, ast.Call):
            return self._call(_name(node.func), [convert(argument) for argument in node.args])
        raise InputError(f"not understood: {ast.unparse(node)[:80]!r}", where=self.name)

    def _call(self, name: str, arguments: list[Expression]) -> Expression:
        if name == "ramp":
            base, stride, _ = arguments
            return ("add", base, LANE if stride == 1 else ("mul", LANE, stride))
        if re.fullmatch(r"x\d+", name):  # the same value in every lane
            return arguments[0]
        if name == "if_then_else":
            return ("select", *arguments)
        return (name, *arguments) if name in FUNCTIONS else ("call", name, *arguments)

    def _touch(self, name: str, index: Expression, ranges: dict[str, tuple[int, int]]) -> None:
        self.reach[name] = max(self.reach.get(name, 0), _interval(index, ranges)[1])


def _name(node: ast.expr) -> str:
    return ast.unparse(node).replace(DOT, ".")


def _interval(index: Expression, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """Least and greatest value of an index."""
    if isinstance(index, str):
        return ranges[index]
    if not isinstance(index, tuple):
        return int(index), int(index)
    operation = index[0]
    if operation not in ("add", "sub", "mul", "floordiv", "floormod"):
        return 0, 0
    (a, b), (c, d) = _interval(index[1], ranges), _interval(index[2], ranges)
    if operation == "add":
        return a + c, b + d
    if operation == "sub":
        return a - d, b - c
    if operation == "mul":
        corners = (a * c, a * d, b * c, b * d)
        return min(corners), max(corners)
    if operation == "floordiv":
        return a // max(c, 1), b // max(c, 1)
    return (a % c, b % c) if a // c == b // c else (0, c - 1)
