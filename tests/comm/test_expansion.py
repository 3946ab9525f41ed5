"""Collectives as messages: every algorithm is correct, and takes what its closed form says where that applies."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.comm.symbolic import contents, own, replayed_moves, whole
from windtunnel.comm import Transport, expand, schedule_of
from windtunnel.comm.instances import collectives_of
from windtunnel.cost.collective import closed_form_ns
from windtunnel.errors import NotApplicableError
from windtunnel.graph import GraphBuilder, Kind, Phase, ProcessGroup, ResourceKind
from windtunnel.hardware import Link, Topology
from windtunnel.simulate import replay

WIRE = Link("wire", 1e9, latency_ns=1000)
# algorithm, operation, how many ranks
CASES = [
    *(("ring", op, n) for op in ("all_reduce", "reduce_scatter", "all_gather") for n in (2, 3, 5, 8)),
    *(("tree", op, n) for op in ("all_reduce", "reduce", "broadcast") for n in (2, 3, 4, 5, 6, 7, 8, 13)),
    *(("halving-doubling", op, n) for op in ("all_reduce", "reduce_scatter", "all_gather") for n in (2, 4, 8, 16)),
    *(("halving-doubling", "all_reduce", n) for n in (3, 5, 6, 7, 12)),
    *(("pairwise", "all_to_all", n) for n in (2, 3, 5, 8)),
    *(("parameter-server", "all_reduce", n) for n in (2, 3, 5)),
    *(("hierarchical", op, sizes) for op in ("all_reduce", "reduce_scatter") for sizes in ((2, 2), (2, 3), (4, 2, 2))),
    ("hierarchical", "all_gather", (3, 4)),
]


def one_collective(op, size_bytes, num=1):
    """A rank that stands for all, with collectives one after the other between two tasks."""
    builder = GraphBuilder()
    stream, wire = builder.resource("stream", ResourceKind.STREAM), builder.resource("comm", ResourceKind.LINK)
    rows = [builder.task("work", duration_ns=500, resource=stream)]
    for number in range(num):
        rows.append(
            builder.task(
                f"{op} {number}", op=op, kind=Kind.COMM, resource=wire, duration_ns=1, message_bytes=size_bytes,
                phase=Phase.BACKWARD,
            )
        )  # fmt: skip
    rows.append(builder.task("update", duration_ns=700, resource=stream))
    for before, after in itertools.pairwise(rows):
        builder.edge(before, after)
    return builder.build()


def members(sizes):
    return sizes if isinstance(sizes, tuple) else (sizes,)


def expanded(op, algorithm, size_bytes, topology, **options):
    graph = one_collective(op, size_bytes)
    (found,) = collectives_of(graph, (op,), topology.num_members)
    schedule = schedule_of(algorithm, op, topology.sizes)
    return expand(graph, found, schedule, Transport(topology, **options)), schedule


def cells_by_tag(schedule, num_parts):
    """Which cells a message with this tag carries; tags go through parts and transfers in order."""
    table = {}
    for part in range(num_parts):
        for first, count, adds in zip(schedule.first, schedule.count, schedule.reduces, strict=True):
            cells = [int(first) + each for each in range(int(count))]
            table[len(table) + 1] = (part, cells, cells, bool(adds))
    return lambda move: table[move.tag]


def held_before(op, schedule, num_parts):
    """What each rank begins with."""
    num, begin = schedule.num_ranks, {}
    for part in range(num_parts):
        for rank in range(num):
            for cell in range(schedule.num_cells):
                if op == "all_gather":
                    has = cell == home(schedule, rank)
                elif op == "all_to_all":
                    has = cell // num == rank
                else:
                    has = op != "broadcast" or rank == 0
                begin[rank, part, cell] = own(rank) if has else 0
    return begin


def home(schedule, rank):
    """The cell that a rank sends first: its own, of an all-gather."""
    at = np.flatnonzero(schedule.src == rank)[0]
    assert schedule.count[at] == 1
    return int(schedule.first[at])


def wrong_cells(op, schedule, num_parts, held):
    """Places whose content is not what the operation promises."""
    num, wrong = schedule.num_ranks, []
    for part in range(num_parts):
        places = [(rank, part, cell) for rank in range(num) for cell in range(schedule.num_cells)]
        if op == "all_reduce":
            wrong += [place for place in places if held[place] != whole(num)]
        elif op == "reduce":
            wrong += [place for place in places if place[0] == 0 and held[place] != whole(num)]
        elif op == "broadcast":
            wrong += [place for place in places if held[place] != own(0)]
        elif op == "all_gather":
            homes = {home(schedule, rank): rank for rank in range(num)}
            wrong += [place for place in places if held[place] != own(homes[place[2]])]
        elif op == "all_to_all":
            wrong += [p for p in places if p[2] % num == p[0] and held[p] != own(p[2] // num)]
        else:  # each rank has one whole chunk, no two the same
            summed = [
                {c for c in range(schedule.num_cells) if held[rank, part, c] == whole(num)} for rank in range(num)
            ]
            if len(set().union(*summed)) < num or not all(summed):
                wrong.append(summed)
    return wrong


@pytest.mark.parametrize(("algorithm", "op", "sizes"), CASES)
def test_every_rank_ends_with_what_the_operation_promises(algorithm, op, sizes):
    """Whatever the wires do: dependencies alone must keep the order, so every message is delayed at random."""
    topology = Topology(members(sizes), (WIRE,) * len(members(sizes)))
    graph, schedule = expanded(op, algorithm, 9973, topology, num_parts=2)
    rng = np.random.default_rng(7)
    for _ in range(3):
        is_message = graph.select(kind=Kind.COMM)
        slowed = graph.set_duration(is_message, rng.integers(1, 5000, int(is_message.sum())))
        held = contents(replayed_moves(slowed), cells_by_tag(schedule, 2), held_before(op, schedule, 2))

        assert [] == wrong_cells(op, schedule, 2, held)


@pytest.mark.parametrize(("algorithm", "op", "sizes"), CASES)
@settings(max_examples=6, deadline=None)
@given(size_bytes=st.integers(3 * 10**7, 10**9), latency_ns=st.integers(0, 10**6), gigabytes=st.floats(0.1, 20))
def test_replayed_messages_take_what_the_closed_form_says(algorithm, op, sizes, size_bytes, latency_ns, gigabytes):
    """Within 1 %; a tree is cut into very many parts, as its formula has it, each far longer than a nanosecond."""
    if algorithm == "parameter-server":
        return
    if algorithm == "tree":  # a latency that is not small hides behind parts on their way up
        latency_ns = min(latency_ns, round(size_bytes / gigabytes / 1000))
    wires = tuple(
        Link(f"wire {number}", gigabytes * 1e9 / (1 + number), latency_ns=latency_ns * (1 + number))
        for number in range(len(members(sizes)))
    )
    topology = Topology(members(sizes), wires)
    parts = 512 if algorithm == "tree" else 1
    graph, _ = expanded(op, algorithm, size_bytes, topology, num_parts=parts)
    taken_ns = replay(graph).makespan_ns - 1200

    assert closed_form_ns(op, algorithm, size_bytes, topology) == pytest.approx(taken_ns, rel=0.01, abs=200)


@pytest.mark.parametrize("op", ["all_reduce", "reduce", "broadcast"])
@pytest.mark.parametrize("num", [2, 3, 4, 5, 8, 9, 16, 31])
def test_the_shortest_message_takes_a_tree_its_latencies(op, num):
    topology = Topology((num,), (Link("wire", 1e12, latency_ns=10**6),))
    graph, _ = expanded(op, "tree", 8, topology)

    assert closed_form_ns(op, "tree", 8, topology) == pytest.approx(replay(graph).makespan_ns - 1200, abs=20)


@pytest.mark.parametrize(("algorithm", "op", "sizes"), CASES)
@given(size_bytes=st.integers(0, 10_000), num_parts=st.integers(1, 5))
@settings(max_examples=10, deadline=None)
def test_no_byte_is_lost_to_rounding(algorithm, op, sizes, size_bytes, num_parts):
    """What each cell's bytes add up to over the parts is the message."""
    schedule = schedule_of(algorithm, op, members(sizes))
    parts = np.diff(size_bytes * np.arange(num_parts + 1) // num_parts)
    alone = schedule.sizes(parts).sum(axis=0)
    by_chunk = [alone[(schedule.count == 1) & (schedule.first == c)] for c in range(schedule.num_cells)]
    one_of_each = [int(found[0]) for found in by_chunk if len(found)]

    assert num_parts == len(schedule.sizes(parts))
    assert sum(one_of_each) <= size_bytes or op == "all_to_all"
    if len(one_of_each) == schedule.per_message == schedule.num_cells:
        assert size_bytes == sum(one_of_each)


def test_arrivals_at_a_server_are_added_up_as_they_come():
    """Three workers of which one is late: its gradient is the last to be added, whoever it is."""
    topology = Topology((3,), (WIRE,))
    for late in range(3):
        builder = GraphBuilder()
        for rank in range(3):
            work = builder.task("work", duration_ns=10**6 if rank == late else 1, rank=rank)
            builder.edge(work, builder.task("grad", op="all_reduce", kind=Kind.COMM, duration_ns=1, rank=rank,
                                            message_bytes=3000))  # fmt: skip
        graph = builder.build()
        (found,) = collectives_of(graph, ("all_reduce",))
        transport = Transport(topology, sum_bytes_per_s=1e9)
        timeline = replay(expand(graph, found, schedule_of("parameter-server", "all_reduce", (3,)), transport))
        sums = timeline.graph.select(op="sum") & (timeline.graph.tasks["rank"] == (late + 1) % 3)

        # two of three are added before the late one is ready
        assert [True, True, False] == (timeline.start_ns[sums] < 10**6).tolist()


def test_ranks_that_share_a_port_wait_for_each_other():
    """Of the three steps of two hosts of two ranks, one has two messages out of each host: 1 + 2 + 1 instead of 3."""
    graph = one_collective("all_to_all", 4_000_000)
    (found,) = collectives_of(graph, ("all_to_all",), 4)
    fast = Link("inside", 1e12)
    taken = [
        replay(
            expand(graph, found, schedule_of("pairwise", "all_to_all", (2, 2)),
                   Transport(Topology((2, 2), (fast, WIRE), (1, sharers))))
        ).makespan_ns
        for sharers in (1, 2)
    ]  # fmt: skip

    assert 4 / 3 == pytest.approx((taken[1] - 1200) / (taken[0] - 1200), rel=0.01)


def test_a_collective_of_many_ranks_begins_with_its_last_member():
    builder = GraphBuilder()
    for rank, ready_ns in enumerate((100, 5000, 300)):
        work = builder.task("work", duration_ns=ready_ns, rank=rank)
        sent = builder.task("all_reduce", kind=Kind.COMM, duration_ns=1, rank=rank, message_bytes=3000)
        after = builder.task("after", duration_ns=10, rank=rank)
        builder.edge(work, sent)
        builder.edge(sent, after, lag_ns=7)
    graph = builder.build()
    (found,) = collectives_of(graph, ("all_reduce",))
    timeline = replay(expand(graph, found, schedule_of("ring", "all_reduce", (3,)), Transport(Topology((3,), (WIRE,)))))

    # four steps of 1000 bytes and 1000 ns, then the lag
    assert [5000 + 4 * 2000 + 7] * 3 == timeline.start_ns[timeline.graph.select(name="after")].tolist()


def test_a_member_that_is_not_there_is_named():
    builder = GraphBuilder()
    for rank in range(3):
        builder.task("all_reduce", kind=Kind.COMM, duration_ns=1, rank=rank, message_bytes=8, group=0, sequence=0)
    graph = builder.build({"groups": [ProcessGroup("world", (0, 1, 2, 3))]})

    with pytest.raises(NotApplicableError, match="has 3 members here"):
        list(collectives_of(graph, ("all_reduce",)))


def test_the_check_finds_a_dependency_that_is_missing():
    """A check that nothing can fail proves nothing."""
    topology = Topology((4,), (WIRE,))
    graph = one_collective("all_reduce", 9973)
    (found,) = collectives_of(graph, ("all_reduce",), 4)
    ring = schedule_of("ring", "all_reduce", (4,))
    broken = replace(ring, needs=ring.needs[:-1])
    moves = replayed_moves(expand(graph, found, broken, Transport(topology)))

    assert wrong_cells(
        "all_reduce", ring, 1, contents(moves, cells_by_tag(ring, 1), held_before("all_reduce", ring, 1))
    )
