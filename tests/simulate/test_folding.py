"""Equal ranks are replayed once, and nobody can tell."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulate.reference import reference_replay
from tests.strategies import graphs, random_graph
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import Discipline, EdgeKind, Graph, GraphBuilder, Kind, ResourceKind
from windtunnel.simulate import fold, replay, replay_many


@st.composite
def many_ranks(draw) -> Graph:
    """Copies of a random graph that share some resources, meet here and there, and of which some are slower."""
    one = draw(graphs(8, joins=False))
    shared = [row for row in range(one.num_resources) if draw(st.booleans())]
    many = one.replicate(draw(st.integers(1, 3)), shared=shared).replicate(draw(st.integers(1, 3)))
    count = many.num_tasks // one.num_tasks
    meeting = draw(st.lists(st.integers(0, one.num_tasks - 1), unique=True, max_size=2))
    rows = [task + one.num_tasks * rank for task in meeting for rank in range(count)]
    if meeting:
        many = many.meet(rows, np.repeat(np.arange(len(meeting)), count))
    slow = draw(st.lists(st.integers(0, many.num_tasks - 1), max_size=2))
    return many.set_duration(slow, many.duration_ns[sorted(set(slow))] + 5) if slow else many


def same(graph: Graph) -> bool:
    """Whether the folded replay equals the reference, of start and finish."""
    folded = fold(graph)
    folded.small.validate()
    timeline = folded.unfold(replay(folded.small))
    return reference_replay(graph) == (timeline.start_ns.tolist(), timeline.finish_ns.tolist())


@settings(max_examples=200)
@given(many_ranks())
def test_a_folded_replay_equals_the_reference(graph):
    assert same(graph)


@pytest.mark.parametrize("seed", range(60))
def test_copies_of_large_random_graphs_fold_to_the_reference(seed):
    graph = random_graph(seed)
    graph = graph.drop_columns(["is_arrival_join"])
    rng = np.random.default_rng(seed)
    many = graph.replicate(int(rng.integers(2, 5)), shared=rng.random(graph.num_resources) < 0.3)

    assert same(many)


@given(many_ranks(), st.integers(0, 2**32 - 1))
def test_a_folded_batch_equals_its_single_replays(graph, seed):
    durations_KT = np.random.default_rng(seed).integers(0, 3, (3, graph.num_tasks))
    folded = fold(graph, durations_KT)
    small = replay_many(folded.small, durations_KT[:, folded.representative], finishes=True)

    assert [replay(graph.with_columns(duration_ns=row)).finish_ns.tolist() for row in durations_KT] == [
        row[folded.member].tolist() for row in small.finish_ns
    ]


@given(many_ranks())
def test_what_follows_from_a_folded_timeline_is_what_follows_from_the_whole(graph):
    folded = fold(graph)
    unfolded, whole = folded.unfold(replay(folded.small)), replay(graph)

    assert whole.engine == unfolded.engine
    assert whole.critical_path().task.tolist() == unfolded.critical_path().task.tolist()
    assert whole.slack_ns().tolist() == unfolded.slack_ns().tolist()


def host(num_tasks: int = 6) -> Graph:
    """A thread, and a NIC that sends what the thread makes in the order in which it comes."""
    builder = GraphBuilder()
    thread, nic = builder.resource("thread", ResourceKind.HOST_THREAD), builder.resource("nic", ResourceKind.LINK)
    last = None
    for number in range(num_tasks):
        make = builder.task(f"make {number}", duration_ns=10 + number, resource=thread)
        send = builder.task(f"send {number}", duration_ns=25, resource=nic, kind=Kind.COMM)
        builder.edge(make, send)
        if last is not None:
            builder.edge(last, make, kind=EdgeKind.ORDER)
        last = make
    return builder.build()


def ordered() -> Graph:
    """Two tasks, one after the other."""
    builder = GraphBuilder()
    builder.edge(builder.task("forward", duration_ns=3), builder.task("send", duration_ns=5, kind=Kind.COMM))
    return builder.build()


GRAPHS = {"queued": host(), "ordered": ordered()}


def test_equal_ranks_are_one():
    assert 12 == fold(host().replicate(64)).small.num_tasks


def test_hosts_whose_ranks_share_a_nic_fold_to_one_host():
    hosts = host().replicate(4, shared=[1]).replicate(16)

    # the threads of a host are alike, what they send waits in one queue
    assert 6 + 4 * 6 == fold(hosts).small.num_tasks
    assert same(hosts)


def test_a_straggler_unfolds_what_it_delays_and_the_queue_that_this_goes_through():
    hosts = host().replicate(64)
    late = hosts.set_duration([host().num_tasks * 5 + 4], 90)

    # makes 2 to 5, and all that its NIC sends
    assert 12 + 4 + 6 == fold(late).small.num_tasks
    assert same(late)


def test_priorities_tell_ranks_apart():
    builder = GraphBuilder()
    for rank in range(2):
        link = builder.resource(f"link {rank}", ResourceKind.LINK, discipline=Discipline.PRIORITY)
        for number in range(3):
            builder.task(f"{number}", duration_ns=7, resource=link, priority=number if rank else -number)
    graph = builder.build()

    assert 6 == fold(graph).small.num_tasks
    assert same(graph)


def in_large(graph: Graph) -> Graph:
    """As many copies as are folded without being asked."""
    return graph.replicate(-(-50_000 // graph.num_tasks))


def test_many_ranks_fold_by_themselves_where_that_saves_time():
    queued, ordered = in_large(host()), in_large(GRAPHS["ordered"])

    assert (12, ordered.num_tasks) == (replay(queued).num_played, replay(ordered).num_played)
    assert 2 == replay(ordered, again=True).num_played
    assert replay(queued, engine="event").start_ns.tolist() == replay(queued).start_ns.tolist()
    assert host().num_tasks * 2 == replay(host().replicate(2), again=True).num_played


@pytest.mark.parametrize("name", ["queued", "ordered"])
def test_a_graph_is_replayed_like_before_while_its_durations_stay_alike(name):
    graph = in_large(GRAPHS[name])
    before = replay(graph, again=True)
    kinds = graph.tasks["kind"]
    alike = graph.scale(kinds == Kind.COMPUTE, 2.0)
    late = graph.set_duration([3], 90)
    other = graph.set_lag(np.ones(graph.num_edges, bool), 1)
    for changed in (alike, late, other):
        after, whole = replay(changed, like=before), replay(changed, engine="event")

        assert (after.fold is before.fold) == (changed is alike)
        assert after.graph is changed
        assert whole.finish_ns.tolist() == after.finish_ns.tolist()
    batch = np.stack([alike.duration_ns, graph.duration_ns])
    ragged = np.stack([alike.duration_ns, late.duration_ns])
    for durations_KT in (batch, ragged):
        found = replay_many(graph, durations_KT, finishes=True, like=before)

        assert replay_many(graph, durations_KT).makespan_ns.tolist() == found.makespan_ns.tolist()
        assert found.finish_ns.shape == durations_KT.shape
        assert replay(graph.with_columns(duration_ns=durations_KT[1])).finish_ns.tolist() == found.finish_ns[1].tolist()


def test_a_folded_batch_refuses_negative_durations():
    graph = in_large(host())
    with pytest.raises(InputError, match="negative"):
        replay_many(graph, -graph.duration_ns[None])
    with pytest.raises(InputError, match="negative"):
        replay_many(graph, -graph.duration_ns[None], like=replay(graph))


def switched(num_hosts: int, routes_of) -> Graph:
    """Each host computes, then sends twice over links that all hosts know: port i out, port i in."""
    builder = GraphBuilder()
    for number in range(2 * num_hosts):
        builder.resource(f"port {number}", ResourceKind.LINK, rate=1e9)
    for host in range(num_hosts):
        last = builder.task("compute", duration_ns=100, rank=host)
        for size in (300, 500):
            send = builder.task("send", duration_ns=10, kind=Kind.COMM, rank=host, route=host, message_bytes=size)
            builder.edge(last, send)
    return builder.build({"routes": [routes_of(host) for host in range(num_hosts)]})


def test_a_ring_of_messages_over_ports_is_one_host():
    ring = switched(16, lambda host: (host, 16 + (host + 1) % 16))

    # two messages share two ports, in every host alike
    assert 3 == fold(ring).small.num_tasks
    assert same(ring)


def test_hosts_that_send_into_one_port_are_all_played():
    incast = switched(5, lambda host: (host, 5))

    assert incast.num_tasks - 4 == fold(incast).small.num_tasks
    assert same(incast)


def test_messages_that_each_share_a_link_with_the_next_are_all_played():
    chain = switched(4, lambda host: (host, (host + 1) % 4))

    assert chain.num_tasks - 3 == fold(chain).small.num_tasks
    assert same(chain)


def test_what_is_decided_by_arrivals_is_not_folded():
    builder = GraphBuilder()
    builder.task("join", duration_ns=0, is_arrival_join=True)
    with pytest.raises(NotApplicableError, match="arrival joins are not folded"):
        fold(builder.build())
