"""A system as its description says: efficiencies by size of work, networks by operation.

In: a JSON file of Calculon's form. Out: a cost model for graphs, and the times of messages. Computing and moving follow
each other where the description says ``no_overlap``.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.bounds import bounds
from windtunnel.cost.pricer import Prices, exact_prices
from windtunnel.cost.work import Work
from windtunnel.graph import Graph, Kind
from windtunnel.graph.flops import sums_products
from windtunnel.hardware import Device

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class System:
    """Prices by description."""

    said: dict[str, Any]
    name: str = "described system"

    @classmethod
    def read(cls, path: Path) -> "System":
        """From its file."""
        return cls(json.loads(path.read_text()))

    def covers(self, work: Work, device: Device) -> NDArray[np.bool_]:
        """All that states its flops or bytes."""
        del device
        covered: NDArray[np.bool_] = (work.flops > 0) | (work.bytes_moved > 0) | work.is_empty
        return covered

    def price(self, work: Work, device: Device) -> Prices:
        """Computing by matrix or vector units, and moving."""
        del device
        is_matrix = np.array([sums_products(name) for name in work.operator.tolist()], dtype=bool)
        units = [self.said[kind]["float16"] for kind in ("matrix", "vector")]
        rates = [1e12 * unit["tflops"] * _share(unit["gflops_efficiency"], work.flops / 1e9) for unit in units]
        memory = self.said["mem1"]
        moved = 1e9 * memory["GBps"] * _share(memory["MB_efficiency"], work.bytes_moved / 1e6)
        compute_ns = 1e9 * work.flops / np.where(is_matrix, *rates)
        memory_ns = 1e9 * work.bytes_moved / moved
        follows = self.said["processing_mode"] == "no_overlap"
        took_ns = compute_ns + memory_ns if follows else np.maximum(compute_ns, memory_ns)
        free = bounds(np.zeros(len(work)), 0.0, flops_per_s=1.0, bytes_per_s=1.0, overhead_ns=np.maximum(took_ns, 1.0))
        return exact_prices(free)

    def message_ns(self, op: str, size_bytes: float, num_ranks: int, place: int) -> float:
        """One message over a network, 0 within a host."""
        network = self.said["networks"][place]
        scalar, offset = network["ops"][op]
        sent = size_bytes * scalar
        sent += 0 if offset is None else offset * sent / num_ranks
        return float(1e9 * network["latency"] + sent / (network["bandwidth"] * network["efficiency"]))

    def with_messages(self, graph: Graph) -> Graph:
        """The times of all collectives within a host."""
        sent = graph.select(kind=Kind.COMM)
        rows = np.flatnonzero(sent)
        ops = graph.tasks.strings("op").take(rows).to_numpy().tolist()
        sizes = graph.tasks["message_bytes"][rows].tolist()
        members = [len(graph.meta.groups[group].ranks) for group in graph.tasks["group"][rows].tolist()]
        times = [round(self.message_ns(*one, 0)) for one in zip(ops, sizes, members, strict=True)]
        return graph.set_duration(sent, times, cost_source=self.name)


def _share(steps: Sequence[tuple[float, float]], size: Floats) -> Floats:
    """The efficiency of the largest step that a size reaches; steps go down."""
    least = [size >= step for step, _ in steps]
    return np.select(least, [share for _, share in steps], steps[-1][1])
