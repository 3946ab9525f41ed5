"""Host threads that do not wait for the device (what-if family "synchronization").

In: a graph whose host threads wait for work of a device: to read a value (``.item()``, ``.cpu()``, ``nonzero``), for a
copy, or by an explicit synchronization. Out: the same work, with these threads running ahead. Steps then overlap, so
the changed graph holds several iterations.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import EdgeKind, Graph, Kind, Strings
from windtunnel.registry import did_you_mean
from windtunnel.simulate.limits import Baseline, other_order
from windtunnel.whatifs.block_patterns import compile_pattern
from windtunnel.whatifs.insert_tasks import is_on_host, launch_calls, order_predecessors
from windtunnel.whatifs.layer_gradients import positions

__all__ = [
    "find_waiting_tasks",
    "is_blocking_copy",
    "is_own_wait",
    "no_sync",
    "non_blocking_copies",
    "repeat_to_overlap",
    "waits_for_device",
]

Mask = NDArray[np.bool_]
_COPIES = re.compile(r"copy|Memcpy", re.IGNORECASE)
_MIN_ITERATIONS = 4  # of which the first fills the device's queue
_NAMED = ("op", "name", "line", "layer")


def waits_for_device(graph: Graph) -> Mask:
    """Edges on which a host thread waits for a task of a device, bool [E]."""
    edges, on_host = graph.edges, is_on_host(graph)
    result: Mask = (edges["kind"] == EdgeKind.SYNC) & ~on_host[edges["src"]] & on_host[edges["dst"]]
    return result


def is_blocking_copy(graph: Graph) -> Mask:
    """Host tasks that return when a copy that they began has ended, bool [T]; a copy of one value to read it is none.

    Parameters
    ----------
    graph : Graph
    """
    result = np.zeros(graph.num_tasks, dtype=bool)
    edges = graph.edges
    waits = waits_for_device(graph) & graph.select(kind=Kind.COPY)[edges["src"]]
    rows = np.unique(edges["dst"][waits])
    names = graph.tasks.strings("name")
    ops = graph.tasks.strings("op") if "op" in graph.tasks else names
    for row in rows.tolist():  # a value that is read is copied, too, by a call of that name
        result[row] = bool(_COPIES.search(ops.decode(row) or names.decode(row)))
    return result


def repeat_to_overlap(graph: Graph, across: NDArray[np.int64] | None = None) -> Graph:
    """Enough iterations for each to overlap with the ones before and after it; the last copy of the graph counts.

    ``across`` are dependencies of a copy on the one before, int64 [M, 2].
    """
    # With waits gone, the host runs ahead until the queue of the device is full: the first iterations are
    # quicker than the steady state, which is what counts.
    count = max(graph.num_iterations, 1)
    copies = max(2, -(-_MIN_ITERATIONS // count))
    last = copies * count - 1
    return graph.concat(copies, across).note({"steady_iterations": [last - count, last]})


def find_waiting_tasks(graph: Graph) -> Mask:
    """Host tasks that are synchronizations, or that wait for a task of a device, bool [T]."""
    result = graph.select(kind=Kind.SYNC)
    result[graph.edges["dst"][waits_for_device(graph)]] = True
    return result


def _waits(baseline: Baseline) -> Mask:
    return find_waiting_tasks(baseline.graph)


@registry.whatif(
    "no-sync",
    source="PyTorch performance tuning guide: avoid unnecessary CPU-GPU synchronization",
    limits=other_order("the device and the threads keep their work", without=_waits),
)
def no_sync(graph: Graph, call: str = "") -> Graph:
    """Let no host thread wait for the device: read values later, copy without blocking.

    ``explain`` lists the waits with their cost, and with the line of the script where it is known.

    Parameters
    ----------
    graph : Graph
    call : str
        Regular expression that matches the operator (``aten::_local_scalar_dense`` is ``.item()``), the call
        (``cudaDeviceSynchronize``), the line or the layer of the waits that go; empty: all of them.

    Raises
    ------
    NotApplicableError
        No thread waits for a device.
    InputError
        No wait is called so.
    """
    waits = waits_for_device(graph)
    if not waits.any():
        raise NotApplicableError(
            "no host thread waits for a device",
            where=f"{int(graph.select(kind=Kind.SYNC).sum())} calls that wait, for nothing",
        )
    waiting = np.zeros(graph.num_tasks, dtype=bool)
    waiting[graph.edges["dst"][waits]] = True
    final = waiting & _ends_window(graph)
    selected = waiting & ~final & _matches(graph, waiting, call)
    if not selected.any():
        raise NotApplicableError("the only wait for the device is that at the end of the recorded window")
    gone = waits & (selected | final)[graph.edges["dst"]]
    return repeat_to_overlap(_without_own_time(graph, selected | final).disconnect(gone))


@registry.whatif(
    "non-blocking-copies",
    source="CUDA best practices guide, section 9.1: pinned memory; PyTorch: non_blocking=True",
    limits=other_order("the device and the threads keep their work", without=_waits),
)
def non_blocking_copies(graph: Graph) -> Graph:
    """Copy batches to the device from pinned memory with ``non_blocking=True``: no thread waits for these copies.

    As ``pinned-memory``, but copies that come from pinned memory and block all the same are released, too. Rates stay
    as recorded.

    Raises
    ------
    NotApplicableError
        No thread waits for a copy to a device.
    """
    edges = graph.edges
    to_device = graph.select(kind=Kind.COPY, name=r"(?i).*(htod|h2d|host.?to.?device).*")
    if not to_device.any():
        raise NotApplicableError("nothing is copied to a device")
    waits = waits_for_device(graph) & to_device[edges["src"]] & is_own_wait(graph)
    if not waits.any():
        raise NotApplicableError(f"no thread waits for any of the {int(to_device.sum())} copies to a device")
    waiting = np.zeros(graph.num_tasks, dtype=bool)
    waiting[edges["dst"][waits]] = True
    return repeat_to_overlap(_without_own_time(graph, waiting).disconnect(waits))


def is_own_wait(graph: Graph) -> Mask:
    """Edges from a task of a device to the call that launched it, or to what that thread does in the same operator."""
    edges = graph.edges
    call, before = launch_calls(graph)[edges["src"]], order_predecessors(graph)
    result = edges["dst"] == call
    # Walk back along the thread from what waits: is the call that launched the copy among its last three tasks?
    follows = edges["dst"].astype(np.int64)
    for _ in range(3):  # time between calls of an operator may be a task
        follows = np.where(follows >= 0, before[follows], -1)
        result |= (follows >= 0) & (follows == call)
    own: Mask = result & (call >= 0)
    return own


def _ends_window(graph: Graph) -> Mask:
    """Waits after which a thread launches nothing more: the end of the recording, by the profiler or the script."""
    calls = launch_calls(graph)
    launches = np.unique(calls[calls >= 0])
    if not len(launches):
        return np.zeros(graph.num_tasks, dtype=bool)
    order = positions(graph)
    resource = graph.tasks["resource"]
    last = np.full(graph.num_resources + 1, -1, dtype=np.int64)
    np.maximum.at(last, resource[launches], order[launches])
    is_full = graph.select(name=r".*(Device|Ctx|Context)Synchronize.*")
    result: Mask = is_full & (order > last[resource])
    return result


def _matches(graph: Graph, waiting: Mask, call: str) -> Mask:
    if not call:
        return graph.all_tasks
    pattern, result = compile_pattern(call), np.zeros(graph.num_tasks, dtype=bool)
    known: set[str] = set()
    for column in _NAMED:
        strings = graph.tasks.get(column)
        if isinstance(strings, Strings):
            result |= strings.where({text: bool(text) and bool(pattern.fullmatch(text)) for text in strings.values})
            known |= set(strings.take(np.flatnonzero(waiting)).to_numpy().tolist())
    if not (result & waiting).any():
        raise InputError(f"no wait is called {call!r}", where="call=", fix=did_you_mean(call, sorted(known - {""})))
    return result


def _without_own_time(graph: Graph, selected: Mask) -> Graph:
    """Calls that only wait take no time where they do not wait."""
    only_wait = selected & graph.select(kind=Kind.SYNC)
    nothing = np.zeros(int(only_wait.sum()), np.int64)
    return graph.set_duration(only_wait, nothing, cost_source="taken out") if only_wait.any() else graph
