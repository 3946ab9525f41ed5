"""Get the next batch while this one is trained (what-if family "input").

In: one iteration that loads its own batch (DATA tasks on the training thread), or copies it to a device. Out: some
iterations whose batches come from workers, in the recurrence of PyTorch's loader: worker ``i mod n`` loads batch
``i``, may start it once batch ``i - n * depth`` was taken, and hands it over.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.errors import InEffectError, InputError, NotApplicableError
from windtunnel.graph import EdgeKind, Graph, Kind, Phase, ResourceKind
from windtunnel.hardware import link as catalog_link
from windtunnel.simulate.limits import of_kind, of_phase, other_order
from windtunnel.whatifs.host_waits import is_own_wait
from windtunnel.whatifs.insert_tasks import is_launching, is_on_host, rescale
from windtunnel.whatifs.layer_gradients import last_per_group, positions
from windtunnel.whatifs.shared_cores import host_cores, host_threads, share_cores

__all__ = ["loader_workers", "pinned_memory", "prefetch"]

Rows = NDArray[np.int64]
_ROUNDS = 2
_TO_DEVICE = r"(?i).*(htod|h2d|host.?to.?device).*"
_PINNED = r"(?i).*pinned.*"
_BY_WORKERS = r".*_MultiProcessingDataLoaderIter.*"
_LOAD = "load"


_LIMITS = other_order("no more than loading is saved", without=of_phase(Phase.DATA))


@registry.whatif("loader-workers", source="PyTorch DataLoader; DLIO, CCGrid 2021 (loader recurrence)", limits=_LIMITS)
def loader_workers(
    graph: Graph,
    num_workers: int = 2,
    prefetch_factor: int = 2,
    handover_ns: int = 200_000,
    num_cores: int | None = None,
) -> Graph:
    """Load batches in worker processes.

    The work that the training thread does for its batch moves to the workers; it keeps only the hand-over. Workers
    that find no free core slow the training down and are slowed by it.

    Parameters
    ----------
    graph : Graph
        One iteration that loads its own batch.
    num_workers, prefetch_factor : int
        As of ``torch.utils.data.DataLoader``.
    handover_ns : int
        What taking a batch from a worker costs the training thread.
    num_cores : int, optional
        Of the host; by default as the capture says, else of this host.

    Raises
    ------
    NotApplicableError
        Nothing is loaded, or loading takes less than handing over.
    InEffectError
        As many workers, or more, load already.
    """
    return _load_ahead(graph, num_workers, prefetch_factor, handover_ns, num_cores)


@registry.whatif("prefetch", source="Murray et al., tf.data, VLDB 2021; Daydream, ATC 2020", limits=_LIMITS)
def prefetch(graph: Graph, num_batches: int = 2, handover_ns: int = 20_000, num_cores: int | None = None) -> Graph:
    """Load the next batches in one background thread.

    As ``loader-workers`` with one worker, without the way between processes. Work that holds Python's lock does not
    overlap with the training thread's own Python; this is not modeled.
    """
    return _load_ahead(graph, 1, num_batches, handover_ns, num_cores)


def _load_ahead(graph: Graph, num_workers: int, depth: int, handover_ns: int, num_cores: int | None) -> Graph:
    if num_workers < 1 or depth < 1 or handover_ns < 0:
        raise InputError(f"{num_workers} workers, {depth} batches ahead: both must be 1 or more")
    # Whether workers load already.
    by_name = graph.select(phase=Phase.DATA) & graph.select(name=_BY_WORKERS)
    if bool(graph.meta.loader.get("num_workers") or by_name.any()):
        return _more_workers(graph, num_workers, num_cores)
    batches, load_ns, load_bytes = _load_work(graph)
    if load_ns <= handover_ns:
        raise NotApplicableError(
            f"loading takes {load_ns:,} ns per iteration, no more than handing a batch over ({handover_ns:,} ns)",
            where="phase DATA on host threads",
        )
    trained = _only_handover(graph, batches, handover_ns, load_bytes)
    takes = trained.select(name="take batch")
    # batches loaded ahead fill up first and run out last; in between the pace is steady
    first, last = num_workers * depth, num_workers * (depth + _ROUNDS)
    copies = 1 if graph.num_iterations > 1 else last + num_workers * depth + 1
    trained = trained.concat(copies)
    if copies > 1:
        trained = trained.note({"steady_iterations": [first, last]})
    rows = np.flatnonzero(np.tile(takes, copies))
    rows = rows[np.argsort(positions(trained)[rows], kind="stable")]
    loaded = _with_workers(trained, rows, num_workers, depth, load_ns, load_bytes)
    return _share_cores(loaded, num_workers, num_cores)


def _more_workers(graph: Graph, num_workers: int, num_cores: int | None) -> Graph:
    """The same loading by more workers, as many as there are free cores for.

    Raises
    ------
    InEffectError
        So many workers load already, or it is not known how many do.
    NotApplicableError
        There is no core for another worker.
    """
    known = int(graph.meta.loader.get("num_workers", 0))
    loads = graph.select(phase=Phase.DATA, op=_LOAD)
    if num_workers <= known or not known or not loads.any():
        workers = f"{known} workers load" if known else "workers load"
        raise InEffectError(
            f"{workers} batches ahead",
            where="loader of the captured program",
            fix=f"ask for more than {known}: loader-workers:num_workers={2 * known}" if known else "",
        )
    free = host_cores(graph, num_cores) - (host_threads(graph) if _computes(graph) else 1)
    used = max(known, min(num_workers, free))
    if used == known:
        raise NotApplicableError(f"there is no free core for more than {known} workers", where=f"{free} free cores")
    return rescale(graph, loads, known / used, "shared by more workers")


def _computes(graph: Graph) -> bool:
    return bool((graph.select(kind=Kind.COMPUTE) & is_on_host(graph)).any())


def _load_work(graph: Graph) -> tuple[NDArray[np.bool_], int, int]:
    """Tasks that load, and their time and memory per iteration."""
    batches = graph.select(phase=Phase.DATA) & is_on_host(graph) & ~graph.select(kind=(Kind.SYNC, Kind.COPY))
    batches &= ~is_launching(graph)
    if graph.num_ranks > 1:
        raise NotApplicableError("loading is moved in graphs of one rank only", fix="put it before data-parallel")
    if not batches.any():
        raise NotApplicableError("no task loads data on the training thread", where="phase DATA")
    count = graph.num_iterations
    return batches, int(graph.duration_ns[batches].sum()) // count, _batch_bytes(graph, batches) // count


def _batch_bytes(graph: Graph, batches: NDArray[np.bool_]) -> int:
    """What loading leaves to the rest: results that others read."""
    if "output_bytes" not in graph.tasks:
        return 0
    edges = graph.edges
    leaves = (edges["kind"] == EdgeKind.DATA) & batches[edges["src"]] & ~batches[edges["dst"]]
    return int(graph.tasks["output_bytes"][np.unique(edges["src"][leaves])].sum())


def _only_handover(graph: Graph, batches: NDArray[np.bool_], handover_ns: int, load_bytes: int) -> Graph:
    """Of each iteration's loading keep one task: taking the batch."""
    rows = np.flatnonzero(batches)
    iteration = graph.tasks.get("iteration", np.zeros(graph.num_tasks, dtype=np.int64))
    # the last, as what it feeds needs the whole batch
    kept = np.array(sorted(last_per_group(positions(graph), rows, iteration[rows]).values()), dtype=np.int64)
    first = np.zeros(graph.num_tasks, dtype=bool)
    first[kept] = True
    columns: dict[str, Any] = {"name": graph.tasks.strings("name").assign(kept, "take batch")}
    if "output_bytes" in graph.tasks:
        columns["output_bytes"] = graph.tasks["output_bytes"].copy()
        columns["output_bytes"][kept] = load_bytes
    used = graph.set_duration(first, handover_ns, cost_source="assumed hand-over").with_columns(**columns)
    return used.remove(batches & ~first, keep_gaps=False)


