"""The data loader of a training job as a graph, and what its replay says.

In: per rank and batch, how long its worker waits, how many bytes come from storage, how long decoding takes, how long
the step computes; workers, prefetch factor, cores, storage. Out: a ``Graph`` whose replay gives the times of every
step, AU, throughput, and which resource limits them. Not here: measuring (``calibrate``), configurations (``predict``).

The recurrence of ``torch.utils.data.DataLoader`` for batch k, with W workers and prefetch factor P::

    issue_k = 0 if k < W * P else got_{k - W*P}
    done_k  = max(issue_k, done_{k-W}) + read_k + decode_k     # worker k mod W makes one batch at a time
    got_k   = max(done_k + transfer, end_{k-1}) + get          # in order, whatever worker is ready first
    end_k   = max over ranks of (got_k + compute_k) + barrier

Without workers got_k = end_{k-1} + read_k + decode_k. Reads share the bandwidth of the storage max-min fairly, each up
to the rate of one stream; decoding shares the cores once there are more workers than cores.
"""

# R ranks, N steps, W workers per rank

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import Discipline, EdgeKind, Graph, Kind, Phase, ResourceKind
from windtunnel.simulate import Timeline, replay
from windtunnel.systems.dataio.metrics import BlockTimes

__all__ = [
    "CAUSES",
    "Batches",
    "Bottleneck",
    "LoaderSetup",
    "block_times",
    "find_bottleneck",
    "loader_graph",
    "simulate",
]

Ints = NDArray[np.int64]

