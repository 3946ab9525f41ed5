"""Messages share links (what-if family "sharing of links").

In: a graph whose messages wait in a queue for their link. Out: the same messages, which flow over their links at once,
at max-min fair rates: a message alone takes as long as before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.errors import NotApplicableError
from windtunnel.graph import Discipline, EdgeKind, Graph, Kind, ResourceKind, lags, starts
from windtunnel.simulate.limits import of_kind, other_order

__all__ = ["fair_links"]

Rows = NDArray[np.int64]


@registry.whatif(
    "fair-links",
    source="Bertsekas and Gallager, Data Networks, 1992, section 6.5.2",
    limits=other_order("the workers' own work stays", without=of_kind(Kind.COMM)),
)
def fair_links(graph: Graph) -> Graph:
    """Let messages share links at max-min fair rates, as connections do, instead of one after the other.

    A link's rate is that of its quickest message; what a message takes beyond that is its latency. A send and its
    receive become one flow over both links, which the receive ends. Links whose messages differ in priority stay as
    they are.

    Raises
    ------
    NotApplicableError
        No message waits for a link in a queue.
    """
    tasks, resources = graph.tasks, graph.resources
    is_queue = (resources["kind"] == ResourceKind.LINK) & _is_fifo(graph)
    size_bytes = tasks.get("message_bytes", np.zeros(graph.num_tasks, np.int64))
    flows = graph.select(kind=Kind.COMM) & np.append(is_queue, False)[tasks["resource"]]
    flows &= (size_bytes > 0) & (graph.duration_ns > 0) & (tasks.get("route", np.full(graph.num_tasks, -1)) < 0)
    if not flows.any():
        raise NotApplicableError("no message of known size waits for a link in a queue", where="kind COMM, links")
    #      queue:  send |--- bytes / rate ---|                     two tasks, one on the sender's link and one
    #              recv |--- bytes / rate ---|                     on the receiver's
    #      flow:   send |latency| bytes over both links at once |  recv waits for its end and takes no time
    edge = _pairs(graph, flows)
    send, receive = graph.edges["src"][edge].astype(np.int64), graph.edges["dst"][edge].astype(np.int64)
    rate = _rates(graph, flows, size_bytes)
    into = np.full(graph.num_tasks, -1)
    into[send] = tasks["resource"][receive]
    flows[receive] = False
    rows = np.flatnonzero(flows)
    links = np.stack([tasks["resource"], into], axis=1)[rows]
    links[links[:, 0] == links[:, 1], 1] = -1
    slowest = np.where(links < 0, np.inf, rate[links]).min(axis=1)
    # What a message took beyond its bytes at the slowest link's rate is its latency.
    latency_ns = np.maximum(graph.duration_ns[rows] - np.rint(1e9 * size_bytes[rows] / slowest), 0)
    used, which = np.unique(links, axis=0, return_inverse=True)
    route = tasks.get("route", np.full(graph.num_tasks, -1)).copy()
    route[rows] = len(graph.meta.routes) + which.reshape(-1)
    reported = [tuple(link for link in item if link >= 0) for item in used.tolist()]
    users = np.bincount(tasks["resource"][tasks["resource"] >= 0], minlength=graph.num_resources)
    # Flows are no longer limited by slots: each link has room for all of its messages.
    slots = np.where(np.isin(np.arange(graph.num_resources), links), np.maximum(users, 1), resources["slots"])
    shared = graph.with_resources(resources.replace(rate=rate, slots=slots))
    shared = shared.note({"routes": [*graph.meta.routes, *reported]}).with_columns(route=route)
    shared = shared.set_duration(rows, latency_ns.astype(np.int64)).set_duration(receive, 0)
    lag_ns = lags(graph.edges)[edge]
    return shared.disconnect(edge).connect(send, receive, EdgeKind.MESSAGE, lag_ns) if len(edge) else shared


def _is_fifo(graph: Graph) -> NDArray[np.bool_]:
    """Resources that take one task after the other as they come: by discipline, or as no priority differs, bool [R]."""
    resource, discipline = graph.tasks["resource"], graph.resources["discipline"]
    priority = graph.tasks.get("priority", np.zeros(graph.num_tasks, np.int32))
    # The first task's priority on each resource; a resource on which no priority differs is a queue as well.
    first = np.zeros(graph.num_resources + 1, np.int32)  # the last entry is for unplaced tasks
    first[resource[::-1]] = priority[::-1]
    differs = np.zeros(graph.num_resources + 1, np.bool_)
    differs[resource[priority != first[resource]]] = True
    queues: NDArray[np.bool_] = (discipline == Discipline.FIFO) | ((discipline == Discipline.PRIORITY) & ~differs[:-1])
    return queues


def _pairs(graph: Graph, flows: NDArray[np.bool_]) -> Rows:
    """Edges from a send to the receive that begins while it runs; each task in one pair at most."""
    src, dst = graph.edges["src"], graph.edges["dst"]
    edge = np.flatnonzero(starts(graph.edges) & (graph.edges["kind"] == EdgeKind.MESSAGE) & flows[src] & flows[dst])
    ends = np.bincount(np.concatenate([src[edge], dst[edge]]), minlength=graph.num_tasks)
    pairs: Rows = edge[(ends[src[edge]] == 1) & (ends[dst[edge]] == 1)]
    return pairs


def _rates(graph: Graph, flows: NDArray[np.bool_], size_bytes: Rows) -> NDArray[np.float64]:
    """Bytes per second of each link, as its quickest message shows it; links that others flow over keep theirs."""
    rate = np.zeros(graph.num_resources)
    np.maximum.at(rate, graph.tasks["resource"][flows], 1e9 * size_bytes[flows] / graph.duration_ns[flows])
    known = graph.resources.get("rate", np.ones(graph.num_resources))
    kept = np.isin(np.arange(graph.num_resources), [link for route in graph.meta.routes for link in route])
    return np.where(kept | (rate == 0), known, rate)
