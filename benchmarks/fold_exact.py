"""Bar fold_exact: a folded replay equals the unfolded one to the nanosecond, for 2 to 64 ranks.

Ranks train: each computes, and every layer's gradients are averaged by a ring, trees, halving-doubling, a hierarchy,
a hierarchy whose hosts share their NIC, or a parameter server, message by message over ports that decide their order
at run time; a static parameter server adds in the order of the ranks; and messages between hosts share their NICs at
max-min fair rates. All of it with equal ranks, with one straggler, and with ranks of two speeds. Up to 8 ranks both
are compared with the plain-Python reference, too. ``not_folded`` counts graphs in which no two tasks are alike, or in
which arrivals decide, which are not folded.
"""

import sys
from collections.abc import Iterator

import numpy as np
from tests.simulate.reference import reference_replay

from benchmarks import bar
from windtunnel.comm.collective_algorithm import collective_algorithm
from windtunnel.errors import NotApplicableError
from windtunnel.graph import EdgeKind, Graph, GraphBuilder, Kind, Phase, ResourceKind
from windtunnel.simulate import fold, replay

RANKS = (2, 3, 4, 8, 16, 32, 64)
NUM_LAYERS = 4
LINK = "infiniband-ndr"
REFERENCE_RANKS = 8


def step(num_layers: int = NUM_LAYERS) -> Graph:
    """One rank: forward, backward with a message per layer, updates."""
    builder = GraphBuilder()
    stream, comm = builder.resource("compute", ResourceKind.STREAM), builder.resource("comm", ResourceKind.LINK)
    last, messages = -1, []
    for phase, layers in ((Phase.FORWARD, range(num_layers)), (Phase.BACKWARD, reversed(range(num_layers)))):
        for layer in layers:
            row = builder.task(f"{phase.name} {layer}", phase=phase, duration_ns=9_000 + 700 * layer, resource=stream)
            if last >= 0:
                builder.edge(last, row, kind=EdgeKind.ORDER)
            last = row
            if phase == Phase.BACKWARD:
                size = {"message_bytes": (1 + layer) << 18, "op": "all_reduce"}
                sent = builder.task(
                    f"all-reduce {layer}", phase=phase, duration_ns=1, kind=Kind.COMM, resource=comm, **size
                )
                builder.edge(row, sent)
                messages.append(sent)
    for sent in messages:
        update = builder.task("update", phase=Phase.UPDATE, duration_ns=500, resource=stream)
        builder.edge(sent, update)
        builder.edge(last, update, kind=EdgeKind.ORDER)
        last = update
    return builder.build()


def served(num_ranks: int) -> Graph:
    """A parameter server that adds in the order of the ranks, on a link of its own to each."""
    ranks = step().replicate(num_ranks)
    pushes = np.flatnonzero(ranks.select(kind=Kind.COMM)).reshape(num_ranks, NUM_LAYERS)
    ranks, server = ranks.add_resource("server", ResourceKind.HOST_THREAD)
    first = ranks.num_tasks
    count = num_ranks * NUM_LAYERS
    sums = first + np.arange(count).reshape(NUM_LAYERS, num_ranks)
    columns = {"name": ["sum"] * count, "duration_ns": [300] * count, "resource": [server] * count}
    ranks = ranks.set_duration(pushes.ravel(), 40_000).insert(columns)
    ranks = ranks.connect(pushes.T.ravel(), sums.ravel(), EdgeKind.MESSAGE, lag_ns=2_000)
    ranks = ranks.connect(sums[:, :-1].ravel(), sums[:, 1:].ravel(), EdgeKind.ORDER)
    updates = np.flatnonzero(ranks.select(phase=Phase.UPDATE)).reshape(num_ranks, NUM_LAYERS)
    return ranks.connect(np.repeat(sums[:, -1], num_ranks), updates.T.ravel(), EdgeKind.MESSAGE, lag_ns=42_000)