def _with_workers(graph: Graph, takes: Rows, num_workers: int, depth: int, load_ns: int, load_bytes: int) -> Graph:
    workers = []
    for worker in range(num_workers):
        graph, row = graph.add_resource(f"loader worker {worker}", ResourceKind.HOST_THREAD)
        workers.append(row)
    count = len(takes)
    numbers = np.arange(count)
    columns = {
        "name": "load batch",
        "op": "load",
        "kind": int(Kind.IO),
        "phase": int(Phase.DATA),
        "resource": np.array(workers)[numbers % num_workers],
        "duration_ns": np.full(count, load_ns),
        "iteration": graph.tasks["iteration"][takes],
        "cost_source": "measured",
    }
    if "output_bytes" in graph.tasks:
        columns["output_bytes"] = np.full(count, load_bytes)
    loads = graph.num_tasks + numbers
    extended = graph.insert(columns, before=takes.tolist())
    extended = extended.connect(loads[:-num_workers], loads[num_workers:], EdgeKind.ORDER)
    ahead = num_workers * depth
    return extended.connect(takes[:-ahead], loads[ahead:], EdgeKind.CONTROL)


def _share_cores(graph: Graph, num_workers: int, num_cores: int | None) -> Graph:
    """Workers and a training that computes on cores share them, if there are too few."""
    computes = _computes(graph)
    if not computes and not num_cores and not graph.meta.hardware.get("num_cores"):
        return graph  # a host of GPUs is taken to have a core for each worker
    cores, threads = host_cores(graph, num_cores), host_threads(graph)
    busy = threads if computes else 1
    if busy + num_workers <= cores:
        return graph
    curve = [max(1.0, (busy + others) / cores) for others in range(num_workers + 1)]
    return share_cores(graph, is_on_host(graph), cores, slowdown=curve)