CAUSES = {
    "accelerator": "the accelerator is busy all the time",
    "storage bandwidth": "the bandwidth of the storage",
    "storage latency": "the latency of the storage at each file",
    "per-sample overhead": "opening files and handing on samples, whatever their size (small files)",
    "decoding": "the processor time of decoding",
    "workers": "too few workers",
    "prefetch": "too few batches prefetched by each worker",
    "hand-over": "handing batches to the main process, and the end of each step",
    "stragglers": "ranks that wait for the slowest one at the barrier",
}
_NO_LIMIT_BYTES_PER_S = 1e15
_MANY_WORKERS, _MANY_PREFETCHED = 16, 64
# a cause is named if removing it saves at least this share of the step
_MIN_GAIN = 0.02
# what is easy to change is named where it saves nearly as much as what is not
_SIMILAR_GAIN = 0.8


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
    """

    num_workers: int
    prefetch_factor: int = 2
    num_cores: int = 1
    pool_bytes_per_s: float = _NO_LIMIT_BYTES_PER_S
    stream_bytes_per_s: float = _NO_LIMIT_BYTES_PER_S
    slowdown: tuple[float, ...] = ()


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
    start_ns : int
        Until workers run; only in the first epoch.
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
    start_ns: int = 0
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

    Examples
    --------
    >>> zeros = np.zeros((1, 4), np.int64)
    >>> batches = Batches(zeros, zeros, zeros, zeros + 30, zeros + 10)
    >>> replay(loader_graph(batches, LoaderSetup(num_workers=2, num_cores=2))).makespan_ns
    80
    """
    ranks, steps = batches.num_ranks, batches.num_steps
    num_workers = setup.num_workers
    # One row per kind, rank and step; barriers have one row per step.
    #      read -> decode -> got -> compute -> end (barrier) -> got of the next step
    read, decode, got, compute = (np.arange(4 * ranks * steps).reshape(4, ranks, steps)).astype(np.int32)
    end = np.broadcast_to(4 * ranks * steps + np.arange(steps), (ranks, steps)).astype(np.int32)
    shift = max(num_workers * setup.prefetch_factor, 1)
    edges = [(read, decode), (decode, got), (got, compute), (compute, end), (end[:, :-1], got[:, 1:])]
    if num_workers:
        # a worker makes one batch at a time; a batch is requested when an earlier one was received
        edges += [(decode[:, :-num_workers], read[:, num_workers:]), (got[:, :-shift], read[:, shift:])]
    else:
        edges.append((end[:, :-1], read[:, 1:]))
    src, dst = (np.concatenate([pair[i].ravel() for pair in edges]) for i in (0, 1))
    num_decoders = ranks * max(num_workers, 1)
    resources, worker_first, main_first = _resources(setup, ranks, num_decoders)
    worker = np.arange(steps) % max(num_workers, 1) + max(num_workers, 1) * np.arange(ranks)[:, None]
    main = np.broadcast_to(main_first + np.arange(ranks)[:, None], (ranks, steps))
    # With a core for every worker nothing is shared, and the edges alone fix the order.
    num_users = num_decoders + batches.uses_cores * ranks
    is_shared = num_users > setup.num_cores or any(factor != 1.0 for factor in setup.slowdown[:num_users])
    decoder = np.zeros((ranks, steps), np.int64) if is_shared else worker_first + worker
    computer = np.zeros((ranks, steps), np.int64) if is_shared and batches.uses_cores else main + ranks
    kinds = (Kind.IO, Kind.HOST, Kind.HOST, Kind.HOST if batches.uses_cores else Kind.COMPUTE)
    get_ns = np.full((ranks, steps), batches.get_ns if num_workers else 0)
    names = ["read", "decode", "get", "compute", "barrier"]
    count = ranks * steps
    tasks: dict[str, Any] = {
        "name": np.repeat(names, [count] * 4 + [steps]).tolist(),
        "kind": np.repeat([*kinds, Kind.SYNC], [count] * 4 + [steps]).astype(np.int8),
        "phase": np.repeat(
            [Phase.DATA, Phase.DATA, Phase.DATA, Phase.OTHER, Phase.OTHER], [count] * 4 + [steps]
        ).astype(np.int8),
        "iteration": np.concatenate([np.tile(np.arange(steps), 4 * ranks), np.arange(steps)]).astype(np.int32),
        "rank": np.append(np.tile(np.repeat(np.arange(ranks), steps), 4), np.zeros(steps)).astype(np.int32),
        "resource": _column([worker_first + worker, decoder, main, computer], np.full(steps, -1)).astype(np.int32),
        "duration_ns": _column(
            [batches.wait_ns, batches.overhead_ns + batches.decode_ns, get_ns, batches.compute_ns],
            np.full(steps, batches.barrier_ns),
        ).astype(np.int64),
        "earliest_ns": np.append(np.where(read.ravel() >= 0, batches.start_ns, 0), np.zeros(3 * count + steps)).astype(
            np.int64
        ),
    }
    routes: list[tuple[int, ...]] = []
    if batches.size_bytes.any():
        # the stream of each worker and the pool that all of them share
        pool = 1
        routes = [(pool, pool + 1 + index) for index in range(num_decoders)]
        tasks["message_bytes"] = np.append(batches.size_bytes, np.zeros(3 * count + steps)).astype(np.int64)
        tasks["route"] = np.append(worker, np.full(3 * count + steps, -1)).astype(np.int32)
    lag_ns = np.zeros(len(src), np.int64)
    if num_workers:
        lag_ns[count : 2 * count] = batches.transfer_ns  # the second group of edges: decode -> got
    columns = {"src": src, "dst": dst, "kind": np.full(len(src), EdgeKind.DATA, np.int8), "lag_ns": lag_ns}
    return Graph.from_columns(tasks, columns, resources, {"source": "dataio", "routes": tuple(routes)})


def _column(parts: list[Any], barriers: Any) -> NDArray[Any]:
    return np.concatenate([*(np.asarray(part).ravel() for part in parts), barriers])


def _resources(setup: LoaderSetup, ranks: int, num_decoders: int) -> tuple[dict[str, Any], int, int]:
    """Cores, the storage, its streams, workers, main processes and accelerators; rows of the first worker and main."""
    num_workers = max(setup.num_workers, 1)
    owners = [f"rank {rank} worker {index}" for rank in range(ranks) for index in range(num_workers)]
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
        columns["slowdown"][0] = setup.slowdown
    return columns, 2 + num_decoders, 2 + 2 * num_decoders


