"""A published Chakra trace gives its published counts and times, and survives writing and reading.

Longest dependency path 46,140 us; one queue each for host, device compute and device communication, first in first
out by (ready time, id): 295,545 us. Both values come from independent plain-Python replays.
"""

import tempfile
from pathlib import Path

import numpy as np
from tests.shared_data import find_shared

from benchmarks import bar
from windtunnel.graph import Graph
from windtunnel.simulate import replay
from windtunnel.sources.chakra.reader import load_chakra
from windtunnel.sources.chakra.writer import save_chakra

PUBLISHED = {
    "tasks": 3_664,
    "edges": 181_878,
    "roots": 5,
    "total_us": 381_795,
    "communication_us": 36_715,
    "path_us": 46_140,
    "queues_us": 295_545,
}


def measured(graph: Graph) -> dict[str, int]:
    """The published quantities of a loaded trace."""
    unplaced = graph.with_columns(resource=np.full(graph.num_tasks, -1, dtype=np.int32))
    on_device = graph.tasks["resource"] == 2
    return {
        "tasks": graph.num_tasks,
        "edges": graph.num_edges,
        "roots": int((np.diff(graph.predecessors_csr()[0]) == 0).sum()),
        "total_us": int(graph.duration_ns.sum()) // 1000,
        "communication_us": int(graph.duration_ns[on_device].sum()) // 1000,
        "path_us": replay(unplaced).makespan_ns // 1000,
        "queues_us": replay(graph).makespan_ns // 1000,
    }


def survives(graph: Graph) -> bool:
    """Whether writing and reading gives the same graph, and writing again the same bytes."""
    with tempfile.TemporaryDirectory() as folder:
        first = save_chakra(graph, Path(folder) / "a.et")[0]
        again = load_chakra(first)
        return graph.equals(again) and first.read_bytes() == save_chakra(again, Path(folder) / "b.et")[0].read_bytes()


if __name__ == "__main__":
    path = find_shared("replay/chakra/chakra.0.et.gz")
    if path is None:
        bar.report("chakra_exact", 0, "0 differences", holds=False, reason="the public trace is not here")
        raise SystemExit(1)
    graph = load_chakra(path)
    found = measured(graph)
    wrong = {name: found[name] for name in PUBLISHED if found[name] != PUBLISHED[name]}
    is_stable = survives(graph)
    if bar.is_verbose():
        print(bar.table([{"quantity": name, "published": PUBLISHED[name], "here": found[name]} for name in PUBLISHED]))
    count = len(wrong) + (not is_stable)
    bar.report("chakra_exact", count, "0 differences", count == 0, **found, round_trip=is_stable, wrong=wrong)
