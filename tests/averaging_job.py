"""A captured job of two ranks that average gradients, with exact numbers, for the tests of what is done to it."""

import itertools

from windtunnel.graph import EdgeKind, Graph, GraphBuilder, Kind, Phase, ResourceKind
from windtunnel.graph.meta import ProcessGroup

LAYERS = ("last", "middle", "first")  # as their gradients come
SIZES = {"last": 1000, "middle": 2000, "first": 4000}
FORWARD_NS, BACKWARD_NS, ISSUE_NS, UPDATE_NS = 1000, 500, 10, 300


def averaging_job(
    messages=((0, 1, 2),), message_ns=(9000,), num_ranks=2, slow_rank=None, *, is_by_layer=False
) -> Graph:
    """One step: forward, a backward task per layer, an all-reduce per group of layers, an update.

    ``messages`` are groups of layers (places in ``LAYERS``), each closed by its last; ``message_ns`` what each takes.
    ``is_by_layer``: forward tasks and updates of each layer, in the order of the forward pass, in place of one each.
    """
    passed = LAYERS[::-1] if is_by_layer else ("last",)
    builder = GraphBuilder()
    members = []
    for rank in range(num_ranks):
        factor = 3 if rank == slow_rank else 1
        host = builder.resource(f"rank {rank} main thread", ResourceKind.HOST_THREAD)
        network = builder.resource(f"rank {rank} network", ResourceKind.LINK)
        common = {"rank": rank, "resource": host, "iteration": 0}
        chain = [
            builder.task(
                "forward", kind=Kind.COMPUTE, phase=Phase.FORWARD, layer=layer, duration_ns=FORWARD_NS, **common
            )
            for layer in passed
        ]
        sent = []
        for place, layer in enumerate(LAYERS):
            chain.append(
                builder.task(
                    f"{layer} backward",
                    kind=Kind.COMPUTE,
                    phase=Phase.BACKWARD,
                    layer=layer,
                    duration_ns=BACKWARD_NS * factor,
                    **common,
                )
            )
            for number, group in enumerate(messages):
                if group[-1] != place:
                    continue
                chain.append(
                    builder.task(
                        "c10d::allreduce_",
                        kind=Kind.HOST,
                        phase=Phase.BACKWARD,
                        layer=layer,
                        duration_ns=ISSUE_NS,
                        **common,
                    )
                )
                message = builder.task(
                    f"all_reduce {number}",
                    op="all_reduce",
                    kind=Kind.COMM,
                    phase=Phase.BACKWARD,
                    duration_ns=message_ns[number],
                    message_bytes=sum(SIZES[LAYERS[one]] for one in group),
                    rank=rank,
                    resource=network,
                    iteration=0,
                    group=0,
                    sequence=number,
                )
                builder.edge(chain[-1], message, kind=EdgeKind.LAUNCH, from_start=True)
                sent.append(message)
                members.append((message, number))
        first_update = len(chain)
        chain += [
            builder.task("update", kind=Kind.COMPUTE, phase=Phase.UPDATE, layer=layer, duration_ns=UPDATE_NS, **common)
            for layer in passed
        ]
        for before, after in itertools.pairwise(chain):
            builder.edge(before, after, kind=EdgeKind.ORDER)
        for before, after in itertools.pairwise(sent):
            builder.edge(before, after, kind=EdgeKind.ORDER)
        for message in sent:
            builder.edge(message, chain[first_update], kind=EdgeKind.SYNC)
    graph = builder.build(
        {
            "groups": (ProcessGroup("0", tuple(range(num_ranks))),),
            "parameters": {f"{layer}.weight": SIZES[layer] for layer in reversed(LAYERS)},
            "origin": {"script": "train.py", "argv": [], "ranks": {"num_ranks": num_ranks}},
        }
    )
    rows, meetings = zip(*members, strict=True)
    met = graph.meet(rows, meetings)
    return Graph(met.tasks, met.edges, met.resources, met.meta)
