"""The graph of work: tasks, edges and resources in columns, edits that never change what they are given.

In: columns from a reader, or a stored folder. Out: ``Graph`` values. May not enter: torch, prices, simulated time.

Internal modules: ``topology``.
"""

from windtunnel.graph.builder import GraphBuilder
from windtunnel.graph.edits import Edit, apply_edits
from windtunnel.graph.graph import Graph
from windtunnel.graph.meta import Meta, ProcessGroup
from windtunnel.graph.schema import (
    SCHEMA_VERSION,
    UNPLACED,
    Discipline,
    EdgeKind,
    Kind,
    Phase,
    ResourceKind,
)
from windtunnel.graph.store import load, save
from windtunnel.graph.structure import lags, starts
from windtunnel.graph.table import Strings, Table

__all__ = [
    "SCHEMA_VERSION",
    "UNPLACED",
    "Discipline",
    "EdgeKind",
    "Edit",
    "Graph",
    "GraphBuilder",
    "Kind",
    "Meta",
    "Phase",
    "ProcessGroup",
    "ResourceKind",
    "Strings",
    "Table",
    "apply_edits",
    "lags",
    "load",
    "save",
    "starts",
]
