"""A small model of equal blocks as a graph, all of whose numbers are known."""

from windtunnel.graph import EdgeKind, Graph, GraphBuilder, Kind, Phase, ResourceKind

WORDS, BLOCK, SCORES = 4096, 1024, 2048  # bytes of parameters


def block_graph(num_blocks: int = 4, block_ns: int = 1000, *, num_ranks: int = 1) -> Graph:
    """Words, blocks of two layers, scores, a loss; backward takes twice as long; a tensor has 100 bytes."""
    layers = [("words", WORDS)]
    for at in range(num_blocks):
        layers += [(f"blocks.{at}.first", BLOCK), (f"blocks.{at}.second", 0)]
    layers += [("scores", SCORES), ("Loss", 0)]
    builder = GraphBuilder()
    host = builder.resource("main thread", ResourceKind.HOST_THREAD)
    forward, backward = [], []
    for at, (name, weights) in enumerate(layers):
        forward.append(builder.task(
            f"{name} forward", kind=Kind.COMPUTE, phase=Phase.FORWARD, resource=host, duration_ns=block_ns // 2,
            layer=name, param_bytes=weights, output_bytes=100,
            **({"rank": min(at, num_ranks - 1)} if num_ranks > 1 else {}),
        ))  # fmt: skip
    for name, _ in reversed(layers):
        backward.insert(0, builder.task(
            f"{name} backward", kind=Kind.COMPUTE, phase=Phase.BACKWARD, resource=host, duration_ns=block_ns,
            layer=name, output_bytes=10,
        ))  # fmt: skip
    update = builder.task("adam", kind=Kind.COMPUTE, phase=Phase.UPDATE, resource=host, duration_ns=700)
    for at in range(len(layers)):
        builder.edge(forward[at], backward[at], kind=EdgeKind.DATA, size_bytes=100)
        if at:
            builder.edge(forward[at - 1], forward[at], kind=EdgeKind.DATA, size_bytes=100)
            builder.edge(backward[at], backward[at - 1], kind=EdgeKind.DATA, size_bytes=10)
    builder.edge(forward[-1], backward[-1], kind=EdgeKind.DATA, size_bytes=100)
    builder.edge(backward[0], update, kind=EdgeKind.ORDER)
    return builder.build()
