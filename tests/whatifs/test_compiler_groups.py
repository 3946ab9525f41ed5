"""A compiler makes one kernel of those that hand each other values and loop over as many elements."""

from __future__ import annotations

from windtunnel.graph import EdgeKind, GraphBuilder, Kind, Phase, ResourceKind
from windtunnel.whatifs.compilation import fuse_compiled_kernels
from windtunnel.whatifs.compiler_groups import group_for_compiler


def kernels(shapes, edges):
    """Kernels of one stream, in order, with what each reads of which."""
    builder = GraphBuilder()
    thread = builder.resource("main", ResourceKind.HOST_THREAD)
    stream = builder.resource("queue", ResourceKind.STREAM)
    rows, launches = [], []
    for number, shape in enumerate(shapes):
        common = {"phase": Phase.FORWARD, "input_shapes": shape}
        launch = builder.task("launch", op="launch", kind=Kind.HOST, resource=thread, duration_ns=5, **common)
        row = builder.task(f"k{number}", op="aten::mul", kind=Kind.COMPUTE, resource=stream, duration_ns=10, **common)
        builder.edge(launch, row, kind=EdgeKind.LAUNCH)
        for previous, row_of in ((launches, launch), (rows, row)):
            if previous:
                builder.edge(previous[-1], row_of, kind=EdgeKind.ORDER)
        rows.append(row)
        launches.append(launch)
    for source, target in edges:
        builder.edge(rows[source], rows[target], kind=EdgeKind.DATA)
    return builder.build(), rows


def groups(shapes, edges):
    graph, rows = kernels(shapes, edges)
    return [[rows.index(row) for row in group] for group in group_for_compiler(graph, rows)]


def test_a_chain_of_one_shape_is_one_kernel():
    assert [[0, 1, 2]] == groups(["[[4,8],[8]]", "[[4,8]]", "[[32]]"], [(0, 1), (1, 2)])


def test_another_number_of_elements_is_another_kernel():
    assert [[0, 1], [2]] == groups(["[[4,8]]", "[[4,8]]", "[[4,4]]"], [(0, 1), (1, 2)])


def test_what_shares_no_memory_stays_apart():
    """Casts of weights, which lie between operators of activations."""
    assert [[0, 2], [1]] == groups(["[[4,8]]", "[[8,4]]", "[[4,8]]"], [(0, 2)])


def test_no_group_waits_for_itself():
    """The first and the last would fuse, but what lies between needs the one and is needed by the other."""
    assert [[0], [1], [2]] == groups(["[[4,8]]", "[[4,4]]", "[[4,8]]"], [(0, 1), (1, 2), (0, 2)])


def test_readers_of_one_tensor_are_one_kernel():
    assert [[0], [1, 2]] == groups(["[[4,4]]", "[[4,8]]", "[[4,8]]"], [(0, 1), (0, 2)])


def test_a_graph_that_does_not_say_what_flows_has_one_group():
    assert [[0, 1]] == groups(["[[4,8]]", "[[4,4]]"], [])


def test_the_first_launch_of_compiled_code_holds_its_guards():
    graph, _ = kernels(["[[4,8]]", "[[4,8]]", "[[4,4]]", "[[4,4]]"], [(0, 1), (2, 3)])
    fused = fuse_compiled_kernels(graph, entry_ns=1000)

    assert 2 == fused.select(op="compiled").sum()
    launches = fused.duration_ns[fused.select(op="launch")].tolist()
    assert [True, False] == [took_ns >= 1000 for took_ns in launches]
