"""Products overlapped with their collectives, on graphs whose times are worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import EdgeKind, GraphBuilder, Kind, ResourceKind, Strings
from windtunnel.graph.meta import ProcessGroup
from windtunnel.simulate import replay
from windtunnel.systems.collectives.whatif import async_tensor_parallel
from windtunnel.testing import WhatIfContract


class Layer:
    """A tensor-parallel layer on four ranks, as a dry run notes it: what reads what, and the order of the stream.

    input 10 → all-gather 30 → products 40 each → product 40 → [copy 20] → reduce-scatter 30 → add 5
    """

    def __init__(self, num_products: int = 1, *, has_copies: bool = False, shapes: str = "[[8,4],[4,4]]") -> None:
        self.builder = GraphBuilder()
        self.stream = self.builder.resource("stream 0", ResourceKind.STREAM)
        self.link = self.builder.resource("group 0", ResourceKind.STREAM)
        self.last: dict[int, int] = {}
        self.shapes = shapes
        end = self.task("input", 10)
        gather = self.task("all_gather", 30, end, kind=Kind.COMM)
        end = self.task("aten::cat", 8, gather) if has_copies else gather
        products = [self.task("aten::mm", 40, end) for _ in range(num_products)]
        end = self.task("aten::mm", 40, *products)
        end = self.task("aten::cat", 20, end) if has_copies else end
        scatter = self.task("reduce_scatter", 30, end, kind=Kind.COMM)
        self.task("aten::add", 5, scatter)

    def task(self, op, duration_ns, *reads, kind=Kind.COMPUTE):
        is_comm = kind == Kind.COMM
        resource = self.link if is_comm else self.stream
        columns = {"group": 0, "message_bytes": 64} if is_comm else {"input_shapes": self.shapes}
        row = self.builder.task(
            op, op=op, duration_ns=duration_ns, kind=kind, resource=resource, cost_source="given", **columns
        )
        if resource in self.last:
            self.builder.edge(self.last[resource], row, kind=EdgeKind.ORDER)
        self.last[resource] = row
        for read in reads:
            self.builder.edge(read, row)
        return row

    def build(self):
        return self.builder.build({"groups": [ProcessGroup("tp", (0, 1, 2, 3))]})


class TestAsyncTensorParallel(WhatIfContract):
    name = "async-tensor-parallel"

    def graphs(self):
        yield Layer().build()
        yield Layer(3, has_copies=True).build()


def test_chunks_of_products_hide_the_ring():
    graph = Layer().build()
    changed = async_tensor_parallel(graph)

    # the first product starts with the rank's own chunk at 10, and is never short of chunks: 20, 30, 40 bring the next
    # ones; the second product ends at 90, the ring has sent three of its four chunks at 60-70, 70-80 and 80-90
    assert 10 + 30 + 40 + 40 + 30 + 5 == replay(graph).makespan_ns
    assert 10 + 40 + 40 + 5 == replay(changed).makespan_ns
    assert graph.duration_ns.sum() == changed.duration_ns.sum()


def test_chunks_of_products_take_whole_waves_of_the_device_they_are_priced_on():
    """98,304 x 1,792 are 5,376 tiles, 41 waves of 132; an eighth of them is 672 tiles, 6 waves, which is 48 in all."""
    shapes = "[[98304,4096],[4096,1792]]"
    graph = Layer(shapes=shapes).build()
    graph = graph.with_columns(binding=Strings.repeat("compute", graph.num_tasks))
    products, on_device = graph.select(op="aten::mm"), {"priced_for": "h100-sxm5-80g"}
    graph = graph.set_duration(products, 41_000)
    known, unknown = (async_tensor_parallel(item, num_chunks=8) for item in (graph.note(on_device), graph))

    # the product behind the all-gather, whose message has another size, stays whole
    assert 2 * 41_000 == unknown.duration_ns[unknown.select(op="aten::mm")].sum()
    assert 41_000 + 48_000 == known.duration_ns[known.select(op="aten::mm")].sum()


def test_chunks_are_copied_ahead_of_an_all_gather_and_summed_behind_a_reduce_scatter():
    graph = Layer().build()
    # memory moves a byte per nanosecond, as the input shows
    moved = np.where(graph.select(op="input"), graph.duration_ns, 0)
    changed = async_tensor_parallel(graph.with_columns(bytes_read=moved))

    # 64 bytes among 4: a chunk of 16 is read and written from 10 to 42, before the first product and the first message;
    # products until 122, as does the last message; 64 are read and 16 written until 202
    assert 10 + 32 + 40 + 40 + 80 + 5 == replay(changed).makespan_ns
    passes = changed.select(name="copy own chunk|sum chunks")
    assert [32, 80] == changed.duration_ns[passes].tolist()


def test_a_ring_that_is_longer_than_its_product_is_waited_for():
    graph = Layer().build()
    gather = graph.select(op="all_gather")
    changed = async_tensor_parallel(graph.set_duration(gather, 90))

    # chunks come at 40, 70 and 100: the last quarter of the product ends at 110
    assert 110 + 40 + 5 == replay(changed).makespan_ns


def test_several_products_and_copies_go_through_chunk_by_chunk():
    graph = Layer(2, has_copies=True).build()
    changed = async_tensor_parallel(graph)

    # a chunk takes 2 + 10 + 10 on the stream and 10 on the link: 10 + 4 · 22; then 4 · (10 + 5), hiding 3 chunks of 10
    assert 10 + 88 + 60 + 5 == replay(changed).makespan_ns
    names = changed.tasks.strings("op").to_numpy()
    started = np.argsort(replay(changed).start_ns, kind="stable")
    on_stream = [str(names[row]) for row in started if changed.tasks["resource"][row] == 0]
    assert [
        "input",
        *["aten::cat", "aten::mm", "aten::mm"] * 4,
        *["aten::mm", "aten::cat"] * 4,
        "aten::add",
    ] == on_stream


def test_fewer_chunks_hide_less():
    times = [replay(async_tensor_parallel(Layer().build(), num_chunks=num)).makespan_ns for num in (2, 4)]

    # two chunks: the first product waits until 40, ends at 60; the ring sends from 80 to 110
    assert [10 + 30 + 20 + 40 + 10 + 5, 95] == times


def test_a_product_that_sums_over_what_is_gathered_waits_for_all_of_it():
    graph = Layer(shapes="[[4,7],[7,4]]").build()  # no 64 bytes on the left

    # only the reduce-scatter hides: its last chunk is sent when the product ends
    assert 155 == replay(graph).makespan_ns
    assert 10 + 30 + 40 + 40 + 5 == replay(async_tensor_parallel(graph)).makespan_ns


def test_what_shards_a_model_without_products_next_to_it_is_refused():
    layer = GraphBuilder()
    link = layer.resource("group 0", ResourceKind.STREAM)
    stream = layer.resource("stream 0", ResourceKind.STREAM)
    gather = layer.task("gather", op="all_gather", kind=Kind.COMM, duration_ns=5, resource=link, group=0)
    split = layer.task("split", op="fsdp::split_with_sizes_copy", duration_ns=5, resource=stream)
    layer.edge(gather, split)
    graph = layer.build({"groups": [ProcessGroup("dp", (0, 1))]})

    with pytest.raises(NotApplicableError, match="no product reads what an all-gather brings"):
        async_tensor_parallel(graph)


def test_one_chunk_is_refused():
    with pytest.raises(InputError, match="1 chunks overlap nothing"):
        async_tensor_parallel(Layer().build(), num_chunks=1)
    with pytest.raises(InputError, match="no message is faster during computation"):
        async_tensor_parallel(Layer().build(), in_situ_ratio=0.5)


def test_messages_may_be_slower_during_computation():
    changed = async_tensor_parallel(Layer().build(), in_situ_ratio=2.0)

    # chunks come at 30, 50 and 70, the product ends at 80; the ring begins at 90 and sends three times 20
    assert 90 + 60 + 5 == replay(changed).makespan_ns
