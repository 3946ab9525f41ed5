"""A training-like graph of any size, for the timeline: threads that launch kernels on streams, workers side by side."""

import numpy as np

from windtunnel.graph import Discipline, EdgeKind, Graph, Kind, Phase, ResourceKind, Strings


def big_graph(num_tasks: int, num_resources: int, seed: int = 0) -> Graph:
    """Every resource runs a chain of tasks, some with gaps; durations span four orders of magnitude."""
    rng = np.random.default_rng(seed)
    per_lane = num_tasks // num_resources
    count = per_lane * num_resources
    resource = np.repeat(np.arange(num_resources), per_lane)
    place = np.tile(np.arange(per_lane), num_resources)
    kind = np.where(resource % 4 == 0, Kind.HOST, np.where(resource % 4 == 3, Kind.COMM, Kind.COMPUTE))
    bursts = (place // 500) % 7 == 0
    duration = (10 ** rng.uniform(2, 5, count)).astype(np.int64)
    first = np.flatnonzero(place[1:] > 0)
    lag = np.where(bursts[first + 1], 3 * duration[first + 1], 0)
    names = tuple(f"aten::operator_{index}" for index in range(400))
    layers = ("", *(f"encoder.{index}.attention" for index in range(48)))
    return Graph.from_columns(
        tasks={
            "name": Strings(rng.integers(0, len(names), count).astype(np.int32), names),
            "layer": Strings((place * len(layers) // per_lane).astype(np.int32), layers),
            "kind": kind,
            "phase": np.minimum(1 + place * 3 // per_lane, int(Phase.UPDATE)),
            "resource": resource,
            "rank": resource // 4,
            "duration_ns": duration,
        },
        edges={"src": first, "dst": first + 1, "kind": np.full(len(first), EdgeKind.ORDER), "lag_ns": lag},
        resources={
            "name": [
                f"rank {row // 4} {('thread', 'stream 7', 'stream 9', 'nccl')[row % 4]}" for row in range(num_resources)
            ],
            "kind": np.full(num_resources, ResourceKind.STREAM),
            "discipline": np.full(num_resources, Discipline.FIFO),
            "slots": np.ones(num_resources, dtype=np.int32),
        },
    )
