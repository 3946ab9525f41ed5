"""What the replay of a loader says: times of steps, AU, and which cause limits them.

In: ``Batches`` and a ``LoaderSetup``. Out: ``BlockTimes``, as a real run has them; a ``Bottleneck``. Not here: the
graph (``loader_graph``), measuring (``calibrate``), configurations (``predict``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from windtunnel.simulate import replay
from windtunnel.systems.dataio.loader_graph import NO_LIMIT_BYTES_PER_S, Batches, LoaderSetup, loader_graph
from windtunnel.systems.dataio.metrics import BlockTimes

__all__ = ["CAUSES", "Bottleneck", "find_bottleneck", "simulate"]

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
_MANY_WORKERS, _MANY_PREFETCHED = 16, 64
# a cause is named if removing it saves at least this share of the step
_MIN_GAIN = 0.02
# what is easy to change is named where it saves nearly as much as what is not
_SIMILAR_GAIN = 0.8


def simulate(batches: Batches, setup: LoaderSetup, batch_size: int) -> list[BlockTimes]:
    """Replay an epoch and return the times of its steps by rank."""
    timeline = replay(loader_graph(batches, setup))
    ranks, steps = batches.num_ranks, batches.num_steps
    count = ranks * steps
    start, finish = (
        column[: 4 * count].reshape(4, ranks, steps) / 1e9 for column in (timeline.start_ns, timeline.finish_ns)
    )
    end = timeline.finish_ns[4 * count : 4 * count + steps] / 1e9
    before = np.concatenate([[0.0], end[:-1]])
    return [
        BlockTimes(finish[2, rank] - before, finish[3, rank] - start[3, rank], float(end[-1]), batch_size)
        for rank in range(ranks)
    ]


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
    no_limit = replace(setup, pool_bytes_per_s=NO_LIMIT_BYTES_PER_S, stream_bytes_per_s=NO_LIMIT_BYTES_PER_S)
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
