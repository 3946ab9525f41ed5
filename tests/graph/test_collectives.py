"""Which messages carry gradients, and which what layers go on computing with."""

from __future__ import annotations

import pytest

from windtunnel.graph import EdgeKind, GraphBuilder, Kind, Phase
from windtunnel.graph.collectives import find_parameter_broadcasts, find_scattered_gradients


def read_by(*operators):
    """A reduce-scatter of a backward pass, and operators of its layer that each read what the last one wrote."""
    builder = GraphBuilder()
    last = builder.task(
        "reduce_scatter", kind=Kind.COMM, op="reduce_scatter", phase=Phase.BACKWARD, layer="0", duration_ns=1
    )
    for operator in operators:
        reader = builder.task(operator, kind=Kind.COMPUTE, op=operator, phase=Phase.BACKWARD, layer="0", duration_ns=1)
        builder.edge(last, reader, kind=EdgeKind.DATA)
        last = reader
    return builder.build()


@pytest.mark.parametrize(
    ("operators", "is_gradient"),
    [
        ((), True),
        (("aten::div_.Tensor", "aten::_to_copy"), True),  # FSDP averages and casts its shard in the layer's hook
        (("aten::mm",), False),  # of activations, as sequence parallelism has them
        (("aten::_to_copy", "aten::mm"), False),
        (("aten::div_.Tensor", "aten::_to_copy", "aten::sum"), False),
    ],
)
def test_a_shard_that_is_only_cast_and_scaled_is_one_of_gradients(operators, is_gradient):
    assert is_gradient == find_scattered_gradients(read_by(*operators))[0]


@pytest.mark.parametrize(("broadcast_bytes", "is_sharded"), [((400, 600), True), ((8, 8), False), ((), False)])
def test_ranks_that_broadcast_as_much_as_they_reduce_shard_the_state_of_the_optimizer(broadcast_bytes, is_sharded):
    builder = GraphBuilder()
    sizes = [("all_reduce", 700), ("all_reduce", 300), *(("broadcast", size) for size in broadcast_bytes)]
    for name, size in sizes:
        builder.task(name, kind=Kind.COMM, op=name, message_bytes=size, duration_ns=1)

    assert is_sharded == bool(find_parameter_broadcasts(builder.build()).any())
