"""Build a graph row by row: for readers of small files, tests and people.

Large inputs go through ``Graph.from_columns`` with whole arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windtunnel.errors import GraphError
from windtunnel.graph.graph import Graph
from windtunnel.graph.meta import Meta
from windtunnel.graph.schema import (
    EDGE_COLUMNS,
    RESOURCE_COLUMNS,
    TASK_COLUMNS,
    UNPLACED,
    Column,
    Discipline,
    EdgeKind,
    Kind,
    ResourceKind,
)

__all__ = ["GraphBuilder"]


class GraphBuilder:
    """Collect rows, then ``build`` a validated graph.

    Examples
    --------
    >>> builder = GraphBuilder()
    >>> cpu = builder.resource("cpu", ResourceKind.HOST_THREAD)
    >>> load = builder.task("load", kind=Kind.IO, resource=cpu, duration_ns=10)
    >>> step = builder.task("step", resource=cpu, duration_ns=20)
    >>> builder.edge(load, step, kind=EdgeKind.ORDER, lag_ns=1)
    >>> builder.build()
    Graph(2 tasks, 1 edges, 1 resources)
    """

    def __init__(self) -> None:
        self._tasks: list[dict[str, Any]] = []
        self._edges: list[dict[str, Any]] = []
        self._resources: list[dict[str, Any]] = []

    def resource(
        self,
        name: str,
        kind: ResourceKind = ResourceKind.DEVICE,
        *,
        discipline: Discipline = Discipline.FIFO,
        slots: int = 1,
        **columns: Any,
    ) -> int:
        """Add a resource; returns its row."""
        self._resources.append({"name": name, "kind": kind, "discipline": discipline, "slots": slots, **columns})
        return len(self._resources) - 1

    def task(
        self,
        name: str,
        *,
        duration_ns: int,
        kind: Kind = Kind.COMPUTE,
        resource: int = UNPLACED,
        **columns: Any,
    ) -> int:
        """Add a task; returns its row."""
        self._tasks.append({"name": name, "kind": kind, "resource": resource, "duration_ns": duration_ns, **columns})
        return len(self._tasks) - 1

    def edge(
        self,
        src: int,
        dst: int,
        *,
        kind: EdgeKind = EdgeKind.DATA,
        lag_ns: int = 0,
        from_start: bool = False,
        **columns: Any,
    ) -> None:
        """Add an edge: ``dst`` waits for the end (or the start) of ``src`` and ``lag_ns`` more."""
        self._edges.append(
            {"src": src, "dst": dst, "kind": kind, "lag_ns": lag_ns, "from_start": from_start, **columns}
        )

    def build(self, meta: Meta | Mapping[str, Any] | None = None) -> Graph:
        """Make the graph.

        Raises
        ------
        GraphError
            A rule of the graph is broken; names the row.
        """
        tables = {"tasks": (self._tasks, TASK_COLUMNS), "edges": (self._edges, EDGE_COLUMNS)}
        tables["resources"] = (self._resources, RESOURCE_COLUMNS)
        columns = {title: _columns(rows, schema, title) for title, (rows, schema) in tables.items()}
        return Graph.from_columns(**columns, meta=meta)


def _columns(rows: list[dict[str, Any]], schema: Mapping[str, Column], title: str) -> dict[str, Any]:
    required = [name for name, column in schema.items() if column.required]
    names = dict.fromkeys([*required, *(name for row in rows for name in row)])
    unknown = [name for name in names if name not in schema]
    if unknown:
        raise GraphError(f"{title} have no column {unknown[0]!r}", fix=f"known: {', '.join(schema)}")
    return {name: [row.get(name, schema[name].default) for row in rows] for name in names}
