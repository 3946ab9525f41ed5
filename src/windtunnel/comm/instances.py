"""Which tasks of a graph are one collective.

In: a graph. Out: its collectives by operation and number of members, each with the task and the rank of every member. A
graph of one rank stands for all: there one task is every member. Not here: how messages go (``expansion``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.comm.algorithms import OPERATIONS
from windtunnel.errors import NotApplicableError
from windtunnel.graph import Graph, Kind
from windtunnel.graph.collectives import message_bytes, world_size
from windtunnel.graph.kernel_classes import collective_of

__all__ = ["Instances", "collectives_of", "operation_mask"]

# K collectives, n members
Ints = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Instances:
    """Collectives of one operation with equally many members.

    Parameters
    ----------
    op : str
    rows : int [K, n]
        Task of each member, members in the order of their ranks.
    ranks : int [K, n]
    size_bytes : int [K]
        Of the message, as the operation counts it.
    """

    op: str
    rows: Ints
    ranks: Ints
    size_bytes: Ints

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_members(self) -> int:
        """How many take part in each."""
        return int(self.rows.shape[1])


def operation_mask(graph: Graph) -> Ints:
    """Number of the operation of every task in ``OPERATIONS``, -1 where it is no collective, int [T]."""
    code = np.full(graph.num_tasks, -1, dtype=np.int64)
    is_comm = graph.select(kind=Kind.COMM)
    for column in ("op", "name"):
        if column in graph.tasks:
            strings = graph.tasks.strings(column)
            of_text = np.array([_operation(text) for text in strings.values] or [-1])
            code = np.where(is_comm & (code < 0), of_text[strings.codes], code)
    return code


def _operation(text: str) -> int:
    op = collective_of(text, is_collective=True)
    return OPERATIONS.index(op) if op in OPERATIONS else -1


def collectives_of(graph: Graph, operations: tuple[str, ...], num_ranks: int | None = None) -> Iterator[Instances]:
    """Collectives of these operations, by operation and number of members; those of one member are left out.

    Parameters
    ----------
    graph : Graph
    operations : tuple of str
    num_ranks : int, optional
        Members of a collective in a graph of one rank, where the graph does not say.

    Raises
    ------
    NotApplicableError
        There are none, the sizes of messages are unknown, or a member of a collective is not there.
    """
    code = operation_mask(graph)
    rows = np.flatnonzero(np.isin(code, [OPERATIONS.index(op) for op in operations]))
    if not len(rows):
        raise NotApplicableError(
            f"no task is one of {', '.join(operations)}",
            where=f"{int(graph.select(kind=Kind.COMM).sum())} communication tasks",
            fix="capture a distributed job, or put data-parallel first: data-parallel:num_ranks=8+...",
        )
    sizes = message_bytes(graph, np.isin(np.arange(graph.num_tasks), rows))
    if graph.num_ranks == 1:
        num = world_size(graph, num_ranks)
        members = np.arange(num)
        for op in np.unique(code[rows]):
            local = code[rows] == op
            shape = (int(local.sum()), num)
            spread = np.broadcast_to(rows[local][:, None], shape)
            yield Instances(OPERATIONS[op], spread, np.broadcast_to(members, shape), sizes[local])
        return
    yield from _of_many_ranks(graph, rows, code[rows], sizes)


def _of_many_ranks(graph: Graph, rows: Ints, code: Ints, sizes: Ints) -> Iterator[Instances]:
    rank = graph.tasks["rank"][rows].astype(np.int64)
    nothing = np.full(graph.num_tasks, -1, dtype=np.int64)
    group = graph.tasks.get("group", nothing)[rows].astype(np.int64)
    iteration = graph.tasks.get("iteration", np.zeros(graph.num_tasks, dtype=np.int64))[rows]
    sequence = graph.tasks.get("sequence", nothing)[rows]
    sequence = np.where(sequence < 0, _count_within(np.stack([rank, group, code, iteration], axis=1)), sequence)
    key = np.stack([code, group, iteration, sequence], axis=1)
    _, instance, count = np.unique(key, axis=0, return_inverse=True, return_counts=True)
    instance = instance.reshape(-1)
    order = np.lexsort((rank, instance))
    begin = np.concatenate([[0], np.cumsum(count)])[:-1]
    _check_members(graph, group[order][begin], count, rank[order])
    for op in np.unique(code):
        for num in np.unique(count[(count > 1) & (code[order][begin] == op)]):
            selected = np.flatnonzero((count == num) & (code[order][begin] == op))
            indices = order[begin[selected][:, None] + np.arange(num)]
            yield Instances(OPERATIONS[op], rows[indices], rank[indices], sizes[indices].max(axis=1))


def _count_within(key: Ints) -> Ints:
    """How many rows with the same key stand before each."""
    _, group = np.unique(key, axis=0, return_inverse=True)
    order = np.argsort(group.reshape(-1), kind="stable")
    sizes = np.bincount(group.reshape(-1))
    index = np.empty(len(key), dtype=np.int64)
    index[order] = np.arange(len(key)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return index


def _check_members(graph: Graph, group: Ints, count: Ints, rank: Ints) -> None:
    """Refuse collectives that lack a member of their group."""
    del rank
    known = [len(item.ranks) for item in graph.meta.groups]
    for index in np.unique(group[group >= 0]).tolist():
        expected = known[index] if index < len(known) else 0
        result = count[group == index]
        if expected and (result != expected).any():
            raise NotApplicableError(
                f"a collective of {graph.meta.groups[index]} has {int(result[result != expected][0])} members here",
                fix=f"load the traces of all {expected} ranks",
            )
