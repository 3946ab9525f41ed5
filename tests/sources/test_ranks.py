"""Graphs of several ranks, from any source, on one clock."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.shared_data import shared_path
from windtunnel.errors import InputError, TraceError
from windtunnel.graph import EdgeKind, Graph, GraphBuilder, Kind, ResourceKind, save
from windtunnel.graph.meta import ProcessGroup
from windtunnel.reports.waits import rank_waits, wait_lines
from windtunnel.simulate import replay
from windtunnel.sources.ranks import clock_bounds, load_ranks, merge
from windtunnel.sources.ranks.clock_fit import fit_ends

US, MS = 1_000, 1_000_000


def rank_of(computes, ends, rank=0, world_size=0, *, ops=("all_reduce",), groups=(), sequence=0):
    """A rank that computes and then joins collectives that end at these times (ns)."""
    builder = GraphBuilder()
    cpu = builder.resource("cpu")
    last, now = None, 0
    rows = []

    def add(name, begin, end, **columns):
        nonlocal last
        row = builder.task(name, duration_ns=end - begin, resource=cpu, **columns)
        if last is not None:
            builder.edge(last, row, kind=EdgeKind.ORDER, lag_ns=0)
        last = row
        rows.append(begin)

    for place, (compute, end) in enumerate(zip(computes, ends, strict=True)):
        add("mm", now, now + compute)
        more = {"group": 0, "sequence": sequence + place} if groups else {}
        op = ops[place % len(ops)]
        add(op, now + compute, end, kind=Kind.COMM, op=op, message_bytes=64, **more)
        now = end
    return at(builder.build(), rows, rank, world_size, groups)


def at(graph, starts, rank, world_size=0, groups=()):
    """The graph as measured at these times, with what a profiler says of the job."""
    told = {"rank": rank} | ({"world_size": world_size} if world_size else {})
    meta = graph.meta.with_entries({"source": "test", "groups": groups, "distributed": told})
    tasks = graph.tasks.replace(start_ns=np.array(starts, np.int64))
    return Graph(tasks, graph.edges, graph.resources, meta)


def off(graph, offset, drift=0.0):
    """The same as a clock shows it that is ahead by ``offset`` and gains ``drift``."""

    def seen(time):
        return np.rint(time * (1 + drift)).astype(np.int64) + offset

    start, end = graph.tasks["start_ns"], graph.tasks["start_ns"] + graph.duration_ns
    tasks = graph.tasks.replace(start_ns=seen(start), duration_ns=seen(end) - seen(start))
    return Graph(tasks, graph.edges, graph.resources, graph.meta)


def job(num_ranks, num_steps=12, seed=0, **options):
    """Ranks that compute for random times and meet after each step; the collective itself takes 20 µs."""
    rng = np.random.default_rng(seed)
    computes = rng.integers(50 * US, 500 * US, (num_ranks, num_steps))
    ends, now = [], 0
    for step in range(num_steps):
        now = now + int(computes[:, step].max()) + 20 * US
        ends.append(now)
    return [rank_of(computes[rank].tolist(), ends, rank, **options) for rank in range(num_ranks)]


NAMES = [f"trace{rank}.json" for rank in range(16)]


@given(offsets=st.lists(st.integers(-1000, 1000), min_size=2, max_size=5))
@settings(max_examples=20, deadline=None)
def test_whatever_the_clocks_the_same_graph_comes_out(offsets):
    ranks = job(len(offsets))
    moved = [off(graph, offset * MS) for graph, offset in zip(ranks, offsets, strict=True)]

    plain, aligned = merge(ranks, NAMES[: len(ranks)]), merge(moved, NAMES[: len(ranks)])

    shift = plain.tasks["start_ns"] - aligned.tasks["start_ns"]
    assert 4 >= np.ptp(shift)
    assert 4 >= np.abs(np.ptp(replay(plain).start_ns - replay(aligned).start_ns))


def test_offset_and_drift_of_every_clock_are_found():
    ranks = job(3, num_steps=4000)
    told = [(0, 0.0), (700_000_000, 40e-6), (-250_000_000, -30e-6)]
    moved = [off(graph, *clock) for graph, clock in zip(ranks, told, strict=True)]

    hosts = merge(moved, NAMES[:3]).meta.clocks["hosts"]

    for (offset, drift), host in zip(told, hosts, strict=True):
        expected = host["base_ns"] - round((host["base_ns"] - offset) / (1 + drift))
        assert 2_000 >= abs(host["offset_ns"] + expected)
        assert 0.1 >= abs(host["drift_ppm"] + drift * 1e6)


def test_without_alignment_the_clocks_stay_as_they_are():
    ranks = job(2)
    moved = [ranks[0], off(ranks[1], 5_000_000)]

    graph = merge(moved, NAMES[:2], align="none")

    assert [0, 0] == [host["offset_ns"] for host in graph.meta.clocks["hosts"]]
    starts = [graph.tasks["start_ns"][graph.tasks["rank"] == rank].min() for rank in (0, 1)]
    assert 5_000_000 == starts[1] - starts[0]
    assert "half of the collectives of all ranks end more than 5.00 ms apart: clocks may differ" in _said(graph)
    with pytest.raises(InputError, match="no way 'somehow' to align"):
        merge(moved, NAMES[:2], align="somehow")


def test_clocks_that_agree_are_left_alone():
    """A few microseconds between the ends are the collective's, not the clocks'."""
    ranks = job(2)

    assert "as recorded" in _said(merge([ranks[0], off(ranks[1], 3_000)], NAMES[:2]))


def _said(graph):
    from windtunnel.sources.ranks.clocks import clock_lines

    return "\n".join(clock_lines(graph))


def strangers(op):
    """Ranks of other groups, which have as many collectives; only when these were tells."""
    slow = [
        graph.scale(graph.all_tasks, 100) for graph in (job(1, seed=1, ops=(op,))[0], job(2, seed=99, ops=(op,))[1])
    ]
    return [at(graph, replay(graph).start_ns, rank) for rank, graph in enumerate(slow)]


def test_tasks_that_end_apart_are_not_taken_for_one_collective():
    with pytest.raises(TraceError, match=r"the 12 collectives that these ranks seem to share end up to .* apart"):
        merge(strangers("all_to_all"), NAMES[:2])


def test_two_runs_are_not_made_one_by_moving_their_clocks():
    """Any first collective can be moved onto another; the others tell."""
    one, other = job(1, seed=1, ops=("all_to_all",))[0], job(2, seed=99, ops=("all_to_all",))[1]

    with pytest.raises(TraceError, match=r"not recorded at one time: .* lie between them"):
        merge([one, off(other, 30_000 * MS)], NAMES[:2])


def test_no_clock_lets_an_all_reduce_end_before_it_began():
    with pytest.raises(TraceError, match=r"no setting of the clocks of rank 1, rank 0 lets every cause") as caught:
        merge(strangers("all_reduce"), NAMES[:2])
    assert "('all_reduce') ends on rank 0 before it begins on rank 1; collective" in caught.value.where


def test_a_group_that_is_not_all_here_is_told():
    group = ProcessGroup("tensor", (0, 1, 2, 3))
    ranks = job(4, world_size=4, groups=(group,))

    graph = merge(ranks[:3], NAMES[:3], allow_missing=True)

    assert "12 of 12 collectives have members that are not here" in _said(graph)
    assert "3 of 4 ranks are here" in _said(graph)
    assert "not here" not in _said(merge(ranks, NAMES[:4]))


def test_a_rank_that_is_no_member_is_named():
    ranks = [rank_of([9], [99], rank, 3, groups=(ProcessGroup("tensor", (0, 1)),)) for rank in (0, 1, 2)]

    with pytest.raises(TraceError, match=r"rank 2 takes part in group 'tensor' \[0, 1\], of which it is no member"):
        merge(ranks, NAMES[:3])


def test_ranks_that_share_no_group_are_told_to_have_no_common_clock():
    groups = (ProcessGroup("a", (0, 1)), ProcessGroup("b", (2, 3)))
    one, other = rank_of([9], [99], 0, 4, groups=groups), rank_of([9], [99], 2, 4, groups=groups)
    other = other.with_columns(group=np.where(other.tasks["group"] == 0, 1, -1))

    said = _said(merge([one, other], NAMES[:2], allow_missing=True))

    assert "nothing ties the clock of rank 2 to that of rank 0" in said
    assert "2 collectives have one member here alone" in said


def test_members_that_only_a_group_names_are_missed():
    ranks = [rank_of([9], [99], rank, groups=(ProcessGroup("all", (0, 1, 2)),)) for rank in (0, 2)]

    with pytest.raises(TraceError, match="1 of 3 ranks are missing: 1"):
        merge(ranks, NAMES[:2])


def test_a_file_that_is_named_after_another_rank_is_told():
    assert "trace1.json holds the trace of rank 0" in _said(merge(job(2)[::-1], NAMES[:2]))


def test_collectives_in_another_order_are_named_as_what_hangs():
    one = rank_of([9, 9], [100, 200], 0, ops=("all_reduce", "all_gather"))
    other = rank_of([9, 9], [100, 200], 1, ops=("all_gather", "all_reduce"))

    with pytest.raises(TraceError, match=r"rank 0 has all_reduce of 64 bytes and rank 1 has all_gather") as caught:
        merge([one, other], NAMES[:2])
    assert "different orders, as jobs that hang do" in caught.value.fix


def test_groups_that_are_entered_in_circles_are_named_as_what_hangs():
    """Rank 0 enters group 0 before group 1, rank 1 the other way round: each list alone is in order."""
    groups = (ProcessGroup("a", (0, 1)), ProcessGroup("b", (0, 1)))
    ranks = []
    for rank in (0, 1):
        builder = GraphBuilder()
        thread, last = builder.resource("thread"), -1
        for group in (rank, 1 - rank):
            row = builder.task(
                "all_reduce", kind=Kind.COMM, op="all_reduce", group=group, duration_ns=5, resource=thread
            )
            if last >= 0:
                builder.edge(last, row, kind=EdgeKind.ORDER)
            last = row
        ranks.append(builder.build({"groups": groups, "distributed": {"rank": rank}}))

    with pytest.raises(TraceError, match="the ranks wait for each other in a circle") as caught:
        merge(ranks, NAMES[:2])
    assert "rank 0: arrival at all_reduce of group 'b' [0, 1]" in caught.value.where


def test_a_trace_of_other_steps_is_named_with_the_number_of_the_collective():
    group = (ProcessGroup("all", (0, 1)),)
    one, other = (rank_of([9], [100], rank, groups=group, sequence=17 + rank) for rank in (0, 1))

    with pytest.raises(TraceError, match=r"\(number 17\) and rank 1 has .* \(number 18\)"):
        merge([one, other], NAMES[:2])


def test_a_rank_too_many_is_named():
    with pytest.raises(TraceError, match="rank 2 is one too many: the job has 2 ranks"):
        merge([rank_of([9], [99], rank, 2) for rank in (0, 1, 2)], NAMES[:3])


def test_ranks_are_numbered_as_their_files_are():
    graphs = [rank_of([9], [99]).with_meta(distributed={}) for _ in range(12)]
    names = sorted(f"run.{rank}.et" for rank in range(12))  # 10 stands before 2

    assert names[2] == merge(graphs, names).meta.ranks["10"]


def test_hosts_whose_clocks_agree_with_their_ranks_share_one():
    ranks = job(4)
    moved = [off(graph, 300 * MS * (rank // 2)) for rank, graph in enumerate(ranks)]

    graph = merge(moved, NAMES[:4], hosts=["a", "a", "b", "b"])

    assert {"rank 0 cpu": 0, "rank 1 cpu": 0, "rank 2 cpu": 1, "rank 3 cpu": 1} == dict(
        zip(graph.resources.strings("name").to_numpy(), graph.resources["machine"].tolist(), strict=True)
    )
    assert {"a": 0, "b": -300 * MS} == {
        host["host"]: round(host["offset_ns"], -4) for host in graph.meta.clocks["hosts"]
    }


def test_traces_that_were_exchanged_between_hosts_are_named():
    moved = [off(graph, 300 * MS * (rank // 3)) for rank, graph in enumerate(job(6))]
    exchanged = [moved[0], moved[4], moved[2], moved[3], moved[1], moved[5]]
    told = [at(graph, graph.tasks["start_ns"], rank) for rank, graph in enumerate(exchanged)]

    with pytest.raises(TraceError, match="the traces of ranks 1 and 4 are swapped"):
        merge(told, NAMES[:6], hosts=["a", "a", "a", "b", "b", "b"])


def test_hosts_that_only_their_names_say_are_one_are_looked_at():
    """Two machines may both be called so."""
    named = [f"node_{rank}.{rank}.pt.trace.json" for rank in range(3)]
    ranks = job(3)

    assert "all ranks read one clock" in _said(merge(ranks, named))
    assert 3 == len(merge([ranks[0], ranks[1], off(ranks[2], 80 * MS)], named).meta.clocks["hosts"])


# --- messages -------------------------------------------------------------------------------------------


def talker(rank, talks, tag=0):
    """A rank that sends and receives: (op, peer, begin, end)."""
    builder = GraphBuilder()
    link, last = builder.resource("link"), None
    for op, peer, begin, end in talks:
        row = builder.task(op, kind=Kind.COMM, op=op, peer=peer, tag=tag, duration_ns=end - begin, resource=link)
        if last is not None:
            builder.edge(last, row, kind=EdgeKind.ORDER)
        last = row
    return at(builder.build(), [begin for _, _, begin, _ in talks], rank)


def test_a_receive_waits_for_its_send():
    sender = talker(0, [("send", 1, 500, 600)])
    receiver = talker(1, [("recv", 0, 100, 610)])

    graph = merge([sender, receiver], NAMES[:2])

    assert [100, 110] == graph.duration_ns.tolist()
    assert [500, 500] == replay(graph).start_ns.tolist()
    assert [0, 0] == replay(graph.with_columns(earliest_ns=[0, 0])).start_ns.tolist()


def test_messages_are_paired_whatever_their_tag_and_only_among_who_is_here():
    sender = talker(0, [("send", 1, 500, 600), ("send", 7, 700, 710)], tag=77)
    receiver = talker(1, [("recv", 0, 100, 610)], tag=77)

    graph = merge([sender, receiver], NAMES[:2])

    assert [500, 600, 500] == replay(graph).start_ns.tolist()  # nobody here receives the second


def test_messages_both_ways_set_the_clocks():
    """As NTP: the quickest of both ways took equally long."""
    there = [(1000 * US * n, 1000 * US * n + 50 * US) for n in range(20)]
    talks = [[], []]
    for number, (begin, end) in enumerate(there):
        out = number % 2
        talks[out].append(("send", 1 - out, begin, end))
        talks[1 - out].append(("recv", out, begin, end))
    ahead = [talker(0, talks[0]), off(talker(1, talks[1]), 3_000_000)]

    hosts = merge(ahead, NAMES[:2]).meta.clocks["hosts"]

    assert 1_000 >= abs(hosts[1]["offset_ns"] + 3_000_000)
    assert hosts[1]["low_ns"] <= -3_000_000 <= hosts[1]["high_ns"]


def test_a_drift_that_a_short_trace_cannot_prove_is_taken_where_nothing_else_can_be():
    """Without it an end would come before a begin."""
    ranks = job(2, num_steps=40)

    hosts = merge([ranks[0], off(ranks[1], 5 * MS, 0.01)], NAMES[:2]).meta.clocks["hosts"]

    assert 100 >= abs(hosts[1]["drift_ppm"] + 1e6 * (1 - 1 / 1.01))


def talking(num_messages, every_ns):
    """Two ranks that send to each other in turn; each message takes 50 µs, and now and then more."""
    draw = np.random.default_rng(0)
    talks = [[], []]
    for number in range(num_messages):
        out, begin = number % 2, every_ns * number
        end = begin + 50 * US + int(draw.integers(0, 200 * US))
        talks[out].append(("send", 1 - out, begin, begin + 40 * US))
        talks[1 - out].append(("recv", out, begin, end))
    return [talker(rank, talks[rank]) for rank in (0, 1)]


def test_messages_tell_drifts_too():
    ranks = talking(4000, 2 * MS)

    hosts = merge([ranks[0], off(ranks[1], 9 * MS, 30e-6)], NAMES[:2]).meta.clocks["hosts"]

    assert 1 >= abs(hosts[1]["drift_ppm"] + 30)
    assert 3 * US >= abs(hosts[1]["offset_ns"] + 9 * MS + 30e-6 * hosts[1]["base_ns"])


def test_messages_that_come_before_they_left_are_named():
    """Whatever the clocks: one way they come early, and the other way too."""
    there = [("send", 1, 1000 * US, 1010 * US), ("recv", 1, 0, 500 * US)]
    back = [("recv", 0, 0, 900 * US), ("send", 0, 600 * US, 610 * US)]

    with pytest.raises(TraceError, match=r"no setting of the clocks of rank 1, rank 0 lets") as caught:
        merge([talker(0, there), talker(1, back)], NAMES[:2])
    assert "message 0 ('send') ends on rank 1 before it begins on rank 0" in caught.value.where


def test_messages_one_way_set_the_clocks_where_only_some_receives_waited():
    """Equal messages take equally long: those that waited, once clipped, as those that did not."""
    draw = np.random.default_rng(0)
    sends, receives = [], []
    for number in range(40):
        sent = 2 * MS * number
        came = sent + int(draw.integers(-900 * US, 900 * US))  # before the send it waits, after it the message does
        sends.append(("send", 1, sent, max(sent, came) + 50 * US))
        receives.append(("recv", 0, came, max(sent, came) + 50 * US))

    for ahead in (-7 * MS, 3 * MS):
        hosts = merge([talker(0, sends), off(talker(1, receives), ahead)], NAMES[:2]).meta.clocks["hosts"]

        assert 3 * US >= abs(hosts[1]["offset_ns"] + ahead)


def test_a_message_with_one_end_names_both_ranks():
    with pytest.raises(TraceError, match="rank 0 sends 1 messages to rank 1 with tag 0, which receives 0"):
        merge(
            [
                talker(0, [("send", 1, 0, 5)]),
                talker(1, [("send", 0, 0, 5), ("recv", 0, 1, 5)][:0] or [("send", 2, 0, 5)]),
            ],
            NAMES[:2],
        )


def test_swapped_traces_are_named():
    """A pipeline 0 -> 1 -> 2 -> 3 in which the traces of 1 and 2 are exchanged."""
    chain = [[], [], [], []]
    for rank in range(3):
        chain[rank].append(("send", rank + 1, 100 * rank, 100 * rank + 10))
        chain[rank + 1].append(("recv", rank, 100 * rank, 100 * rank + 10))
    swapped = [talker(rank, chain[of]) for rank, of in enumerate((0, 2, 1, 3))]

    with pytest.raises(TraceError) as caught:
        merge(swapped, NAMES[:4])
    assert "traces of ranks 1 and 2 look swapped: exchange them" in str(caught.value)


# --- how long a collective takes ------------------------------------------------------------------------


def test_a_collective_takes_as_long_as_its_shortest_record():
    """The rank that came last did not wait; the mean would hold the waiting of the others."""
    ranks = [rank_of([compute * US], [500 * US], rank) for rank, compute in enumerate((100, 300, 480))]

    graph = merge(ranks, NAMES[:3])

    assert {20 * US} == set(graph.duration_ns[graph.select(kind=Kind.COMM)].tolist())


def test_a_record_that_was_cut_is_not_taken_for_the_collective():
    ranks = [
        rank_of([compute * US], [end * US], rank)
        for rank, (compute, end) in enumerate(((100, 500), (110, 111), (120, 500), (130, 500)))
    ]

    graph = merge(ranks, NAMES[:4])

    assert {370 * US} == set(graph.duration_ns[graph.select(kind=Kind.COMM)].tolist())


# --- waits ----------------------------------------------------------------------------------------------


def test_the_last_to_come_is_to_blame():
    ranks = [rank_of([100, 300], [400, 720], 0), rank_of([380, 100], [400, 720], 1)]

    waits = rank_waits(replay(merge(ranks, NAMES[:2])))

    assert [(1, 280), (0, 200)] == [(wait.rank, wait.held_up_ns) for wait in waits]
    assert [(1, 200), (0, 280)] == [(wait.rank, wait.waited_ns) for wait in waits]
    assert "rank 0 waits longest" in wait_lines(replay(merge(ranks, NAMES[:2])))[-1]


# --- sources --------------------------------------------------------------------------------------------


def test_stored_graphs_of_ranks_are_one_job(tmp_path):
    for rank, graph in enumerate(job(3)):
        save(graph, tmp_path / f"rank{rank}.wt")

    assert 3 == load_ranks(tmp_path).num_ranks


def test_a_folder_of_two_formats_is_refused(tmp_path):
    save(job(2)[0], tmp_path / "rank0.wt")
    (tmp_path / "rank1.json").write_text(json.dumps({"workload_graph": []}))

    with pytest.raises(TraceError, match="these traces are of 2 formats: stored, chakra"):
        load_ranks(tmp_path)


def test_a_published_algorithm_of_eight_ranks_is_whole():
    """Every send finds its receive; nobody waits in a circle."""
    paths = [shared_path(f"replay/astra_sim/msccl/custom_allreduce.{rank}.et.gz") for rank in range(8)]

    graph = load_ranks(paths)

    operators = graph.tasks.strings("op").to_numpy()
    assert (operators == "send").sum() == (operators == "recv").sum() == (graph.edges["kind"] == EdgeKind.MESSAGE).sum()


def test_execution_traces_of_ranks_meet_in_their_collectives():
    pytest.importorskip("torch")
    paths = [shared_path(f"replay/kineto_dlrm_8ranks/et_rank{rank}.json.gz") for rank in range(2)]

    graph = load_ranks(paths)

    assert 8 == (graph.tasks["kind"] == Kind.VIRTUAL).sum()


# --- the mathematics ------------------------------------------------------------------------------------


def slow_bounds(limit):
    """Bellman-Ford, one host at a time."""
    num = len(limit)
    least = np.zeros(num)
    for _ in range(num):
        for s in range(num):
            for d in range(num):
                least[s] = min(least[s], least[d] + limit[s, d])
    return any(least[s] > least[d] + limit[s, d] + 1e-9 for s in range(num) for d in range(num)), least


@given(st.integers(2, 5), st.integers(0, 10_000))
@settings(deadline=None)
def test_contradictions_are_those_that_bellman_ford_finds(num_hosts, seed):
    limit = np.random.default_rng(seed).integers(-30, 100, (num_hosts, num_hosts)).astype(float)
    np.fill_diagonal(limit, np.inf)
    off_diagonal = np.where(np.eye(num_hosts, dtype=bool), 0, limit)
    impossible = any(least < 0 for least in np.diagonal(_closure(off_diagonal)))

    cycle = clock_bounds.contradiction(limit)

    assert impossible == bool(cycle)
    if cycle:
        assert 0 > sum(limit[one, other] for one, other in zip(cycle, [*cycle[1:], cycle[0]], strict=True))
    else:
        placed = clock_bounds.nearest(np.random.default_rng(seed).normal(0, 500, num_hosts), limit)
        assert 2 >= (placed[:, None] - placed[None, :] - np.where(np.isfinite(limit), limit, 1e9)).max()


def _closure(limit):
    length = limit.copy()
    for _ in range(len(limit)):
        for s in range(len(limit)):
            for d in range(len(limit)):
                length[s, d] = min(length[s, d], min(length[s, m] + length[m, d] for m in range(len(limit))))
    return length


def test_hosts_that_never_meet_are_parts_of_their_own():
    end = np.array([[0.0, 5, np.nan, np.nan], [np.nan, np.nan, 0, 7], [10, 15, np.nan, np.nan]])

    fit = fit_ends(end, with_drift=False)

    assert [0, 0, 2, 2] == fit.part.tolist()
    assert np.allclose([0, -5, 0, -7], fit.offset_ns)


def test_ranks_keep_the_routes_of_their_messages():
    linked, wire = rank_of([100], [200]).add_resource("wire", ResourceKind.LINK, rate=1e9)
    linked = linked.with_columns(route=[-1, 0])
    told = [{"routes": [[wire]], "distributed": {"rank": rank}} for rank in (0, 1)]
    parts = [replace(linked, meta=linked.meta.with_entries(one)) for one in told]
    whole = merge(parts, ["a", "b"])

    assert ((1,), (3,)) == whole.meta.routes
    assert [-1, 0, -1, 1] == whole.tasks["route"][:4].tolist()
