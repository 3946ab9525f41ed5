"""The data loader of a training job as a graph.

In: per rank and batch, how long its worker waits, how many bytes come from storage, how long decoding takes, how long
the step computes; workers, prefetch factor, cores, storage. Out: a ``Graph``. Not here: what its replay says
(``model``), measuring (``calibrate``).

The recurrence of ``torch.utils.data.DataLoader`` for batch k, with W workers and prefetch factor P::

    issue_k = 0 if k < W * P else got_{k - W*P}
    done_k  = max(issue_k, done_{k-W}) + read_k + decode_k     # worker k mod W makes one batch at a time
    got_k   = max(done_k + transfer, end_{k-1}) + get          # in order, whatever worker is ready first
    end_k   = max over ranks of (got_k + compute_k) + barrier

Without workers got_k = end_{k-1} + read_k + decode_k. Reads share the bandwidth of the storage max-min fairly, each up
to the rate of one stream; decoding shares the cores once there are more workers than cores.

A disk whose rate is limited by a bucket of tokens, as those of clouds are, saves up what is not read while a worker
decodes or an accelerator computes. There the bytes of a batch flow while it is decoded, and as many as the share of a
worker in the bucket holds may flow before it is requested::

    early_k = min(bucket / W, bytes_k) at the rate of the pool, from the begin of batch k - W on
    late_k  = the other bytes, from the request of batch k and the end of early_k on
    done_k  = max(late_k + the decoding of the last sample, request_k + bytes_k / stream + decode_k)
"""

# R ranks, N steps, W workers per rank

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import Discipline, EdgeKind, Graph, Kind, Phase, ResourceKind

__all__ = ["NO_LIMIT_BYTES_PER_S", "Batches", "LoaderSetup", "loader_graph"]

Ints = NDArray[np.int64]

NO_LIMIT_BYTES_PER_S = 1e15
_CORES, _STORAGE, _FIRST_STREAM = 0, 1, 2


class _Rows(NamedTuple):
    """Tasks of one name, a table [R, N], or one per step [N]."""

    name: str
    kind: Kind
    phase: Phase
    resource: Ints
    duration_ns: Ints
    size_bytes: Ints


@dataclass(frozen=True)
class LoaderSetup:
    """Where batches are made.

    Attributes
    ----------
    num_workers : int
        Of each rank; 0: batches are made in the main process, which waits for them.
    prefetch_factor : int
        Batches that each worker makes ahead.
    num_cores : int
        Shared by the workers of all ranks.
    pool_bytes_per_s, stream_bytes_per_s : float
        Bandwidth of the storage, and how much of it one reader gets.
    slowdown : tuple of float
        Of decoding while 1, 2, ... workers decode, measured; empty where only the number of cores counts.
    burst_bytes : float
        What the storage saves up while it rests, and delivers later at the rate of the streams.
    """

    num_workers: int
    prefetch_factor: int = 2
    num_cores: int = 1
    pool_bytes_per_s: float = NO_LIMIT_BYTES_PER_S
    stream_bytes_per_s: float = NO_LIMIT_BYTES_PER_S
    slowdown: tuple[float, ...] = ()
    burst_bytes: float = 0.0


@dataclass(frozen=True, eq=False)
class Batches:
    """What each batch of each rank costs, int64 [R, N].

    Attributes
    ----------
    wait_ns : array
        In which the worker occupies neither a core nor bandwidth: latency of the storage, sleeping.
    size_bytes : array
        That come from storage.
    overhead_ns, decode_ns : array
        Processor time of the worker that does not depend on the size of samples, and that does.
    compute_ns : array
    transfer_ns, get_ns, barrier_ns : int
        From the end of a batch in its worker until the main process can receive it, which keeps neither busy; to
        receive it; of the barrier that ends each step.
    num_samples : int
        Of a batch.
    uses_cores : bool
        Whether computing occupies a core of the host; else the accelerator does it.
    """

    wait_ns: Ints
    size_bytes: Ints
    overhead_ns: Ints
    decode_ns: Ints
    compute_ns: Ints
    transfer_ns: int = 0
    get_ns: int = 0
    barrier_ns: int = 0
    num_samples: int = 1
    uses_cores: bool = False

    @property
    def num_ranks(self) -> int:
        """Ranks."""
        return len(self.compute_ns)

    @property
    def num_steps(self) -> int:
        """Steps of each rank."""
        return int(self.compute_ns.shape[1])