def fair(num_ranks: int) -> Graph:
    """Ranks that send every gradient to the next one, over the NICs of their hosts and a switch, all at fair rates.

    The ranks of a host share its NIC; messages within a host go over no NIC.
    """
    host = max(size for size in (1, 2, 4, 8) if num_ranks % size == 0 and size < num_ranks)
    ranks, hosts = step().replicate(num_ranks), num_ranks // host
    first = ranks.num_resources
    for number in range(2 * hosts):
        ranks, _ = ranks.add_resource(f"NIC {number}", ResourceKind.LINK, rate=2.5e10)
    # each rank to the one of its place in the next host
    routes = [(first + number, first + hosts + (number + 1) % hosts) for number in range(hosts)]
    sends = ranks.select(kind=Kind.COMM)
    route = np.where(sends, ranks.tasks["rank"] // host, -1)
    return ranks.note({"routes": routes}).with_columns(route=route).set_duration(sends, 1_300).validate()


def averaged(algorithm: str, num_ranks: int, **options: object) -> Graph:
    """All ranks, whose gradients are averaged message by message."""
    return collective_algorithm(step().replicate(num_ranks), algorithm, links=LINK, **options)


def even(num_ranks: int) -> str:
    """Two dimensions, the inner one as large as goes up to 8."""
    inner = max(size for size in (2, 3, 4, 8) if num_ranks % size == 0 and (size < num_ranks or num_ranks < 4))
    return f"{inner}x{num_ranks // inner}"


def graphs(num_ranks: int) -> Iterator[tuple[str, Graph]]:
    """Every way of averaging on so many ranks."""
    for algorithm in ("ring", "tree", "halving-doubling", "parameter-server"):
        yield algorithm, averaged(algorithm, num_ranks)
    sizes = even(num_ranks)
    yield "hierarchical", averaged("hierarchical", num_ranks, sizes=sizes)
    shared = f"1x{sizes.partition('x')[0]}"
    yield "shared NICs", averaged("hierarchical", num_ranks, sizes=sizes, sharers=shared)
    yield "static server", served(num_ranks)
    yield "fair links", fair(num_ranks)


def unequal(graph: Graph) -> Iterator[tuple[str, Graph]]:
    """Equal ranks, one straggler, two speeds."""
    rank, computes = graph.tasks["rank"], graph.select(kind=Kind.COMPUTE) & (graph.duration_ns > 0)
    yield "equal", graph
    yield "straggler", graph.scale(computes & (rank == 1), 1.37)
    yield "two speeds", graph.scale(computes & (rank % 2 == 1), 1.21)


def compared(graph: Graph, num_ranks: int) -> tuple[int, bool]:
    """Classes of tasks (all where the graph is not folded), and whether all that was played is equal."""
    whole = replay(graph, engine="event")
    times = whole.start_ns.tolist(), whole.finish_ns.tolist()
    is_equal = num_ranks > REFERENCE_RANKS or reference_replay(graph) == times
    try:
        folded = fold(graph)
    except NotApplicableError:
        return graph.num_tasks, is_equal
    found = folded.unfold(replay(folded.small))
    return folded.small.num_tasks, is_equal and times == (found.start_ns.tolist(), found.finish_ns.tolist())


def rows() -> Iterator[dict[str, object]]:
    """One row per graph."""
    for num_ranks in RANKS:
        for name, graph in graphs(num_ranks):
            for what, one in unequal(graph):
                classes, is_equal = compared(one, num_ranks)
                yield {
                    "graph": name,
                    "ranks": num_ranks,
                    "speeds": what,
                    "tasks": one.num_tasks,
                    "classes": classes,
                    "equal": is_equal,
                }


def main() -> bool:
    """Print the bar."""
    found = list(rows())
    if bar.is_verbose():
        print(bar.table(found))
    wrong = [row for row in found if not row["equal"]]
    largest = [row for row in found if (row["ranks"], row["speeds"]) == (RANKS[-1], "equal")]
    return bar.report(
        "fold_exact",
        len(wrong),
        "0 graphs differ by a nanosecond",
        not wrong,
        graphs=len(found),
        tasks=sum(row["tasks"] for row in found),
        not_folded=sum(row["tasks"] == row["classes"] for row in found),
        tasks_per_class_64_ranks={row["graph"]: row["tasks"] / row["classes"] for row in largest},
        wrong=[f"{row['graph']}, {row['ranks']} ranks, {row['speeds']}" for row in wrong],
    )


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
