"""A training run as a graph of steps, messages and their dependencies.

In: a ``Run`` and its fleet. Out: a graph with a task per step and per message, whose replay starts every task when it
started in the run. In virtual time causes are known to the nanosecond: if a step begins or a message leaves exactly
when a step ends or a message arrives on that node, an edge connects the two, and a changed duration moves what follows.
A message that queues behind another is tied to it by a lag. A start without such a cause (a timer, a real process) is
stored as ``earliest_ns``. Not here: pages.
"""

# S steps, M messages, T = S + M tasks

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import Discipline, EdgeKind, Graph, Kind, ResourceKind, Strings
from windtunnel.systems.uneven.fleet import Fleet
from windtunnel.systems.uneven.goal import Run

__all__ = ["run_graph"]

Ints = NDArray[np.int64]


def run_graph(run: Run, fleet: Fleet) -> Graph:
    """Build the graph of a run; ranks are nodes, and the server has the last rank."""
    steps = run.steps[np.lexsort((run.steps[:, 1], run.steps[:, 0]))]
    worker, begin, end, _ = steps.T
    source, target, sent, arrived, size = run.messages.T
    num, num_steps = len(steps) + len(run.messages), len(steps)
    start_ns, finish_ns = np.concatenate([begin, sent]), np.concatenate([end, arrived])
    one_after = np.flatnonzero(worker[1:] == worker[:-1])
    here, there = np.concatenate([worker, source]), np.concatenate([worker, target])
    src, dst = _match_ends_to_starts(there, finish_ns, here, start_ns, may_cause=finish_ns > start_ns)
    is_next = (dst == src + 1) & (dst < num_steps)  # the next step of a worker follows anyway
    src, dst = np.concatenate([one_after, src[~is_next]]), np.concatenate([one_after + 1, dst[~is_next]])
    kinds = np.where(src < num_steps, EdgeKind.DATA, EdgeKind.MESSAGE).astype(np.int8)
    kinds[: len(one_after)] = EdgeKind.ORDER
    # Only a start at the very nanosecond of its cause is caused by it; others keep an earliest start.
    is_caused = np.zeros(num, bool)
    is_caused[dst[finish_ns[src] == start_ns[dst]]] = True
    pairs, pair = np.unique(np.stack([source, target], axis=1), axis=0, return_inverse=True)
    pair = pair.reshape(-1)
    ahead, behind = _pair_queued_messages(pair, sent, arrived, is_caused[num_steps:])
    is_caused[num_steps + behind] = True
    edges = {
        "src": np.concatenate([src, num_steps + ahead]).astype(np.int32),
        "dst": np.concatenate([dst, num_steps + behind]).astype(np.int32),
        "kind": np.concatenate([kinds, np.full(len(ahead), EdgeKind.ORDER, np.int8)]),
        "lag_ns": np.concatenate([np.zeros(len(src), np.int64), sent[behind] - sent[ahead]]),
        "from_start": np.concatenate([np.zeros(len(src), bool), np.ones(len(ahead), bool)]),
    }
    names = [fleet.node_name(node) for node in range(fleet.num_nodes)]
    links = [f"{names[item]} → {names[other]}" for item, other in pairs.tolist()]
    return Graph.from_columns(
        tasks={
            "name": Strings.of([*(f"step of {names[item]}" for item in worker.tolist()),
                                *(links[item] for item in pair.tolist())]),
            "kind": np.concatenate([np.full(num_steps, Kind.COMPUTE), np.full(len(source), Kind.COMM)]).astype(np.int8),
            "rank": np.concatenate([worker, source]).astype(np.int32),
            "peer": np.concatenate([np.full(num_steps, -1), target]).astype(np.int32),
            "message_bytes": np.concatenate([np.zeros(num_steps, np.int64), size]),
            "resource": np.concatenate([worker, len(names) + pair]).astype(np.int32),
            "duration_ns": finish_ns - start_ns,
            "earliest_ns": np.where(is_caused, 0, start_ns),
        },
        edges=edges,
        resources={
            "name": Strings.of([*names, *links]),
            "kind": np.array([ResourceKind.DEVICE] * len(names) + [ResourceKind.LINK] * len(links), np.int8),
            "machine": np.array([*range(len(names)), *pairs[:, 0].tolist()], np.int32),
            "discipline": np.full(len(names) + len(links), Discipline.FIFO, np.int8),
            # messages of a pair overlap: one travels on while the next one leaves
            "slots": np.array([1] * len(names) + np.bincount(pair, minlength=len(links)).tolist(), np.int32),
        },
        meta={"source": f"windtunnel train: {run.strategy}"},
    )  # fmt: skip


def _match_ends_to_starts(
    there: Ints, finish_ns: Ints, here: Ints, start_ns: Ints, may_cause: NDArray[np.bool_]
) -> tuple[Ints, Ints]:
    """Pair tasks that ended on a node with tasks that began there at the same nanosecond.

    Tasks of zero duration cause nothing, so that starts strictly grow along edges and the graph has no cycle.
    """
    where: dict[tuple[int, int], list[int]] = {}
    for row in np.flatnonzero(may_cause).tolist():
        where.setdefault((int(there[row]), int(finish_ns[row])), []).append(row)
    keys = zip(here.tolist(), start_ns.tolist(), strict=True)
    result = np.array([(item, row) for row, key in enumerate(keys) for item in where.get(key, ())], np.int64).reshape(
        -1, 2
    )
    return result[:, 0], result[:, 1]


def _pair_queued_messages(pair: Ints, sent: Ints, arrived: Ints, is_caused: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Pair messages without another cause with the previous message of the same pair that was still under way."""
    #      sent     |---- first ----|
    #                   |---- second ----|      left while the first was under way: tied to its start by a lag
    order = np.lexsort((sent, pair))
    ahead, behind = order[:-1], order[1:]
    waits = (pair[ahead] == pair[behind]) & (sent[behind] <= arrived[ahead]) & ~is_caused[behind]
    return ahead[waits], behind[waits]
