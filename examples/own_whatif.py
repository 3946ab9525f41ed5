"""A what-if of your own is one function: here, attention that costs a third.

python examples/own_whatif.py train.wt
"""

import sys

import windtunnel as wt
from windtunnel import registry
from windtunnel.errors import NotApplicableError


@registry.whatif("cheap-attention", source="an example")
def cheap_attention(graph: wt.Graph, factor: float = 1 / 3) -> wt.Graph:
    """Scale everything that attention does."""
    attention = graph.select(op=".*attention.*")
    if not attention.any():
        raise NotApplicableError("no operator here is called attention")
    return graph.scale(attention, factor)


def main() -> None:
    graph = wt.load(sys.argv[1])
    for answer in wt.whatif(graph, ["cheap-attention", "cheap-attention:factor=0"]):
        print(answer)


if __name__ == "__main__":
    main()
