"""What the host of a device does, in a graph that was never run.

In: a graph of a dry run, where operators of both lie on one thread, and copies to the device. Out: the same with copies
as such, with what leads to them as work of the host, and with a batch of a loader's workers as one that is ready. Not
here: noticing copies (``sources.dry.host_side``), what all this takes (``cost.host_times``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import EdgeKind, Graph, Kind, Phase
from windtunnel.graph.host_work import LOADED, MEMCPY
from windtunnel.sources.torch.loader import WAITING

__all__ = ["with_host_work"]

Mask = NDArray[np.bool_]
_MEMCPY = MEMCPY.partition(" (")[0]


def with_host_work(graph: Graph, num_workers: int) -> Graph:
    """Let copies be copies, and the host compute what only they read.

    Parameters
    ----------
    graph : Graph
        Of a dry run.
    num_workers : int
        Of the program's loaders; 0: they load on the program's thread.
    """
    names = graph.tasks.strings("name")
    copies = names.where({text: text.startswith(_MEMCPY) for text in names.values})
    loads = graph.select(phase=Phase.DATA) & graph.select(kind=Kind.IO)
    if not (copies.any() or loads.any()):
        return graph
    kind = graph.tasks["kind"].copy()
    computes = graph.select(kind=Kind.COMPUTE)
    kind[computes & (_leads_to(graph, copies) | graph.select(phase=Phase.DATA))] = int(Kind.HOST)
    kind[copies] = int(Kind.COPY)
    graph = graph.set_columns({"kind": kind})
    if not num_workers or not loads.any():
        return graph
    return _with_batches_of_workers(graph, loads, num_workers, int(copies.sum()))


def _leads_to(graph: Graph, targets: Mask) -> Mask:
    """Tasks whose results the targets read, and all before these."""
    edges = graph.edges
    is_data = edges["kind"] == EdgeKind.DATA
    src, dst = edges["src"][is_data], edges["dst"][is_data]
    result: Mask = np.zeros(graph.num_tasks, dtype=bool)
    result[src[targets[dst]]] = True
    count = -1
    while count != result.sum():
        count = int(result.sum())
        result[src[result[dst]]] = True
    return result & ~targets


def _with_batches_of_workers(graph: Graph, loads: Mask, num_workers: int, num_copies: int) -> Graph:
    """Take what workers do out of the thread, and say how many tensors they hand over."""
    edges = graph.edges
    within = graph.select(phase=Phase.DATA) & ~loads
    within &= graph.tasks["order"] > graph.tasks["order"][loads].min()
    leaves = within[edges["src"]] & ~within[edges["dst"]] & (edges["kind"] == EdgeKind.DATA)
    handed = np.unique(edges["src"][leaves])
    sizes = graph.tasks["bytes_written"].copy()
    sizes[loads] = sizes[handed].sum() // int(loads.sum())
    # tensors of a batch that are made of numbers show no operator, but each is copied
    label = f"{LOADED}{max(len(handed), num_copies // int(loads.sum()), 1)}"
    names, ops = (graph.tasks.strings(column) for column in ("name", "op"))
    graph = graph.set_columns(
        {"bytes_written": sizes, "name": names.assign(loads, WAITING), "op": ops.assign(loads, label)}
    )
    return graph.remove(within).with_meta(loader={"num_workers": num_workers, "fetch_ns": 0})
