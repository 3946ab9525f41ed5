"""A strategy on a fleet as a graph without gradients, so that thousands of workers can be priced by replay.

In: a fleet, the exchange pattern of a strategy (``Shape``), the size of all weights. Out: a ``Graph`` of steps on
workers, messages over wires with a shared rate, and their dependencies. Its replay has the same steps as training in
virtual time. Not here: losses; strategies whose traffic depends on gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import NotApplicableError
from windtunnel.graph import Graph
from windtunnel.graph.meta import Meta
from windtunnel.graph.schema import Discipline, EdgeKind, Kind, ResourceKind
from windtunnel.systems.uneven.fleet import Fleet
from windtunnel.systems.uneven.policy import Policy, Shape

__all__ = ["strategy_graph"]

Rows = NDArray[np.int64]


def strategy_graph(fleet: Fleet, name: str, policy: Policy, num_steps: int, message_bytes: int) -> Graph:
    """Build the graph of ``num_steps`` local steps of each worker and their messages.

    Parameters
    ----------
    num_steps : int
        Steps of every worker.
    message_bytes : int
        Size of all weights on a link.

    Raises
    ------
    NotApplicableError
        The traffic of the strategy depends on gradients, or a speed or a rate changes.
    """
    shape = policy.shape
    if shape is None:
        raise NotApplicableError(
            f"the traffic of {name} depends on gradients or on a search",
            where=name,
            fix="train it in virtual time: windtunnel train run CLUSTER --virtual; adsp: give it commits=N",
        )
    changing = [worker.name for worker in fleet.workers if len(worker.speed.values) > 1]
    changing += [worker.name for worker in fleet.workers if worker.lost_ns is not None]
    changing += [wire.name for wire in fleet.wires if len(wire.bytes_per_s.values) > 1]
    if changing:
        raise NotApplicableError(
            f"{changing[0]} changes while the job runs", where=f"cluster {fleet.name}", fix="train in virtual time"
        )
    sketch = _Sketch(fleet, num_steps, message_bytes)
    exchanges = _exchange_steps(fleet, shape, num_steps, sketch)
    if fleet.has_server:
        _over_server(sketch, shape, exchanges)
    else:
        _around_ring(sketch, exchanges)
    return sketch.graph(f"{name} on {fleet.name}")


class _Sketch:
    """Columns of tasks and edges of a graph, added in blocks."""

    def __init__(self, fleet: Fleet, num_steps: int, message_bytes: int) -> None:
        self.fleet, self.num_steps, self.message_bytes = fleet, num_steps, message_bytes
        self.num_workers = fleet.num_workers
        self._tasks: list[dict[str, Any]] = []
        self._edges: list[tuple[Rows, Rows, Rows, int]] = []
        self.num_tasks = 0
        self._routes: dict[tuple[int, ...], int] = {}
        self.step_ns = np.array([fleet.step_end_ns(worker, 0) for worker in range(self.num_workers)])
        workers = np.repeat(np.arange(self.num_workers), num_steps)
        self.steps = self.add(workers.size, kind=Kind.COMPUTE, rank=workers, resource=workers,
                              duration_ns=self.step_ns[workers], op="step").reshape(self.num_workers, -1)  # fmt: skip
        self.edge(self.steps[:, :-1].ravel(), self.steps[:, 1:].ravel(), EdgeKind.ORDER)

    def add(self, num: int, **columns: Any) -> Rows:
        """Add ``num`` tasks and return their rows."""
        self._tasks.append({"num": num, **columns})
        self.num_tasks += num
        return np.arange(self.num_tasks - num, self.num_tasks)

    def message(self, sources: Rows, targets: Rows, size_bytes: Rows | int, name: str) -> Rows:
        """Add one message per source and target; its latency is the lag of the edges that leave it (``lag``)."""
        numbers = self._by_pair(
            sources, targets, lambda *pair: self._routes.setdefault(self.fleet.route(*pair), len(self._routes))
        )
        return self.add(len(sources), kind=Kind.COMM, rank=sources, resource=-1, duration_ns=0, op=name,
                        route=numbers, message_bytes=size_bytes, peer=targets)  # fmt: skip

    def lag(self, sources: Rows, targets: Rows) -> Rows:
        """Return the latency in ns between each source and target."""
        return self._by_pair(sources, targets, self.fleet.latency_ns)

    def _by_pair(self, sources: Rows, targets: Rows, value: Callable[[int, int], int]) -> Rows:
        """Evaluate ``value`` once per distinct pair of nodes, and return it for each row."""
        width = self.fleet.num_nodes
        pairs, indices = np.unique(sources * width + targets, return_inverse=True)
        return np.array([value(*divmod(int(pair), width)) for pair in pairs], np.int64)[indices]

    def edge(self, sources: Rows, targets: Rows, kind: EdgeKind = EdgeKind.DATA, lag_ns: Rows | int = 0) -> None:
        """Add an edge from each source task to its target task."""
        self._edges.append((sources, targets, np.broadcast_to(lag_ns, sources.shape), int(kind)))

    def graph(self, name: str) -> Graph:
        """Return the graph of all blocks."""
        wires = self.fleet.wires
        resources = {
            "name": [worker.name for worker in self.fleet.workers] + [wire.name for wire in wires],
            "kind": [ResourceKind.DEVICE] * self.num_workers + [ResourceKind.LINK] * len(wires),
            "discipline": [Discipline.FIFO] * (self.num_workers + len(wires)),
            "slots": [1] * (self.num_workers + len(wires)),
            "rate": [1.0] * self.num_workers + [wire.bytes_per_s.value_at(0) for wire in wires],
        }
        routes = tuple(tuple(self.num_workers + wire for wire in route) for route in self._routes)
        return Graph.from_columns(
            tasks=self._task_columns(), edges=self._edge_columns(), resources=resources,
            meta=Meta(source=name, routes=routes),
        )  # fmt: skip

    def _task_columns(self) -> Mapping[str, Any]:
        defaults: dict[str, Any] = {"kind": Kind.COMPUTE, "rank": 0, "resource": -1, "duration_ns": 0, "route": -1,
                                    "message_bytes": 0, "peer": -1}  # fmt: skip
        columns = {
            key: np.concatenate([np.broadcast_to(block.get(key, value), block["num"]) for block in self._tasks])
            for key, value in defaults.items()
        }
        names = np.concatenate([np.full(block["num"], block["op"], object) for block in self._tasks])
        return {**columns, "name": names, "op": names}

    def _edge_columns(self) -> Mapping[str, Any]:
        return {
            "src": np.concatenate([item for item, _, _, _ in self._edges]),
            "dst": np.concatenate([other for _, other, _, _ in self._edges]),
            "lag_ns": np.concatenate([lag for _, _, lag, _ in self._edges]),
            "kind": np.concatenate([np.full(len(item), kind) for item, _, _, kind in self._edges]),
        }


def _exchange_steps(fleet: Fleet, shape: Shape, num_steps: int, sketch: _Sketch) -> list[Rows]:
    """Return, for each worker, the steps after which it exchanges weights, ascending."""
    if not shape.per_period:
        return [np.arange(shape.every - 1, num_steps, shape.every)] * fleet.num_workers
    result = []
    gap_ns = shape.period_ns / shape.per_period
    for worker in range(fleet.num_workers):
        travel_ns = _alone_ns(fleet, worker, sketch.message_bytes)
        length_ns = int(sketch.step_ns[worker])
        due_ns = np.arange(1, int(num_steps * length_ns / gap_ns) + 1) * gap_ns - travel_ns - length_ns
        ends = np.maximum(np.ceil(due_ns / length_ns).astype(np.int64), 1) - 1
        result.append(np.unique(ends[ends < num_steps]))
    return result


def _alone_ns(fleet: Fleet, worker: int, size_bytes: int) -> float:
    """Return the time of a message to the server and its answer on idle wires."""
    both = ((worker, fleet.num_workers), (fleet.num_workers, worker))
    rates = [min(fleet.wires[item].link.bandwidth_bytes_per_s for item in fleet.route(*pair)) for pair in both]
    return sum(fleet.latency_ns(*pair) + size_bytes / rate * 1e9 for pair, rate in zip(both, rates, strict=True))


def _over_server(sketch: _Sketch, shape: Shape, exchanges: list[Rows]) -> None:
    """Add the exchanges over the server; an answer waits for as many workers as the strategy demands."""
    num, server = sketch.num_workers, np.array([sketch.num_workers])
    workers = np.repeat(np.arange(num), [len(exchange) for exchange in exchanges])
    numbers = np.concatenate([np.arange(len(exchange)) for exchange in exchanges])
    after = np.concatenate(exchanges)
    servers = np.broadcast_to(server, workers.shape)
    up = sketch.message(workers, servers, sketch.message_bytes, "weights up")
    down = sketch.message(servers, workers, sketch.message_bytes, "weights down")
    sketch.edge(sketch.steps[workers, after], up)
    sketch.edge(up, down, EdgeKind.MESSAGE, sketch.lag(workers, servers))
    is_later = numbers[1:] > 0
    for messages in (up, down):  # messages between two nodes keep their order
        sketch.edge(messages[:-1][is_later], messages[1:][is_later], EdgeKind.ORDER)
    if math.isfinite(shape.max_ahead) and not shape.keeps_training:
        all_committed = sketch.add(int(numbers.max()) + 1, kind=Kind.SYNC, op="all have committed")
        sketch.edge(up, all_committed[numbers], EdgeKind.MESSAGE, sketch.lag(workers, servers))
        behind = numbers - int(shape.max_ahead)
        sketch.edge(all_committed[behind[behind >= 0]], down[behind >= 0], EdgeKind.SYNC)
    if not shape.keeps_training:
        goes_on = after + 1 < sketch.num_steps
        lags = sketch.lag(servers, workers)
        sketch.edge(down[goes_on], sketch.steps[workers[goes_on], after[goes_on] + 1], EdgeKind.MESSAGE, lags[goes_on])


def _around_ring(sketch: _Sketch, exchanges: list[Rows]) -> None:
    """Add the chunks of ring all-reduces, 2 (k - 1) hops each; see ``reduction.Ring``."""
    num = sketch.num_workers
    if num == 1:
        return
    ranks, before = np.arange(num), (np.arange(num) - 1) % num
    targets = (ranks + 1) % num
    entries = sketch.message_bytes // 4
    sizes = 4 * ((ranks + 1) * entries // num - ranks * entries // num)
    lags = sketch.lag(before, ranks)
    last: Rows | None = None
    for after in exchanges[0]:
        received: Rows | None = None
        for hop in range(2 * (num - 1)):
            sent = sketch.message(ranks, targets, np.maximum(sizes[(ranks - 1 - hop) % num], 1), "chunk")
            if received is None:
                sketch.edge(sketch.steps[:, after], sent)
            else:
                sketch.edge(received[before], sent, EdgeKind.MESSAGE, lags)
            if last is not None:  # messages between two nodes keep their order
                sketch.edge(last, sent, EdgeKind.ORDER)
            received = last = sent
        assert received is not None
        if after + 1 < sketch.num_steps:
            sketch.edge(received[before], sketch.steps[:, after + 1], EdgeKind.MESSAGE, lags)
