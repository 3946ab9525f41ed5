"""Every engine says the same, bit for bit, and what it says obeys the laws of schedules."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulate.reference import reference_replay
from tests.strategies import chained, fixed_graphs, graphs, random_graph
from windtunnel.errors import GraphError, InputError
from windtunnel.graph import Discipline, EdgeKind, Graph, GraphBuilder
from windtunnel.simulate import replay, replay_many

QUEUES = (Discipline.FIFO, Discipline.PRIORITY)


@given(graphs())
def test_the_chosen_engine_equals_the_reference(graph):
    timeline = replay(graph)

    assert reference_replay(graph) == (timeline.start_ns.tolist(), timeline.finish_ns.tolist())


@given(fixed_graphs())
def test_both_engines_agree_where_edges_fix_the_order(graph):
    static, event = replay(graph, engine="static"), replay(graph, engine="event")

    assert static.start_ns.tolist() == event.start_ns.tolist()
    assert static.finish_ns.tolist() == event.finish_ns.tolist()


@pytest.mark.parametrize("seed", range(200))
def test_large_random_graphs_equal_the_reference(seed):
    graph = random_graph(seed)
    timeline = replay(graph)

    assert reference_replay(graph) == (timeline.start_ns.tolist(), timeline.finish_ns.tolist())


@given(graphs(), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_a_batch_equals_its_single_replays(graph, num_variants, seed):
    durations_KT = np.random.default_rng(seed).integers(0, 20, (num_variants, graph.num_tasks))
    singles = [replay(graph.with_columns(duration_ns=row)) for row in durations_KT]
    batch = replay_many(graph, durations_KT, finishes=True, num_threads=2)

    assert [single.makespan_ns for single in singles] == batch.makespan_ns.tolist()
    assert [single.finish_ns.tolist() for single in singles] == batch.finish_ns.tolist()
    assert batch.makespan_ns.tolist() == replay_many(graph, np.asfortranarray(durations_KT)).makespan_ns.tolist()


@given(
    graphs(disciplines=QUEUES, lags=False, earliest=False, flows=False),
    st.integers(1, 1000),
)
def test_scaling_every_duration_scales_the_makespan(graph, factor):
    scaled = graph.scale(graph.all_tasks, factor)

    assert factor * replay(graph).makespan_ns == replay(scaled).makespan_ns


@given(graphs())
def test_no_task_starts_before_what_it_waits_for(graph):
    timeline = replay(graph)
    edges = graph.edges
    lag = edges.get("lag_ns", np.zeros(graph.num_edges, np.int64))
    from_start = edges.get("from_start", np.zeros(graph.num_edges, bool))
    joins = graph.tasks.get("is_arrival_join", np.zeros(graph.num_tasks, bool))
    leaves = np.where(from_start, timeline.start_ns[edges["src"]], timeline.finish_ns[edges["src"]])
    is_plain = ~joins[edges["src"]]

    assert (timeline.start_ns[edges["dst"]] >= leaves + lag)[is_plain].all()


@given(graphs(disciplines=QUEUES))
def test_a_resource_never_runs_more_tasks_than_it_has_slots(graph):
    timeline = replay(graph)
    joins = graph.tasks.get("is_arrival_join", np.zeros(graph.num_tasks, bool))
    for resource in range(graph.num_resources):
        rows = (graph.tasks["resource"] == resource) & ~joins & (timeline.finish_ns > timeline.start_ns)
        for instant in timeline.start_ns[rows]:
            running = rows & (timeline.start_ns <= instant) & (instant < timeline.finish_ns)

            assert graph.resources["slots"][resource] >= running.sum()


@given(graphs(disciplines=QUEUES, flows=False))
def test_a_task_that_shares_nothing_takes_exactly_its_duration(graph):
    timeline = replay(graph)
    joins = graph.tasks.get("is_arrival_join", np.zeros(graph.num_tasks, bool))

    assert (np.where(joins, 0, graph.duration_ns) == timeline.finish_ns - timeline.start_ns).all()


@given(fixed_graphs(earliest=False), st.integers(0, 11))
def test_a_longer_task_never_ends_a_fixed_order_earlier(graph, row):
    row = row % graph.num_tasks
    longer = graph.duration_ns.copy()
    longer[row] += 5

    assert replay(graph).makespan_ns <= replay(graph.with_columns(duration_ns=longer)).makespan_ns


def test_a_fifo_resource_runs_what_was_ready_first():
    builder = GraphBuilder()
    queue = builder.resource("queue")
    builder.task("running", duration_ns=100, resource=queue)
    late = builder.task("ready at 60", duration_ns=10, resource=queue, earliest_ns=60)
    early = builder.task("ready at 50", duration_ns=10, resource=queue, earliest_ns=50)
    timeline = replay(builder.build())

    assert 100 == timeline.start_ns[early]
    assert 110 == timeline.start_ns[late]


def test_a_priority_resource_lets_the_smaller_number_go_first():
    builder = GraphBuilder()
    queue = builder.resource("link", discipline=Discipline.PRIORITY)
    builder.task("running", duration_ns=100, resource=queue, priority=0)
    later = builder.task("layer 9", duration_ns=10, resource=queue, priority=9, earliest_ns=10)
    first = builder.task("layer 1", duration_ns=10, resource=queue, priority=1, earliest_ns=20)
    timeline = replay(builder.build())

    assert 100 == timeline.start_ns[first]
    assert 110 == timeline.start_ns[later]


def test_two_tasks_on_one_shared_core_take_twice_as_long():
    builder = GraphBuilder()
    core = builder.resource("core", discipline=Discipline.SHARED)
    builder.task("a", duration_ns=100, resource=core)
    builder.task("b", duration_ns=150, resource=core)
    timeline = replay(builder.build())

    # both get half a core until a is done at 200; b then has 50 left
    assert [200, 250] == timeline.finish_ns.tolist()


def test_a_slow_down_curve_says_how_users_hurt_each_other():
    builder = GraphBuilder()
    memory = builder.resource("memory", discipline=Discipline.SHARED, slots=8, slowdown=[1.0, 1.25])
    for name in "ab":
        builder.task(name, duration_ns=100, resource=memory)
    graph = builder.build()

    assert [125, 125] == replay(graph).finish_ns.tolist()


def test_beyond_its_last_point_a_slow_down_curve_grows_with_the_users():
    builder = GraphBuilder()
    memory = builder.resource("memory", discipline=Discipline.SHARED, slowdown=[1.0, 1.5])
    for name in "abcd":
        builder.task(name, duration_ns=100, resource=memory)

    assert [300] * 4 == replay(builder.build()).finish_ns.tolist()


def test_an_arrival_join_releases_its_edges_in_the_order_of_arrivals():
    """A parameter server adds gradients in the order in which they come, whoever sends them."""
    builder = GraphBuilder()
    slow, fast = builder.task("push 0", duration_ns=90), builder.task("push 1", duration_ns=30)
    join = builder.task("server", duration_ns=0, is_arrival_join=True)
    copy_first, add_second = builder.task("copy", duration_ns=5), builder.task("sum", duration_ns=5)
    for src, dst in ((slow, join), (fast, join), (join, copy_first), (join, add_second)):
        builder.edge(src, dst)
    timeline = replay(builder.build())

    assert 30 == timeline.start_ns[copy_first]
    assert 90 == timeline.start_ns[add_second]


def test_a_kernel_may_start_while_its_launching_call_still_runs():
    builder = GraphBuilder()
    call, kernel = builder.task("launch", duration_ns=50), builder.task("kernel", duration_ns=10)
    builder.edge(call, kernel, kind=EdgeKind.LAUNCH, lag_ns=7, from_start=True)

    assert [0, 7] == replay(builder.build()).start_ns.tolist()


def test_an_empty_graph_takes_no_time():
    graph = Graph.from_columns(
        {"name": [], "kind": [], "resource": [], "duration_ns": []},
        {"src": [], "dst": [], "kind": []},
        {"name": [], "kind": [], "discipline": [], "slots": []},
    )

    assert 0 == replay(graph).makespan_ns
    assert 0 == len(replay(graph).critical_path())
    assert [0] == replay_many(graph, np.zeros((1, 0), np.int64)).makespan_ns.tolist()


def test_durations_beyond_64_bits_are_refused():
    builder = GraphBuilder()
    builder.task("absolute time stamp", duration_ns=2**62)
    with pytest.raises(GraphError, match="more than 64 bits hold safely"):
        replay(builder.build())


@given(graphs(disciplines=QUEUES, lags=False, earliest=False, flows=False))
def test_times_that_leave_no_room_for_a_task_beside_them_are_exact(graph):
    """The event engine keeps time and task in one word where both fit, which they do not here."""
    scaled = graph.with_columns(duration_ns=graph.duration_ns * 2**53)
    small, large = replay(graph, engine="event"), replay(scaled, engine="event")

    assert (small.start_ns * 2**53).tolist() == large.start_ns.tolist()
    assert (small.finish_ns * 2**53).tolist() == large.finish_ns.tolist()


def test_a_slow_down_below_a_quarter_is_refused():
    builder = GraphBuilder()
    core = builder.resource("core", discipline=Discipline.SHARED, slowdown=[0.1])
    builder.task("a", duration_ns=1, resource=core)
    with pytest.raises(GraphError, match=r"slow-down of 0\.1 is out of range"):
        replay(builder.build())


def test_the_static_engine_refuses_an_order_that_is_not_fixed():
    builder = GraphBuilder()
    queue = builder.resource("queue")
    for name in "ab":
        builder.task(name, duration_ns=1, resource=queue)
    graph = builder.build()
    with pytest.raises(InputError, match="not fixed by edges"):
        replay(graph, engine="static")

    assert "static" == replay(chained(graph)).engine


@pytest.mark.parametrize("wrong", [np.zeros((1, 3), np.int64), np.zeros(2, np.int64), np.zeros((1, 2))])
def test_durations_that_do_not_fit_the_graph_are_refused(wrong):
    builder = GraphBuilder()
    for name in "ab":
        builder.task(name, duration_ns=1)
    with pytest.raises(InputError, match=r"not int64 \[K, 2\]"):
        replay_many(builder.build(), wrong)


@pytest.mark.parametrize("is_fixed", [True, False])
def test_a_negative_duration_in_a_batch_is_refused(is_fixed):
    builder = GraphBuilder()
    queue = builder.resource("queue")
    for name in "ab":
        builder.task(name, duration_ns=1, resource=queue)
    graph = chained(builder.build()) if is_fixed else builder.build()
    with pytest.raises(InputError, match="negative"):
        replay_many(graph, np.array([[1, -1]]))
