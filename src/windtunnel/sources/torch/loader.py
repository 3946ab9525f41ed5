"""What loader workers do in parallel to the training thread.

``LoaderMeter`` times, in the workers, how long a batch takes to load and, in the training thread, how long it waits
for one. ``with_workers`` then takes the waiting out of the thread and puts the loading into the graph: waiting is
an edge, not a cost. One iteration stands for the steady state: while it trains, the workers make one batch, in a
batch's time over their number. ``with_workers_in_trace`` does the same to several traced iterations of a GPU.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawArray
from typing import Any

import numpy as np
import torch.utils.data
from torch.utils.data._utils import fetch
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from windtunnel.graph import Discipline, EdgeKind, Graph, Kind, Phase, ResourceKind, Strings
from windtunnel.sources.torch.overhead import central

__all__ = ["WAITING", "LoaderMeter", "Loading", "with_workers", "with_workers_in_trace"]

_MAX_WORKERS = 256
WAITING = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter"
"""How the profiler names the time in which a thread gets a batch from workers."""
# taking a batch that is ready costs this at most; what is above is waiting
_HANDOVER_NS = 1_000_000
_BOUND_RATIO = 0.05


@dataclass(frozen=True)
class Loading:
    """Loading as measured: workers, mean time per batch in one of them (0: unknown), waits per iteration in ns."""

    num_workers: int
    fetch_ns: int
    light_waits_ns: tuple[int, ...]
    bare_waits_ns: tuple[int, ...]


class LoaderMeter:
    """Times workers and waits; install it before the loader starts its workers."""

    def __init__(self) -> None:
        self._busy_ns = RawArray("q", _MAX_WORKERS)  # shared with forked workers, one place each
        self._batches = RawArray("q", _MAX_WORKERS)
        self._waited_ns = 0
        self._patched: list[tuple[Any, str, Callable[..., Any]]] = []
        self.num_workers = 0

    def install(self) -> None:
        """Begin to measure."""
        for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            self._patch(fetcher, "fetch", self._time_fetch)
        self._patch(_MultiProcessingDataLoaderIter, "_get_data", self._time_wait)

    def remove(self) -> None:
        """Stop measuring."""
        for owner, name, original in self._patched:
            setattr(owner, name, original)
        self._patched = []

    def take_wait_ns(self) -> int:
        """How long the thread has waited since the last call."""
        waited, self._waited_ns = self._waited_ns, 0
        return waited

    def fetch_ns(self) -> int:
        """Mean time that a worker needs for a batch; 0 where none could be timed."""
        batches = sum(self._batches)
        return sum(self._busy_ns) // batches if batches else 0

    def _patch(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        self._patched.append((owner, name, original))
        setattr(owner, name, wrapper(original))

    def _time_fetch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def fetch(fetcher: Any, index: Any) -> Any:
            worker = torch.utils.data.get_worker_info()
            if worker is None or worker.id >= _MAX_WORKERS:
                return original(fetcher, index)
            begun_ns = time.perf_counter_ns()
            batch = original(fetcher, index)
            self._busy_ns[worker.id] += time.perf_counter_ns() - begun_ns
            self._batches[worker.id] += 1
            return batch

        return fetch

    def _time_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wait(iterator: Any) -> Any:
            self.num_workers = iterator._num_workers
            begun_ns = time.perf_counter_ns()
            try:
                return original(iterator)
            finally:
                self._waited_ns += time.perf_counter_ns() - begun_ns

        return wait


def with_workers(graph: Graph, loading: Loading) -> Graph:
    """Add the workers' loading to a captured iteration, and make its waiting an edge."""
    waits = graph.select(phase=Phase.DATA) & graph.tasks.strings("name").where(
        {name: name.startswith(WAITING) for name in graph.tasks.strings("name").values}
    )
    if not loading.num_workers or not waits.any() or not loading.light_waits_ns:
        return graph
    rows = np.flatnonzero(waits)
    waiter = int(rows[np.argmax(graph.duration_ns[rows])])
    handover_ns = min(_HANDOVER_NS, *loading.light_waits_ns, *loading.bare_waits_ns)
    duration, samples = graph.duration_ns.copy(), graph.tasks["samples_ns"].copy()
    whole_ns, whole_samples = int(duration.sum()), samples.sum(axis=0)
    waits_ns = np.maximum(np.array(loading.light_waits_ns) - handover_ns, 0)
    if len(waits_ns) == samples.shape[1]:
        samples[waiter] = np.maximum(samples[waiter] - waits_ns, 0)
        waits_ns = waits_ns[central(whole_samples.astype(np.float64))]
    waited_ns = min(int(waits_ns.mean()), int(duration[waiter]))
    duration[waiter] -= waited_ns
    per_batch = loading.fetch_ns // loading.num_workers
    is_bound = waited_ns > _BOUND_RATIO * whole_ns
    load_ns = whole_ns if is_bound else min(per_batch, whole_ns)
    load_samples = whole_samples if is_bound else np.full(samples.shape[1], load_ns)
    changed = graph.with_columns(duration_ns=duration, samples_ns=samples)
    return _append_loading_tasks(changed, loading, load_ns, load_samples)