def loader_graph(batches: Batches, setup: LoaderSetup) -> Graph:
    """Build the graph of one epoch: for each rank and step a read, a decode, a hand-over, and a computation.

    Tasks are tables [R, N] of these four, then one barrier per step, then early and late bytes [R, N] where the storage
    saves up.

    Examples
    --------
    >>> from windtunnel.simulate import replay
    >>> zeros = np.zeros((1, 4), np.int64)
    >>> batches = Batches(zeros, zeros, zeros, zeros + 30, zeros + 10)
    >>> replay(loader_graph(batches, LoaderSetup(num_workers=2, num_cores=2))).makespan_ns
    80
    """
    saves_up = setup.burst_bytes > 0 and bool(batches.size_bytes.any())
    ranks, steps = batches.num_ranks, batches.num_steps
    tables = _rows(batches, setup, saves_up=saves_up)
    lengths = [table.duration_ns.size for table in tables]
    sizes = np.concatenate([table.size_bytes.ravel() for table in tables])
    tasks: dict[str, Any] = {
        "name": np.repeat([table.name for table in tables], lengths).tolist(),
        "kind": np.repeat([table.kind for table in tables], lengths).astype(np.int8),
        "phase": np.repeat([table.phase for table in tables], lengths).astype(np.int8),
        "iteration": np.concatenate([np.arange(length) % steps for length in lengths]).astype(np.int32),
        "rank": np.concatenate([np.arange(length) // steps for length in lengths]).astype(np.int32),
        "resource": np.concatenate([table.resource.ravel() for table in tables]).astype(np.int32),
        "duration_ns": np.concatenate([table.duration_ns.ravel() for table in tables]),
    }
    meta: dict[str, Any] = {"source": "dataio"}
    if sizes.any():
        # all workers share the storage; the rate of a stream is part of a read where the storage saves up
        streams = _FIRST_STREAM + np.arange(ranks * max(setup.num_workers, 1))
        meta["routes"] = ((_STORAGE,),) if saves_up else tuple((_STORAGE, stream) for stream in streams.tolist())
        worker = np.zeros(ranks * steps, np.int64) if saves_up else tables[0].resource.ravel() - len(streams) - 2
        tasks["message_bytes"] = sizes
        tasks["route"] = np.where(sizes > 0, np.resize(worker, sizes.size), -1).astype(np.int32)
    return Graph.from_columns(tasks, _edges(batches, setup, saves_up=saves_up), _resources(setup, ranks), meta)


def _rows(batches: Batches, setup: LoaderSetup, *, saves_up: bool) -> list[_Rows]:
    """Tasks by name, in the order of the graph."""
    ranks, steps = batches.num_ranks, batches.num_steps
    turns = max(setup.num_workers, 1)
    num_workers = ranks * turns
    nothing = np.zeros((ranks, steps), np.int64)
    rank = np.arange(ranks)[:, None]
    worker = _FIRST_STREAM + num_workers + turns * rank + np.arange(steps) % turns
    main = nothing + _FIRST_STREAM + 2 * num_workers + rank
    # With a core for every worker nothing is shared, and the edges alone fix the order.
    num_users = num_workers + batches.uses_cores * ranks
    is_shared = num_users > setup.num_cores or any(factor != 1.0 for factor in setup.slowdown[:num_users])
    decoder = nothing + _CORES if is_shared else worker
    computer = nothing + _CORES if is_shared and batches.uses_cores else main + ranks
    computing = Kind.HOST if batches.uses_cores else Kind.COMPUTE
    decode_ns, get_ns = batches.overhead_ns + batches.decode_ns, nothing + batches.get_ns * (setup.num_workers > 0)
    wait_ns, sizes = batches.wait_ns, batches.size_bytes
    if saves_up:
        wait_ns = wait_ns + np.rint(sizes * (1e9 / setup.stream_bytes_per_s)).astype(np.int64)
    barrier: Ints = np.zeros(steps, np.int64)
    tables = [
        _Rows("read", Kind.IO, Phase.DATA, worker, wait_ns, nothing if saves_up else sizes),
        _Rows("decode", Kind.HOST, Phase.DATA, decoder, decode_ns, nothing),
        _Rows("get", Kind.HOST, Phase.DATA, main, get_ns, nothing),
        _Rows("compute", computing, Phase.OTHER, computer, batches.compute_ns, nothing),
        _Rows("barrier", Kind.SYNC, Phase.OTHER, barrier - 1, barrier + batches.barrier_ns, barrier),
    ]
    if saves_up:
        early = np.minimum(sizes, round(setup.burst_bytes) // num_workers)
        late = sizes - early
        early[:, :turns] = 0  # saved before the epoch
        tables += [
            _Rows(name, Kind.IO, Phase.DATA, nothing - 1, nothing, part)
            for name, part in (("early bytes", early), ("late bytes", late))
        ]
    return tables


def _edges(batches: Batches, setup: LoaderSetup, *, saves_up: bool) -> dict[str, Any]:
    """Dependencies of the tasks; see the head of this file."""
    ranks, steps = batches.num_ranks, batches.num_steps
    count, turns = ranks * steps, max(setup.num_workers, 1)
    #      read -> decode -> got -> compute -> end (barrier) -> got of the next step
    read, decode, got, compute = np.arange(4 * count).reshape(4, ranks, steps)
    end = np.broadcast_to(4 * count + np.arange(steps), (ranks, steps))
    # a worker makes one batch at a time, and is asked for one when an earlier one was received
    requests = [(decode, turns), (got, turns * setup.prefetch_factor)] if setup.num_workers else [(end, 1)]
    transfer_ns = batches.transfer_ns if setup.num_workers else 0
    # before, after, by how many steps later
    edges = [(read, decode, 0), (decode, got, 0), (got, compute, 0), (compute, end, 0), (end, got, 1)]
    edges += [(before, read, later) for before, later in requests]
    if saves_up:
        early, late = (4 * count + steps + np.arange(2 * count)).reshape(2, ranks, steps)
        edges += [(late, got, 0), (early, late, 0), (late, early, turns)]
        edges += [(before, late, later) for before, later in requests]
        edges += [(late, read, turns)] * (setup.num_workers > 0)
    pairs = [(before[:, : max(steps - later, 0)], after[:, later:]) for before, after, later in edges]
    src, dst = (np.concatenate([pair[i].ravel() for pair in pairs]).astype(np.int32) for i in (0, 1))
    lag_ns = np.zeros(len(src), np.int64)
    is_received = (dst >= got[0, 0]) & (dst < compute[0, 0])
    lag_ns[is_received & (src >= decode[0, 0]) & (src < got[0, 0])] = transfer_ns
    if saves_up:
        last_ns = (batches.overhead_ns + batches.decode_ns) // batches.num_samples
        lag_ns[is_received & (src >= late[0, 0])] = transfer_ns + last_ns.ravel()
    return {"src": src, "dst": dst, "kind": np.full(len(src), EdgeKind.DATA, np.int8), "lag_ns": lag_ns}


def _resources(setup: LoaderSetup, ranks: int) -> dict[str, Any]:
    """Cores, the storage, its streams, workers, main processes and accelerators."""
    owners = [f"rank {rank} worker {index}" for rank in range(ranks) for index in range(max(setup.num_workers, 1))]
    rows = [
        ("cores", ResourceKind.POOL, Discipline.SHARED, setup.num_cores, 1.0),
        ("storage", ResourceKind.LINK, Discipline.FIFO, 1, setup.pool_bytes_per_s),
        *((f"stream of {owner}", ResourceKind.LINK, Discipline.FIFO, 1, setup.stream_bytes_per_s) for owner in owners),
        *((owner, ResourceKind.HOST_THREAD, Discipline.FIFO, 1, 1.0) for owner in owners),
        *((f"rank {rank} main process", ResourceKind.HOST_THREAD, Discipline.FIFO, 1, 1.0) for rank in range(ranks)),
        *((f"rank {rank} accelerator", ResourceKind.DEVICE, Discipline.FIFO, 1, 1.0) for rank in range(ranks)),
    ]
    names = ("name", "kind", "discipline", "slots", "rate")
    columns: dict[str, Any] = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    if setup.slowdown:
        columns["slowdown"] = np.ones((len(rows), len(setup.slowdown)))
        columns["slowdown"][_CORES] = setup.slowdown
    return columns
