"""Tasks replayed per second on one core, against rustworkx, networkx and SimPy in the same run.

The graph looks like training on 64 ranks with four queues each: 1 M tasks on 256 resources, 2 M edges, rows grouped
by resource as a trace reader gives them. Every task waits for one near in time; of the other edges one in five
reaches far back (activations), and three edges in ten have a lag. SimPy and networkx get fewer tasks of the same shape.
All times are CPU time of the one core, ours and the peers', best of the interleaved rounds.
"""

import time
from functools import partial

import networkx
import numpy as np
import rustworkx
import simpy

from benchmarks import bar
from windtunnel.graph import Graph
from windtunnel.simulate import replay, replay_many
from windtunnel.simulate.arrays import build_fixed_order, event_input
from windtunnel.simulate.engine import event_room, run_event_pass
from windtunnel.simulate.static_engine import static_pass

interleave = partial(bar.interleave, clock=time.process_time)

NUM_TASKS = 1_000_000
NUM_EDGES = 2_000_000
NUM_RESOURCES = 256
NUM_VARIANTS = 64
ROUNDS = 5
# the peers in Python get fewer tasks of the same shape: their speed per task does not depend on it, their memory does
NUM_TASKS_NETWORKX, NUM_TASKS_SIMPY = 100_000, 50_000