@registry.whatif(
    "pinned-memory",
    source="CUDA best practices guide, section 9.1: pinned memory",
    limits=other_order("the device's other work stays", without=of_kind(Kind.COPY, Kind.HOST, Kind.SYNC)),
)
def pinned_memory(graph: Graph, link: str = "pcie4-x16", bandwidth_ratio: float = 0.8, call_ns: int = 5_000) -> Graph:
    """Copy batches to the device from pinned memory, without blocking.

    A copy then runs at ``bandwidth_ratio`` of the link (never slower than now) and the calling thread goes on at once.

    Parameters
    ----------
    graph : Graph
    link : str
        Between host and device, of the catalog.
    bandwidth_ratio : float
        Share of the link's rate that copies reach.
    call_ns : int
        What starting a copy costs the calling thread.

    Raises
    ------
    NotApplicableError
        Nothing is copied to a device, or all of it is pinned already.
    """
    if not 0 < bandwidth_ratio <= 1:
        raise InputError(f"copies cannot reach {bandwidth_ratio} of a link", fix="give a ratio above 0 and at most 1")
    to_device = graph.select(kind=Kind.COPY) & (graph.select(name=_TO_DEVICE) | graph.select(op=_TO_DEVICE))
    pageable = to_device & ~graph.select(name=_PINNED)
    if not pageable.any():
        where = f"{int(to_device.sum())} copies from host to device"
        if to_device.any():
            raise InEffectError("all copies to the device are pinned already", where=where)
        raise NotApplicableError("nothing is copied to a device", where=where)
    rate = catalog_link(link).bandwidth_bytes_per_s * bandwidth_ratio
    moved = graph.tasks.get("message_bytes", graph.tasks.get("bytes_read", np.zeros(graph.num_tasks, dtype=np.int64)))
    at_rate = np.rint(1e9 * moved[pageable] / rate).astype(np.int64)
    now = graph.duration_ns[pageable]
    pinned = graph.set_duration(pageable, np.where(at_rate > 0, np.minimum(at_rate, now), now), cost_source="link rate")
    return _unblock_calls(pinned, pageable, call_ns)


def _unblock_calls(graph: Graph, copies: NDArray[np.bool_], call_ns: int) -> Graph:
    """The calling threads wait for these copies no more."""
    calling = is_launching(graph, copies)
    shorter = np.minimum(graph.duration_ns[calling], call_ns)
    quick = graph.set_duration(calling, shorter, cost_source="assumed call") if calling.any() else graph
    edges = quick.edges
    waits = (edges["kind"] == EdgeKind.SYNC) & copies[edges["src"]] & is_on_host(quick)[edges["dst"]]
    # a later call that waits for everything still does: only the copying call itself, or what follows it, is freed
    own = waits & (calling[edges["dst"]] | ~quick.select(kind=Kind.SYNC)[edges["dst"]] | is_own_wait(quick))
    return quick.disconnect(own) if own.any() else quick
