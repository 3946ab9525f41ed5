"""Every engine equals the plain-Python reference bit for bit: static, event-driven and batch.

On 2,000 random graphs with all features, and on every public trace that a source can load.
"""

import numpy as np
from tests.shared_data import find_shared
from tests.simulate.reference import reference_replay
from tests.strategies import random_graph

from benchmarks import bar
from windtunnel.errors import TraceError
from windtunnel.graph import Graph
from windtunnel.simulate import replay, replay_many
from windtunnel.sources.chakra.reader import load_chakra
from windtunnel.sources.execution_trace.reader import is_execution_trace, load_execution_trace
from windtunnel.sources.kineto.reader import load_kineto

NUM_GRAPHS = 2_000


def differing(graph: Graph) -> list[str]:
    """Names of the engines whose answer differs from the reference."""
    start, finish = reference_replay(graph)
    timelines = {"chosen": replay(graph), "event": replay(graph, engine="event")}
    wrong = [
        name
        for name, timeline in timelines.items()
        if timeline.start_ns.tolist() != start or timeline.finish_ns.tolist() != finish
    ]
    batch = replay_many(graph, np.stack([graph.duration_ns * 0, graph.duration_ns]), finishes=True)
    if batch.finish_ns is None or batch.finish_ns[1].tolist() != finish:
        wrong.append("batch")
    if replay_many(graph, graph.duration_ns[None]).makespan_ns[0] != max(finish, default=0):
        wrong.append("batch makespan")
    return wrong


def random_graphs() -> dict[str, int]:
    """How many random graphs differ, and how many each engine played."""
    counts = {"graphs": 0, "static": 0, "event": 0, "differing": 0}
    for seed in range(NUM_GRAPHS):
        graph = random_graph(seed)
        counts["graphs"] += 1
        counts[replay(graph).engine] += 1
        counts["differing"] += bool(differing(graph))
    return counts


def load(path) -> list[Graph]:
    """A public file as graphs, or none if it is no trace that a source here reads.

    An execution trace has no durations, so it is played twice: as it is (order only), and with made-up durations,
    so that the engines have something to disagree about; a third time with those of the Kineto trace of its run.
    """
    try:
        if is_execution_trace(path):
            graph = load_execution_trace(path)
            random = np.random.default_rng(graph.num_tasks).integers(0, 100_000, graph.num_tasks)
            return [graph, graph.set_duration(graph.all_tasks, random), *joined(path)]
        is_chakra = ".et" in path.suffixes or "chakra" in path.parts
        return [load_chakra(path) if is_chakra else load_kineto(path)]
    except TraceError:
        return []


def joined(path) -> list[Graph]:
    """The execution trace with the durations of the Kineto trace of the same run, where that lies beside."""
    beside = {"et_rank": "rank", "simple_add_et_1.0.1": "simple_add_kineto"}
    names = [path.name.replace(old, new) for old, new in beside.items() if path.name.startswith(old)]
    return [load_execution_trace(path, kineto=path.with_name(name)) for name in names]


def traces() -> list[dict[str, object]]:
    """One row per public file of the replay folder."""
    folder = find_shared("replay")
    rows: list[dict[str, object]] = []
    paths = sorted(folder.rglob("*.*")) if folder else []
    for path in paths:
        if not {".et", ".json"} & set(path.suffixes) or "system" in path.parts:
            continue
        graphs = load(path)
        row: dict[str, object] = {"file": str(path.relative_to(folder)), "tasks": graphs[0].num_tasks if graphs else 0}
        wrong = [name for graph in graphs for name in differing(graph)]
        rows.append({**row, "graphs": len(graphs), "differing": wrong if graphs else "not read"})
    return rows


if __name__ == "__main__":
    counts = random_graphs()
    rows = traces()
    wrong = [row["file"] for row in rows if row["differing"] not in ([], "not read")]
    read = [row for row in rows if row["differing"] != "not read"]
    if bar.is_verbose():
        print(bar.table(rows))
    value = counts["differing"] + len(wrong)
    bar.report(
        "replay_exact",
        value,
        "0 differing",
        value == 0 and len(read) == len(rows) > 0,
        random=counts,
        traces=len(read),
        graphs_of_traces=sum(int(row["graphs"]) for row in read),
        trace_tasks=sum(int(row["tasks"]) for row in read),
        wrong=wrong,
        not_read=[row["file"] for row in rows if row["differing"] == "not read"],
    )