def with_workers_in_trace(graph: Graph, num_workers: int, fetch_ns: int) -> Graph:
    """Add the workers' loading to iterations that follow each other, and make the waits for batches edges.

    The batch of an iteration is loaded during the one before.

    Parameters
    ----------
    graph : Graph
        Of a timeline: host threads, streams, iterations.
    num_workers, fetch_ns : int
        Workers, and the mean time per batch in one of them.
    """
    waits = graph.select(phase=Phase.DATA, name=f"{re.escape(WAITING)}.*")
    iteration = graph.tasks.get("iteration", np.zeros(graph.num_tasks, dtype=np.int32))
    rows = np.flatnonzero(waits)
    longest = rows[np.lexsort((-graph.duration_ns[rows], iteration[rows]))]
    waiters = longest[np.unique(iteration[longest], return_index=True)[1]]  # the longest wait of each iteration
    if not num_workers or not len(waiters):
        return graph
    handover_ns = min(_HANDOVER_NS, int(graph.duration_ns[waiters].min()))
    waited_ns = graph.duration_ns[waiters] - handover_ns
    step_ns = _step_ns(graph, waiters)
    is_bound = waited_ns.sum() > _BOUND_RATIO * step_ns * len(waiters)
    load_ns = step_ns if is_bound else min(fetch_ns // num_workers, step_ns)
    mask = np.zeros(graph.num_tasks, dtype=bool)
    mask[waiters] = True
    changed = graph.set_duration(mask, np.full(int(mask.sum()), handover_ns), cost_source="measured")
    changed, resource = changed.add_resource(f"{num_workers} loader workers", ResourceKind.HOST_THREAD)
    loads = np.arange(len(waiters)) + changed.num_tasks
    columns = {
        "name": "load batch",
        "op": "load",
        "kind": int(Kind.IO),
        "phase": int(Phase.DATA),
        "resource": resource,
        "duration_ns": np.full(len(waiters), load_ns),
        "iteration": iteration[waiters],
        "cost_source": "measured",
    }
    changed = changed.insert(columns, after=[None] * len(waiters))
    changed = changed.connect(waiters, loads, EdgeKind.CONTROL)
    changed = changed.connect(loads[:-1], waiters[1:], EdgeKind.SYNC)
    return changed.with_meta(loader={"num_workers": num_workers, "fetch_ns": fetch_ns})


def _step_ns(graph: Graph, waiters: Any) -> int:
    """From one wait to the next, in the middle; of a single iteration what its thread does."""
    if len(waiters) > 1:
        ends = graph.tasks["start_ns"][waiters] + graph.duration_ns[waiters]
        return int(np.median(np.diff(ends)))
    return int(graph.duration_ns[graph.tasks["resource"] == graph.tasks["resource"][waiters[0]]].sum())


def _append_loading_tasks(graph: Graph, loading: Loading, load_ns: int, load_samples: Any) -> Graph:
    load, wait = graph.num_tasks, graph.num_tasks + 1
    common = {"phase": int(Phase.DATA), "cost_source": "measured", "op_schema": "", "order": graph.num_tasks}
    new = [
        common
        | {"name": "load batch", "op": "load", "kind": int(Kind.IO), "resource": graph.num_resources}
        | {"duration_ns": load_ns, "samples_ns": load_samples},
        common
        | {"name": "wait for batch", "op": "wait", "kind": int(Kind.SYNC), "resource": 0}
        | {"duration_ns": 0, "samples_ns": np.zeros_like(load_samples)},
    ]
    tasks = {name: _append_rows(name, column, new) for name, column in graph.tasks.items()}
    ends = {"src": [0, load, load - 1], "dst": [load, wait, wait], "from_start": [True, False, False]}
    kinds = {"kind": [EdgeKind.CONTROL, EdgeKind.SYNC, EdgeKind.ORDER]}
    added = ends | kinds
    edges = {
        name: np.concatenate([np.asarray(column), np.array(added.get(name, [0, 0, 0]), dtype=np.asarray(column).dtype)])
        for name, column in {"from_start": np.zeros(graph.num_edges, dtype=bool), **graph.edges}.items()
    }
    resources = {
        "name": [*graph.resources.strings("name").to_numpy(), f"{loading.num_workers} loader workers"],
        "kind": [*graph.resources["kind"], ResourceKind.HOST_THREAD],
        "discipline": [*graph.resources["discipline"], Discipline.FIFO],
        "slots": [*graph.resources["slots"], 1],
    }
    meta = graph.meta.with_entries({"loader": {"num_workers": loading.num_workers, "fetch_ns": loading.fetch_ns}})
    return Graph.from_columns(tasks=tasks, edges=edges, resources=resources, meta=meta)


def _append_rows(name: str, column: Any, rows: list[dict[str, Any]]) -> Any:
    if isinstance(column, Strings):
        return column.concat(Strings.of(str(row.get(name, "")) for row in rows))
    values = [row.get(name, np.zeros(column.shape[1:], dtype=column.dtype)) for row in rows]
    return np.concatenate([column, np.array(values, dtype=column.dtype)])