def training_graph(num_tasks: int, num_edges: int, *, is_ordered: bool, seed: int = 0) -> Graph:
    """Tasks dealt over the resources in time order.

    With ``is_ordered`` every queue is an edge chain; else each task waits for one of the last few hundred instead, and
    queues decide at run time.
    """
    rng = np.random.default_rng(seed)
    when = np.arange(num_tasks)
    behind = NUM_RESOURCES if is_ordered else rng.integers(1, 2 * NUM_RESOURCES, num_tasks - NUM_RESOURCES)
    chain = np.stack([np.maximum(when[NUM_RESOURCES:] - behind, 0), when[NUM_RESOURCES:]])
    num_cross = num_edges - chain.shape[1]
    dst = rng.integers(NUM_RESOURCES, num_tasks, num_cross)
    near = rng.integers(1, 4 * NUM_RESOURCES, num_cross)
    far = rng.integers(1, num_tasks // 10, num_cross)
    src = np.maximum(dst - np.where(rng.random(num_cross) < 0.8, near, far), 0)
    resource = when % NUM_RESOURCES
    row = np.empty(num_tasks, dtype=np.int64)  # rows grouped by resource
    row[np.argsort(resource, kind="stable")] = when
    edges = row[np.concatenate([chain, [src, dst]], axis=1)]
    edges = edges[:, np.argsort(edges[1], kind="stable")]
    count = edges.shape[1]
    return Graph.from_columns(
        {
            "name": [""] * num_tasks,
            "kind": np.ones(num_tasks),
            "resource": np.sort(resource),
            "duration_ns": rng.integers(1_000, 100_000, num_tasks),
        },
        {
            "src": edges[0],
            "dst": edges[1],
            "kind": np.zeros(count),
            "lag_ns": np.where(rng.random(count) < 0.3, rng.integers(0, 5_000, count), 0),
        },
        {
            "name": [f"queue {r}" for r in range(NUM_RESOURCES)],
            "kind": np.ones(NUM_RESOURCES),
            "discipline": np.zeros(NUM_RESOURCES),
            "slots": np.ones(NUM_RESOURCES),
        },
    )


# --- peers --------------------------------------------------------------------------------------------


def weighted_edges(graph: Graph) -> list[tuple[int, int, int]]:
    """The graph as a longest-path problem: an edge costs its source's duration and its lag, a last node ends all."""
    src, dst = graph.edges["src"], graph.edges["dst"]
    weight = graph.duration_ns[src] + graph.edges["lag_ns"]
    last = np.flatnonzero(np.diff(graph.successors_csr()[0]) == 0)
    edges = list(zip(src.tolist(), dst.tolist(), weight.tolist(), strict=True))
    ends = [(row, graph.num_tasks, int(graph.duration_ns[row])) for row in last.tolist()]
    return edges + ends


def rustworkx_graph(graph: Graph) -> rustworkx.PyDiGraph:
    peer = rustworkx.PyDiGraph(multigraph=True)
    peer.add_nodes_from(range(graph.num_tasks + 1))
    peer.add_edges_from(weighted_edges(graph))
    return peer


def networkx_graph(graph: Graph) -> networkx.MultiDiGraph:
    peer = networkx.MultiDiGraph()
    peer.add_nodes_from(range(graph.num_tasks + 1))
    peer.add_weighted_edges_from(weighted_edges(graph))
    return peer


def simpy_replay(graph: Graph) -> int:
    """The same queues as a SimPy program: one process per task, one Resource per queue; returns the makespan."""
    env = simpy.Environment()
    queues = [simpy.Resource(env, capacity=1) for _ in range(graph.num_resources)]
    done = [env.event() for _ in range(graph.num_tasks)]
    finish = [0] * graph.num_tasks
    indptr, rows = graph.predecessors_csr()
    src, lag = graph.edges["src"][rows].tolist(), graph.edges["lag_ns"][rows].tolist()
    bounds, resource, duration = indptr.tolist(), graph.tasks["resource"].tolist(), graph.duration_ns.tolist()

    def task(row):
        edges = range(bounds[row], bounds[row + 1])
        if edges:
            yield env.all_of([done[src[e]] for e in edges])
            wait = max(finish[src[e]] + lag[e] for e in edges) - env.now
            if wait > 0:
                yield env.timeout(wait)
        with queues[resource[row]].request() as slot:
            yield slot
            yield env.timeout(duration[row])
        finish[row] = env.now
        done[row].succeed()

    for row in range(graph.num_tasks):
        env.process(task(row))
    env.run()
    return max(finish)


# --- the bar ------------------------------------------------------------------------------------------


def static_contest() -> dict[str, float]:
    """One topological pass against the longest path of rustworkx and networkx, and what all of replay() costs."""
    graph = training_graph(NUM_TASKS, NUM_EDGES, is_ordered=True)
    small = training_graph(NUM_TASKS_NETWORKX, 2 * NUM_TASKS_NETWORKX, is_ordered=True)
    program = build_fixed_order(graph)
    duration, finish = graph.duration_ns[program.order].astype(np.int64), np.empty(NUM_TASKS, np.int64)
    peer, slow_peer = rustworkx_graph(graph), networkx_graph(small)
    answers: dict[str, int] = {}

    def ours() -> None:
        static_pass(program.indptr, program.source, program.lag, duration, program.earliest, finish)
        answers["ours"] = int(finish.max())

    def theirs() -> None:
        weight = rustworkx.dag_weighted_longest_path_length(peer, lambda _src, _dst, cost: float(cost))
        answers["rustworkx"] = int(weight)

    def networkx_path() -> None:
        answers["networkx"] = networkx.dag_longest_path_length(slow_peer)

    times = interleave(
        {"static": ours, "rustworkx": theirs, "replay": lambda: replay(graph), "networkx": networkx_path}, ROUNDS
    )
    assert answers["ours"] == answers["rustworkx"] == replay(graph).makespan_ns, answers
    assert answers["networkx"] == replay(small).makespan_ns
    sizes = dict.fromkeys(times, NUM_TASKS) | {"networkx": NUM_TASKS_NETWORKX}
    rates = {f"{name}_mtasks_per_s": sizes[name] / timing.best / 1e6 for name, timing in times.items()}
    return rates | batch_contest(graph)


def batch_contest(graph: Graph) -> dict[str, float]:
    """64 variants at once against 64 single passes; both read durations in row order and give makespans."""
    program = build_fixed_order(graph)
    finish = np.empty(NUM_TASKS, np.int64)
    durations_TK = np.random.default_rng(1).integers(1_000, 100_000, (NUM_TASKS, NUM_VARIANTS))
    rows = [np.ascontiguousarray(durations_TK[:, k]) for k in range(NUM_VARIANTS)]
    singles: list[int] = []

    def single_passes() -> None:
        singles.clear()
        for row in rows:
            static_pass(program.indptr, program.source, program.lag, row[program.order], program.earliest, finish)
            singles.append(int(finish.max()))

    def batch() -> list[int]:
        return replay_many(graph, durations_TK.T, num_threads=1, program=program).makespan_ns.tolist()

    times = interleave({"singles": single_passes, "batch": batch}, 3)
    assert singles == batch()
    return {"batch_ratio": times["singles"].best / times["batch"].best}


def event_contest() -> dict[str, float]:
    """The event-driven pass against a SimPy program of the same queues."""
    graph = training_graph(NUM_TASKS, NUM_EDGES, is_ordered=False)
    small = training_graph(NUM_TASKS_SIMPY, 2 * NUM_TASKS_SIMPY, is_ordered=False)
    program = event_input(graph)
    duration = graph.duration_ns[program.order].astype(np.int64)
    rooms = iter([event_room(program) for _ in range(ROUNDS + 1)])
    answers: dict[str, int] = {}

    def ours() -> None:
        run_event_pass(program, duration, next(rooms))

    def theirs() -> None:
        answers["simpy"] = simpy_replay(small)

    times = interleave({"event": ours, "simpy": theirs, "replay": lambda: replay(graph, engine="event")}, ROUNDS)
    assert answers["simpy"] == replay(small).makespan_ns
    return {
        "event_mtasks_per_s": NUM_TASKS / times["event"].best / 1e6,
        "event_replay_mtasks_per_s": NUM_TASKS / times["replay"].best / 1e6,
        "simpy_mtasks_per_s": NUM_TASKS_SIMPY / times["simpy"].best / 1e6,
    }


def main() -> bool:
    """Measure all four, print the line."""
    found = static_contest() | event_contest()
    checks = {
        "static >= 40 M tasks/s": found["static_mtasks_per_s"] >= 40,
        "static >= 10x rustworkx": found["static_mtasks_per_s"] >= 10 * found["rustworkx_mtasks_per_s"],
        "event >= 8 M tasks/s": found["event_mtasks_per_s"] >= 8,
        "event >= 150x SimPy": found["event_mtasks_per_s"] >= 150 * found["simpy_mtasks_per_s"],
        "batch of 64 >= 4x": found["batch_ratio"] >= 4,
    }
    if bar.is_verbose():
        print(bar.table([{"claim": claim, "holds": holds} for claim, holds in checks.items()]))
        print(bar.table([{"quantity": name, "value": value} for name, value in found.items()]))
    value = found["static_mtasks_per_s"]
    return bar.report("replay_speed", value, "; ".join(checks), all(checks.values()), checks=checks, **found)


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
