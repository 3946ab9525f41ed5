"""Several workers from a capture of one (what-if family "data parallelism").

In: one device's training iteration with layers and parameter sizes. Out: the same iteration with the all-reduces that
DistributedDataParallel would add, and, where the workers share one host's cores, with all of them on those cores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.cost.collective import ring_all_reduce_ns
from windtunnel.cost.rerun import AveragingNeed
from windtunnel.errors import InputError
from windtunnel.graph import EdgeKind, Graph, Kind, Phase, ResourceKind
from windtunnel.graph.collectives import all_reduces
from windtunnel.hardware import Link
from windtunnel.hardware import link as catalog_link
from windtunnel.simulate.limits import up_to
from windtunnel.whatifs.ddp_reducer import (
    OWN_WORK,
    describe_buckets,
    reducing_needs,
    split_by_bytes,
    way_between,
    work_ahead,
)
from windtunnel.whatifs.insert_tasks import computes_on_host, is_on_host
from windtunnel.whatifs.layer_gradients import (
    Bucket,
    buckets_of,
    default_link,
    gradients_of,
    iterations_of,
    link_of,
    need_one_rank,
)
from windtunnel.whatifs.measured import SOURCE, Unpriced
from windtunnel.whatifs.shared_cores import host_cores, host_threads, parallel_tasks, share_cores

__all__ = ["data_parallel"]

Rows = NDArray[np.int64]
_MIB = 2**20
RING = "ring model"


@registry.whatif(
    "data-parallel",
    source="Daydream, ATC 2020; Li et al., PyTorch Distributed, VLDB 2020",
    limits=up_to(lambda baseline: baseline.options["num_ranks"], "n workers train at most n times the samples"),
)
def data_parallel(
    graph: Graph,
    num_ranks: int = 2,
    link: str = "auto",
    bandwidth_bytes_per_s: float | None = None,
    latency_ns: int | None = None,
    bucket_bytes: int = 25 * _MIB,
    first_bucket_bytes: int = _MIB,
    in_situ_ratio: float = 1.0,
    num_cores: int | None = None,
) -> Graph | Unpriced:
    """Train on several workers, gradients averaged by a ring all-reduce per bucket.

    Buckets fill in reverse order of the parameters. Each all-reduce waits for the last gradient of its bucket and for
    the all-reduce before it; the optimizer waits for all. Workers that need more cores than their host has run on a
    shared pool of them, with the messages between them where these go over the host's own memory.

    Measured: gradients are averaged between real processes of this host once; over another link than this host's
    memory, the reducer's own work is measured and the ring's formula is added. Paper: the formula alone.

    Parameters
    ----------
    graph : Graph
        Of one worker.
    num_ranks : int
    link : str
        Of the catalog; ``auto`` is ``loopback`` on a host without devices and ``pcie4-x16`` between devices.
    bandwidth_bytes_per_s, latency_ns : optional
        Replace those of the link.
    bucket_bytes, first_bucket_bytes : int
    in_situ_ratio : float
        Ratio of an all-reduce's duration during computation to its isolated duration (Daydream: about 1.34 with NCCL).
    num_cores : int, optional
        Of the host that all workers share, if they compute on its cores.

    Raises
    ------
    NotApplicableError
        The graph has several ranks already, or no layers with gradients.

    References
    ----------
    Daydream, section 5.3: ``2 (n - 1) / n * S / B + 2 (n - 1) * latency``.
    """
    if num_ranks < 2:
        raise InputError(f"data parallelism needs at least 2 ranks, not {num_ranks}")
    need_one_rank(graph)
    wire = link_of(default_link(graph, link), bandwidth_bytes_per_s, latency_ns)
    rounds = {i: buckets_of(graph, bucket_bytes, first_bucket_bytes, i) for i in iterations_of(graph)}
    crowd = _crowd(graph, num_ranks, wire, num_cores)

    # One communication resource per worker: its all-reduces run one after the other, concurrently with computation.
    def add_all_reduces(price: Callable[[list[Bucket]], list[float]], cost_source: str) -> Graph:
        worker, comm = graph.add_resource("all-reduce", ResourceKind.LINK)
        for iteration, buckets in rounds.items():
            columns = {
                "iteration": iteration,
                "resource": comm,
                "duration_ns": [round(in_situ_ratio * price_ns) for price_ns in price(buckets)],
                "cost_source": cost_source,
            }
            worker = _communicate(worker, buckets, columns)
        workers = worker if crowd is None else _oversubscribe_cores(worker, crowd, num_ranks, graph.num_tasks)
        noted = _note_job(workers, num_ranks, wire, sum(gradient.size_bytes for gradient in gradients_of(graph)))
        return noted.note({"buckets": describe_buckets(next(iter(rounds.values())), bucket_bytes, first_bucket_bytes)})

    def by_formula() -> Graph:
        return add_all_reduces(
            lambda buckets: [ring_all_reduce_ns(bucket.size_bytes, num_ranks, wire) for bucket in buckets], RING
        )

    if not computes_on_host(graph):
        return by_formula()
    # Over this host's own memory the all-reduce can be measured; each size is measured once.
    if wire.name == "loopback":
        sizes = [size for buckets in rounds.values() for size in _reducer_bytes(buckets).values()]
        needs = tuple(AveragingNeed(size, num_ranks) for size in dict.fromkeys(sizes))

        def price_all_reduces(*total_ns: int) -> Graph:
            # they were measured on the very cores that the replay shares out once more
            alone = 1.0 if crowd is None or not crowd.moves_bytes else min(1.0, crowd.num_cores / num_ranks)
            known = {need.size_bytes: alone * price for need, price in zip(needs, total_ns, strict=True)}
            return add_all_reduces(lambda buckets: _averaging_ns(buckets, known), SOURCE)

        return Unpriced(needs, price_all_reduces, by_formula, way_between(graph, num_ranks))
    return _with_own_work(by_formula(), by_formula, way_between(graph, 1))


def _reducer_bytes(buckets: list[Bucket]) -> Counter[int]:
    """Bytes of all gradients of each reducer."""
    total_bytes = Counter[int]()
    for bucket in buckets:
        total_bytes[bucket.reducer] += bucket.size_bytes
    return total_bytes


def _averaging_ns(buckets: list[Bucket], known_ns: Mapping[int, float]) -> list[float]:
    """What averaging takes on this host, each reducer's for itself, shared out among its buckets by their bytes."""
    total_bytes = _reducer_bytes(buckets)
    return [
        known_ns[total_bytes[bucket.reducer]] * bucket.size_bytes / max(1, total_bytes[bucket.reducer])
        for bucket in buckets
    ]


