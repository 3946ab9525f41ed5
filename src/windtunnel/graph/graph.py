"""The one graph of the house: three tables and what is known about them.

In: columns. Out: a value that never changes; every edit returns a new one that shares what it did not touch.
Not here: torch, prices, simulated time. The edits themselves live in ``edits.py``, selection in ``select.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.graph import edits as _edits
from windtunnel.graph import ranks as _ranks
from windtunnel.graph import rows as _rows
from windtunnel.graph import structure as _structure
from windtunnel.graph.edits import Edit, as_one_edit, record_edit, undone
from windtunnel.graph.meta import Meta
from windtunnel.graph.schema import (
    EDGE_COLUMNS,
    RESOURCE_COLUMNS,
    TASK_COLUMNS,
    Discipline,
    EdgeKind,
    ResourceKind,
)
from windtunnel.graph.select import select as _select
from windtunnel.graph.table import Strings, Table
from windtunnel.graph.topology import adjacency, kahn_order
from windtunnel.graph.validate import validate as _validate

__all__ = ["Graph"]

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Graph:
    """Tasks, the edges between them and the resources that run them.

    Parameters
    ----------
    tasks, edges, resources : Table
        Columns as in ``windtunnel.graph.schema``.
    meta : Meta
        Source, hardware, the measured iteration time, the overhead of measuring.
    edits : tuple of Edit
        What was done to the measured graph, oldest first.
    root : Graph, optional
        The graph that the edits of this process began with; None where there was none.

    Examples
    --------
    >>> import numpy as np
    >>> graph = Graph.from_columns(
    ...     tasks={"name": ["a", "b"], "kind": [0, 1], "resource": [0, 0], "duration_ns": [5, 7]},
    ...     edges={"src": [0], "dst": [1], "kind": [1]},
    ...     resources={"name": ["cpu"], "kind": [0], "discipline": [0], "slots": [1]},
    ... )
    >>> graph.scale(graph.select(name="b"), factor=0.5).duration_ns.tolist()
    [5, 4]
    """

    tasks: Table
    edges: Table
    resources: Table
    meta: Meta = field(default_factory=Meta)
    edits: tuple[Edit, ...] = ()
    root: Graph | None = field(default=None, repr=False)

    @classmethod
    def from_columns(
        cls,
        tasks: Mapping[str, Any],
        edges: Mapping[str, Any],
        resources: Mapping[str, Any],
        meta: Meta | Mapping[str, Any] | None = None,
    ) -> Graph:
        """Build and validate a graph from arrays by column name, and from fields of ``Meta``.

        Raises
        ------
        GraphError
            A rule of the graph is broken; names the row.
        """
        graph = cls(
            Table.from_columns(tasks, TASK_COLUMNS),
            Table.from_columns(edges, EDGE_COLUMNS),
            Table.from_columns(resources, RESOURCE_COLUMNS),
            Meta.of(meta),
        )
        return graph.validate()

    def __repr__(self) -> str:
        changed = f", {len(self.edits)} edits" if self.edits else ""
        return f"Graph({self.num_tasks:,} tasks, {self.num_edges:,} edges, {self.num_resources:,} resources{changed})"

    def equals(self, other: Graph) -> bool:
        """Whether all three tables hold the same columns with the same values."""
        return self.tasks == other.tasks and self.edges == other.edges and self.resources == other.resources

    # --- sizes and columns -------------------------------------------------------------------------

    @property
    def num_tasks(self) -> int:
        """Number of tasks."""
        return self.tasks.num_rows

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self.edges.num_rows

    @property
    def num_resources(self) -> int:
        """Number of resources."""
        return self.resources.num_rows

    @property
    def num_iterations(self) -> int:
        """Number of training iterations (1 where the column is absent)."""
        return _distinct(self.tasks.get("iteration"))

    @property
    def num_ranks(self) -> int:
        """Number of workers (1 where the column is absent)."""
        return _distinct(self.tasks.get("rank"))

    @property
    def has_streams(self) -> bool:
        """Whether anything runs on a stream of a device."""
        return bool((self.resources["kind"] == ResourceKind.STREAM).any())

    @property
    def duration_ns(self) -> NDArray[np.int64]:
        """Duration of every task, int64 [T]."""
        column: NDArray[np.int64] = self.tasks["duration_ns"]
        return column

    @property
    def all_tasks(self) -> Mask:
        """A mask that holds every task."""
        return np.ones(self.num_tasks, dtype=bool)

    # --- adjacency ---------------------------------------------------------------------------------

    def successors_csr(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Outgoing edges: ``indptr`` [T+1] into edge rows grouped by src."""
        return self._successors

    def predecessors_csr(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Incoming edges: ``indptr`` [T+1] into edge rows grouped by dst."""
        return self._predecessors

    def topological_order(self) -> NDArray[np.int32]:
        """Every task after all its predecessors, int32 [T].

        Raises
        ------
        GraphError
            The graph has a cycle.
        """
        if len(self._order) != self.num_tasks:
            _validate(self)
        return self._order

    def partial_order(self) -> NDArray[np.int32]:
        """As far as a topological order goes; shorter than T where there is a cycle."""
        return self._order

    @cached_property
    def _successors(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        csr: tuple[NDArray[np.int64], NDArray[np.int32]] = adjacency(self.edges["src"], self.num_tasks)
        return csr

    @cached_property
    def _predecessors(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        csr: tuple[NDArray[np.int64], NDArray[np.int32]] = adjacency(self.edges["dst"], self.num_tasks)
        return csr

    @cached_property
    def _order(self) -> NDArray[np.int32]:
        indptr, rows = self._successors
        order: NDArray[np.int32] = kahn_order(indptr, rows, self.edges["dst"], self.num_tasks)
        return order

    def validate(self) -> Graph:
        """Return the graph itself if it keeps every rule.

        Raises
        ------
        GraphError
            Says which rule is broken, in which row, and what to do.
        """
        _validate(self)
        return self

    def select(self, **criteria: Any) -> Mask:
        """Choose tasks; see :func:`windtunnel.graph.select.select` for the criteria.

        Returns
        -------
        bool [T], True where every criterion holds.
        """
        return _select(self, **criteria)

    # --- columns as edits --------------------------------------------------------------------------

    def with_columns(self, **columns: ArrayLike | Strings) -> Graph:
        """Set whole task columns, [T] each."""
        return self.set_columns(columns)

    @record_edit
    def set_columns(self, columns: Mapping[str, Any]) -> Graph:
        """Set whole task columns, [T] each, from a mapping."""
        return replace(self, tasks=self.tasks.replace(**Table.from_columns(columns, TASK_COLUMNS)))

    def with_meta(self, **meta: Any) -> Graph:
        """Set fields of ``meta``: what a reader knows about the whole graph; of an edited graph, as an edit."""
        # A reader fills in what it knows before any edit; later the same change has to be undoable.
        return replace(self, meta=self.meta.with_entries(meta)) if self.root is None else self.note(meta)

    @record_edit
    def note(self, entries: Mapping[str, Any]) -> Graph:
        """Set fields of ``meta`` as an edit, so that it is recorded and can be undone."""
        return replace(self, meta=self.meta.with_entries(entries))

    @record_edit
    def with_resources(self, resources: Mapping[str, Any]) -> Graph:
        """Replace the resource table; rows that tasks use must stay."""
        return replace(self, resources=Table.from_columns(resources, RESOURCE_COLUMNS))

    @record_edit
    def drop_columns(self, names: Sequence[str]) -> Graph:
        """Leave out task columns; one that is not there stays so."""
        kept = {name: column for name, column in self.tasks.items() if name not in names}
        return replace(self, tasks=Table(kept, self.num_tasks))

    def add_resource(
        self,
        name: str,
        kind: ResourceKind,
        *,
        discipline: Discipline = Discipline.FIFO,
        slots: int = 1,
        **columns: Any,
    ) -> tuple[Graph, int]:
        """Append a resource; returns the new graph and the resource's row."""
        given = {"name": name, "kind": int(kind), "discipline": int(discipline), "slots": slots, **columns}
        return self.append_resource(given), self.num_resources

    @record_edit
    def append_resource(self, columns: Mapping[str, Any]) -> Graph:
        """Append one resource with these columns."""
        row = Table.from_columns({key: [value] for key, value in columns.items()}, RESOURCE_COLUMNS)
        return replace(self, resources=self.resources.concat(row, RESOURCE_COLUMNS))

    # --- edits: each returns a new graph and records itself ------------------------------------------

    @record_edit
    def scale(self, mask: ArrayLike, factor: ArrayLike) -> Graph:
        """Multiply the durations of the masked tasks; see :func:`windtunnel.graph.edits.scale`."""
        return _edits.scale(self, mask, factor)

    @record_edit
    def set_duration(self, mask: ArrayLike, duration_ns: ArrayLike, cost_source: str | None = None) -> Graph:
        """Set the durations of the masked tasks; see :func:`windtunnel.graph.edits.set_duration`."""
        return _edits.set_duration(self, mask, duration_ns, cost_source)

    @record_edit
    def prioritize(self, mask: ArrayLike, priority: ArrayLike) -> Graph:
        """Set the priority (smaller runs first) of the masked tasks."""
        return _edits.prioritize(self, mask, priority)

    @record_edit
    def move(self, mask: ArrayLike, resource: ArrayLike | None = None) -> Graph:
        """Run tasks elsewhere; see :func:`windtunnel.graph.structure.move`."""
        return _structure.move(self, mask, resource)

    @record_edit
    def remove(self, mask: ArrayLike, keep_gaps: bool = True) -> Graph:
        """Take tasks out and reconnect around them; see :func:`windtunnel.graph.structure.remove`."""
        return _structure.remove(self, mask, keep_gaps)

    @record_edit
    def fuse(
        self,
        mask: ArrayLike,
        by: Sequence[str] = ("rank", "iteration", "resource", "route"),
        name: str | None = None,
    ) -> Graph:
        """Make one task of each group; see :func:`windtunnel.graph.rows.fuse`."""
        return _rows.fuse(self, mask, by, name)

    @record_edit
    def split(self, mask: ArrayLike, parts: int, chain: bool = True) -> Graph:
        """Cut each masked task into equal parts; see :func:`windtunnel.graph.rows.split`."""
        return _rows.split(self, mask, parts, chain)

    @record_edit
    def insert(
        self,
        columns: Mapping[str, Any],
        after: Sequence[Any] | None = None,
        before: Sequence[Any] | None = None,
        edge_kind: EdgeKind = EdgeKind.DATA,
        lag_ns: int = 0,
        splice: bool = False,
    ) -> Graph:
        """Add tasks; see :func:`windtunnel.graph.rows.insert`."""
        return _rows.insert(self, columns, after, before, edge_kind, lag_ns, splice)

    @record_edit
    def replicate(self, num_ranks: int, shared: ArrayLike | None = None) -> Graph:
        """Copy the graph once per worker; see :func:`windtunnel.graph.ranks.replicate`."""
        return _ranks.replicate(self, num_ranks, shared)

    @record_edit
    def meet(self, members: ArrayLike, meetings: ArrayLike, duration_ns: ArrayLike | None = None) -> Graph:
        """Let tasks of several ranks begin together; see :func:`windtunnel.graph.ranks.meet`."""
        return _ranks.meet(self, members, meetings, duration_ns)

    @record_edit
    def concat(self, num_iterations: int, across: ArrayLike | None = None) -> Graph:
        """Repeat the graph in time; see :func:`windtunnel.graph.rows.concat`."""
        return _rows.concat(self, num_iterations, across)

    @record_edit
    def connect(
        self,
        src: ArrayLike,
        dst: ArrayLike,
        kind: EdgeKind = EdgeKind.DATA,
        lag_ns: ArrayLike = 0,
        from_start: ArrayLike = False,
        size_bytes: ArrayLike | None = None,
    ) -> Graph:
        """Add edges; see :func:`windtunnel.graph.structure.connect`."""
        return _structure.connect(self, src, dst, kind, lag_ns, from_start, size_bytes)

    @record_edit
    def disconnect(self, edge_mask: ArrayLike) -> Graph:
        """Drop the masked edges, bool [E]."""
        return _structure.disconnect(self, edge_mask)

    @record_edit
    def set_lag(self, edge_mask: ArrayLike, lag_ns: ArrayLike) -> Graph:
        """Set the lag of the masked edges, bool [E]."""
        return _structure.set_lag(self, edge_mask, lag_ns)

    @record_edit
    def unorder(self, mask: ArrayLike) -> Graph:
        """Drop the ORDER edges between masked tasks, so that the replay decides their order."""
        return _structure.unorder(self, mask)

    def as_one_edit(self, base: Graph, name: str, arguments: Mapping[str, Any] | None = None) -> Graph:
        """Record all that was done since ``base`` as one edit; see :func:`windtunnel.graph.edits.as_one_edit`."""
        return as_one_edit(self, base, name, dict(arguments or {}))

    def undo(self) -> Graph:
        """Return the graph as it was before the last edit.

        Raises
        ------
        GraphError
            There is no edit to undo (a stored graph keeps the list of its edits, not what they began with).
        """
        return undone(self)


def _distinct(column: NDArray[Any] | None) -> int:
    return 1 if column is None or not len(column) else len(np.unique(column))