def block_times(timeline: Timeline, num_ranks: int, batch_size: int) -> list[BlockTimes]:
    """Read the times of each rank's steps off the replay of ``loader_graph``."""
    steps = timeline.graph.num_tasks // (4 * num_ranks + 1)
    start, finish = (
        column[: 4 * num_ranks * steps].reshape(4, num_ranks, steps) / 1e9
        for column in (timeline.start_ns, timeline.finish_ns)
    )
    end = timeline.finish_ns[4 * num_ranks * steps :] / 1e9
    before = np.concatenate([[0.0], end[:-1]])
    return [
        BlockTimes(finish[2, rank] - before, finish[3, rank] - start[3, rank], float(end[-1]), batch_size)
        for rank in range(num_ranks)
    ]


def simulate(batches: Batches, setup: LoaderSetup, batch_size: int) -> list[BlockTimes]:
    """Replay an epoch and return the times of its steps by rank."""
    return block_times(replay(loader_graph(batches, setup)), batches.num_ranks, batch_size)


@dataclass(frozen=True)
class Bottleneck:
    """What limits an epoch.

    Attributes
    ----------
    cause : str
        A key of ``CAUSES``.
    epoch_ns : int
    gains : dict
        For each cause, how many times faster the epoch would be without it.
    """

    cause: str
    epoch_ns: int
    gains: dict[str, float]


def find_bottleneck(batches: Batches, setup: LoaderSetup) -> Bottleneck:
    """Replay the epoch without each cause, and name the one whose absence saves most.

    More workers and deeper prefetching cost little; where they alone save nearly as much as faster storage or decoding
    would, they are named.
    """
    base_ns = replay(loader_graph(batches, setup)).makespan_ns
    nothing = np.zeros_like(batches.wait_ns)
    no_limit = replace(setup, pool_bytes_per_s=_NO_LIMIT_BYTES_PER_S, stream_bytes_per_s=_NO_LIMIT_BYTES_PER_S)
    num_workers = max(_MANY_WORKERS, 2 * setup.num_workers)
    even = np.broadcast_to(batches.compute_ns.mean(axis=0).astype(np.int64), batches.compute_ns.shape)
    variants = {
        "accelerator": (replace(batches, compute_ns=nothing), setup),
        "storage bandwidth": (replace(batches, size_bytes=nothing), no_limit),
        "storage latency": (replace(batches, wait_ns=nothing), setup),
        "per-sample overhead": (replace(batches, overhead_ns=nothing), setup),
        "decoding": (replace(batches, decode_ns=nothing), setup),
        "workers": (batches, replace(setup, num_workers=num_workers)),
        "prefetch": (batches, replace(setup, prefetch_factor=_MANY_PREFETCHED)) if setup.num_workers else None,
        "hand-over": (replace(batches, transfer_ns=0, get_ns=0, barrier_ns=0), setup),
        "stragglers": (replace(batches, compute_ns=even), setup) if batches.num_ranks > 1 else None,
    }
    gains = {
        name: base_ns / max(replay(loader_graph(*variant)).makespan_ns, 1)
        for name, variant in variants.items()
        if variant is not None
    }
    return Bottleneck(_name_cause(gains), base_ns, gains)


def _name_cause(gains: dict[str, float]) -> str:
    saved = {name: 1 - 1 / gain for name, gain in gains.items() if name != "accelerator"}
    largest = max(saved.values())
    if largest < _MIN_GAIN:
        return "accelerator"
    for name in ("prefetch", "workers"):
        if saved.get(name, 0.0) >= max(_SIMILAR_GAIN * largest, _MIN_GAIN):
            return name
    return max(saved, key=lambda name: saved[name])