def _with_own_work(graph: Graph, by_formula: Callable[[], Graph], by_default: str) -> Graph | Unpriced:
    """Let the reducer gather each bucket and hand it back, which no link does for it."""
    messages = np.flatnonzero(all_reduces(graph))
    needs = reducing_needs(graph, messages, 1)
    if not needs:
        return graph

    def add_reducer_work(*total_ns: int) -> Graph:
        return work_ahead(graph, messages, split_by_bytes(graph, messages, total_ns), OWN_WORK, SOURCE)

    return Unpriced(needs, add_reducer_work, by_formula, by_default)


@dataclass(frozen=True, slots=True)
class _Crowd:
    """Workers that share too few cores: which tasks of one worker use ``threads`` of them, and which one."""

    num_cores: int
    threads: int
    large: NDArray[np.bool_]
    small: NDArray[np.bool_]
    moves_bytes: bool


def _crowd(graph: Graph, num_ranks: int, wire: Link, num_cores: int | None) -> _Crowd | None:
    """None where every worker has cores enough, or computes on a device of its own.

    Between processes of one host (loopback) the cores move the bytes, too: one more per worker. A rate that is far
    below what the host's memory gives is a throttled link, on which one waits.
    """
    on_host, threads = is_on_host(graph), host_threads(graph)
    large = parallel_tasks(graph) & on_host
    if not computes_on_host(graph):
        return None
    cores, memory = host_cores(graph, num_cores), catalog_link("loopback")
    moves_bytes = wire.name.startswith(memory.name) and 2 * wire.bandwidth_bytes_per_s >= memory.bandwidth_bytes_per_s
    if num_ranks * (threads + moves_bytes) <= cores:
        return None
    return _Crowd(cores, threads, large, on_host & ~large, moves_bytes)


def _communicate(graph: Graph, buckets: list[Bucket], given: dict[str, Any]) -> Graph:
    """Add a worker's all-reduces of an iteration, each behind its gradients and the one before."""
    count = len(buckets)
    columns = {
        **given,
        "name": [f"all-reduce bucket {i}" for i in range(count)],
        "op": "all_reduce",
        "kind": int(Kind.COMM),
        "phase": int(Phase.BACKWARD),
        **_own_rank(graph),
        "message_bytes": [bucket.size_bytes for bucket in buckets],
    }
    after, before = [bucket.ready for bucket in buckets], [bucket.updates for bucket in buckets]
    new = np.arange(graph.num_tasks, graph.num_tasks + count)
    return graph.insert(columns, after, before).connect(new[:-1], new[1:], EdgeKind.ORDER)


def _own_rank(graph: Graph) -> dict[str, int]:
    return {"rank": int(graph.tasks["rank"][0])} if "rank" in graph.tasks else {}


def _oversubscribe_cores(worker: Graph, crowd: _Crowd, num_ranks: int, num_before: int) -> Graph:
    """Copies of a worker that meet in every all-reduce, all on the cores that there are."""
    count = worker.num_tasks
    messages = np.arange(num_before, count)
    rows = (messages + count * np.arange(num_ranks)[:, None]).ravel()
    workers = worker.replicate(num_ranks).meet(rows, np.tile(messages - num_before, num_ranks))
    sent, waiting = np.full(len(messages), crowd.moves_bytes), np.zeros(workers.num_tasks - num_ranks * count, bool)
    large = np.append(np.tile(np.append(crowd.large, sent), num_ranks), waiting)
    small = np.append(np.tile(np.append(crowd.small, np.zeros(len(messages), bool)), num_ranks), waiting)
    if crowd.threads == 1:
        return share_cores(workers, large | small, crowd.num_cores)
    shared = share_cores(workers, large, crowd.num_cores, threads_per_task=crowd.threads, name="cores, parallel")
    return share_cores(shared, small, crowd.num_cores, name="cores, serial")


def _note_job(graph: Graph, num_ranks: int, wire: Link, buffer_bytes: int) -> Graph:
    """What other what-ifs read: workers, link, samples; the reducer keeps its flat buckets for good."""
    return graph.note(
        {
            "world_size": num_ranks,
            "link": wire.json(),
            "samples_ratio": num_ranks * graph.meta.samples_ratio,
            "memory_base_bytes": graph.meta.memory_base_bytes + buffer_bytes,
        }
    )
