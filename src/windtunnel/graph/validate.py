"""The rules that every graph keeps.

In: a graph. Out: nothing, or a GraphError that names the row. Called once at the border: constructors of readers,
``GraphBuilder.build`` and ``load``; edits keep the rules by construction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from windtunnel.errors import GraphError
from windtunnel.graph.schema import (
    EDGE_COLUMNS,
    RESOURCE_COLUMNS,
    TASK_COLUMNS,
    UNPLACED,
    Column,
    Discipline,
    ResourceKind,
)
from windtunnel.graph.table import Array, Strings, Table, check_declared
from windtunnel.graph.topology import shortest_cycle_through

if TYPE_CHECKING:
    from windtunnel.graph.graph import Graph

__all__ = ["find_cycle", "validate"]

_MAX_NAME = 80
_CYCLE_SEEDS = 64
_LONGEST_NS = 2.0**62
_TWO_DIMENSIONAL = ("samples_ns", "slowdown")


def validate(graph: Graph) -> None:
    """Check every rule.

    Raises
    ------
    GraphError
        A missing or mistyped column, an unknown enum value, a negative or NaN time, a dangling edge, a task on
        a resource that is not there, a cycle (the shortest, with names).
    """
    _check_table("tasks", graph.tasks, TASK_COLUMNS, graph)
    _check_table("edges", graph.edges, EDGE_COLUMNS, graph)
    _check_table("resources", graph.resources, RESOURCE_COLUMNS, graph)
    _check_range("edges", "src", graph.edges["src"], 0, graph.num_tasks, "task")
    _check_range("edges", "dst", graph.edges["dst"], 0, graph.num_tasks, "task")
    _check_range("tasks", "resource", graph.tasks["resource"], UNPLACED, graph.num_resources, "resource")
    _check_resources(graph)
    _check_routes(graph)
    _check_sum(graph)
    _check_cycle(graph)


def _check_table(title: str, table: Table, schema: Mapping[str, Column], graph: Graph) -> None:
    for name in table:
        check_declared(name, schema)
    for name, column in schema.items():
        if name in table:
            _check_column(title, name, table[name], column, graph)
        elif column.required:
            raise GraphError(f"{title} lack the column {name!r}", fix="every graph needs it")


def _check_column(title: str, name: str, values: Array | Strings, column: Column, graph: Graph) -> None:
    if isinstance(values, Strings):
        if column.dtype is not None:
            raise GraphError(f"{title} column {name!r} holds text, not {np.dtype(column.dtype)}")
        return
    if column.dtype is None or values.dtype != np.dtype(column.dtype):
        expected = "text" if column.dtype is None else np.dtype(column.dtype)
        raise GraphError(f"{title} column {name!r} is {values.dtype}, not {expected}")
    if values.ndim > 1 and name not in _TWO_DIMENSIONAL:
        raise GraphError(f"{title} column {name!r} holds {values.shape[1]} values per row", fix="give it one per row")
    if values.ndim == 1 and name in _TWO_DIMENSIONAL:
        raise GraphError(f"{title} column {name!r} holds one value per row", fix="give it a list per row")
    if column.enum is not None:
        known = [int(member) for member in column.enum]
        _refuse(title, name, values, ~np.isin(values, known), f"is no {column.enum.__name__}", graph)
    if column.minimum is not None:
        _refuse(title, name, values, values < column.minimum, f"is below {column.minimum}", graph)
    if values.dtype.kind == "f":
        wrong = np.isinf(values) if column.may_be_nan else ~np.isfinite(values)
        _refuse(title, name, values, wrong, "is not finite", graph)


def _refuse(title: str, name: str, values: Array, wrong: Array, why: str, graph: Graph) -> None:
    if not wrong.any():
        return
    row = int(np.argwhere(wrong)[0][0])
    value = values[wrong][0]
    label = f" ({task_label(graph, row)})" if title == "tasks" else ""
    raise GraphError(
        f"{title} column {name!r}: {value} {why}",
        where=f"{title} row {row}{label}",
        fix=f"{int(wrong.sum()):,} of {wrong.size:,} values are wrong; correct them where the graph is made",
    )


def _check_range(title: str, name: str, values: Array, low: int, high: int, target: str) -> None:
    wrong = (values < low) | (values >= high)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise GraphError(
            f"dangling {name}: {target} {int(values[row])} does not exist, there are {high}",
            where=f"{title} row {row}",
            fix=f"add the {target}, or drop the row",
        )


def _check_resources(graph: Graph) -> None:
    slowdown = graph.resources.get("slowdown")
    if slowdown is not None and (slowdown <= 0).any():
        raise GraphError("resources column 'slowdown' must hold positive factors")
    shared = graph.resources["discipline"] == Discipline.SHARED
    rate = graph.resources.get("rate")
    if rate is not None and (rate[shared] <= 0).any():
        raise GraphError("a SHARED resource needs a positive rate")


def _check_routes(graph: Graph) -> None:
    """Routes lead over links that have a rate, each once."""
    routes, used = graph.meta.routes, graph.tasks.get("route")
    if used is not None:
        _check_range("tasks", "route", used, -1, len(routes), "route")
        if "message_bytes" not in graph.tasks and (used >= 0).any():
            raise GraphError("tasks with a route need the column 'message_bytes'", fix="say how much each one sends")
    is_link = graph.resources["kind"] == ResourceKind.LINK
    rate = graph.resources.get("rate")
    for number, route in enumerate(routes):
        unknown = [row for row in route if not (0 <= row < graph.num_resources and is_link[row])]
        slow = [] if unknown else [row for row in route if rate is None or rate[row] <= 0]
        wrong = (
            "leads nowhere" if not route
            else "uses a link twice" if len(set(route)) < len(route)
            else f"uses resource {unknown[0]}, which is no LINK" if unknown
            else f"uses link {slow[0]}, which has no rate above 0" if slow
            else ""
        )  # fmt: skip
        if wrong:
            raise GraphError(
                f"route {number} {wrong}",
                where=f"meta.routes[{number}]: {list(route)[:8]}",
                fix="a route names rows of resources of kind LINK; their rate is in bytes per second",
            )


def _check_sum(graph: Graph) -> None:
    """However the tasks follow each other, no time may leave the whole numbers of 64 bits."""
    parts = {"durations": graph.tasks["duration_ns"], "lags": graph.edges.get("lag_ns")}
    earliest = graph.tasks.get("earliest_ns")
    # A bound on the end of any schedule: all tasks and lags one after the other, after the latest start.
    total_ns = sum(float(column.sum(dtype=np.float64)) for column in parts.values() if column is not None)
    total_ns += 0.0 if earliest is None else float(earliest.max(initial=0))
    if total_ns > _LONGEST_NS:
        raise GraphError(
            f"the times of the graph add up to {total_ns / 1e9:.3g} s, which no 64-bit number of nanoseconds holds",
            where=f"{graph.num_tasks:,} tasks, {graph.num_edges:,} edges",
            fix="correct the durations and lags where the graph is made",
        )


def _check_cycle(graph: Graph) -> None:
    if len(graph.partial_order()) == graph.num_tasks:
        return
    cycle = find_cycle(graph)
    names = [task_label(graph, int(row)) for row in cycle[:5]]
    more = " -> ..." if len(cycle) > 5 else f" -> {names[0]}"
    raise GraphError(
        f"the graph has a cycle of {len(cycle)} task{'s' if len(cycle) > 1 else ''}",
        where=" -> ".join(names) + more,
        fix="a trace cut in mid-iteration can do this: capture whole iterations",
    )


def find_cycle(graph: Graph) -> Array:
    """Rows of a shortest cycle (of the shortest through up to 64 tasks of the cyclic part); empty if there is none."""
    # What a topological order leaves over lies on a cycle or behind one. Few seeds suffice for a short
    # answer: the message shows five tasks, and searching through all of them could take quadratic time.
    in_order = np.zeros(graph.num_tasks, dtype=bool)
    in_order[graph.partial_order()] = True
    indptr, rows = graph.successors_csr()
    left = np.flatnonzero(~in_order)
    best = np.empty(0, dtype=np.int32)
    step = max(1, len(left) // _CYCLE_SEEDS)
    for start in left[::step] if step == 1 else np.concatenate([left[::step], left[:_CYCLE_SEEDS]]):
        limit = len(best) if len(best) else graph.num_tasks + 1
        result = shortest_cycle_through(int(start), indptr, rows, graph.edges["dst"], limit)
        if len(result) and (not len(best) or len(result) < len(best)):
            best = result
    return best if len(best) else _any_cycle(graph, left)


def _any_cycle(graph: Graph, left: Array) -> Array:
    """Walk backwards inside the cyclic part until a task repeats."""
    inside = set(left.tolist())
    indptr, rows = graph.predecessors_csr()
    src = graph.edges["src"]
    seen: dict[int, int] = {}
    path: list[int] = []
    task = int(left[0]) if len(left) else -1
    while task >= 0 and task not in seen:
        seen[task] = len(path)
        path.append(task)
        before = src[rows[indptr[task] : indptr[task + 1]]].tolist()
        task = next((int(u) for u in before if u in inside), -1)
    return np.array(path[seen[task] :][::-1] if task >= 0 else [], dtype=np.int32)


def task_label(graph: Graph, row: int) -> str:
    """Row number and name of a task, short enough to print."""
    name = graph.tasks.strings("name").decode(row) if "name" in graph.tasks else ""
    shown = name if len(name) <= _MAX_NAME else name[: _MAX_NAME - 3] + "..."
    return f"{row} {shown!r}"
