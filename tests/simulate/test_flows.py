"""Messages that share links get what is fair, in a graph and on a clock, and a clock calls in order."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulate.reference import fair_rates, reference_replay
from windtunnel.errors import GraphError, InputError
from windtunnel.graph import Discipline, Graph, GraphBuilder, Kind, ResourceKind, apply_edits, load, save
from windtunnel.graph.ranks import join, join_routes
from windtunnel.simulate import EventClock, replay, replay_many

GBIT = 1e9 / 8


def network(rates, routes, sizes, *, latency_ns=0, starts=None) -> Graph:
    """One message per size, over the route of the same place, all at once or at ``starts``."""
    builder = GraphBuilder()
    for number, rate in enumerate(rates):
        builder.resource(f"link {number}", ResourceKind.LINK, rate=rate)
    starts = starts or [0] * len(sizes)
    for number, (size, start) in enumerate(zip(sizes, starts, strict=True)):
        what = {"kind": Kind.COMM, "route": number, "message_bytes": size, "earliest_ns": start}
        builder.task(f"message {number}", duration_ns=latency_ns, **what)
    return builder.build({"routes": routes})


@st.composite
def messages(draw):
    num_links = draw(st.integers(1, 5))
    num_messages = draw(st.integers(1, 8))
    rates = draw(st.lists(st.floats(1e6, 1e11), min_size=num_links, max_size=num_links))
    route = st.lists(st.integers(0, num_links - 1), min_size=1, unique=True)
    routes = draw(st.lists(route, min_size=num_messages, max_size=num_messages))
    sizes = draw(st.lists(st.integers(1, 10**7), min_size=num_messages, max_size=num_messages))
    starts = draw(st.lists(st.integers(0, 10**6), min_size=num_messages, max_size=num_messages))
    return rates, routes, sizes, starts


def test_two_messages_over_one_link_share_it_and_the_rest_goes_faster():
    graph = network([1e9], [[0], [0]], [100, 300])

    # both at half the rate until 200, then 200 bytes are left for the second
    assert [200, 400] == replay(graph).finish_ns.tolist()


def test_what_a_message_cannot_use_goes_to_the_others():
    """One that is held up on a slow link leaves more of the fast one."""
    graph = network([1e9, 1e8], [[0], [0, 1]], [900, 100])

    assert [1000, 1000] == replay(graph).finish_ns.tolist()


def test_latency_is_paid_before_the_bytes_flow():
    assert [50 + 100] == replay(network([1e9], [[0]], [100], latency_ns=50)).finish_ns.tolist()


def test_a_message_that_waits_for_a_slot_does_not_share_yet():
    builder = GraphBuilder()
    wire = builder.resource("wire", ResourceKind.LINK, rate=1e9)
    queue = builder.resource("sender", ResourceKind.LINK, rate=1e9)
    for name in "ab":
        builder.task(name, duration_ns=0, resource=queue, route=0, message_bytes=100)

    assert [100, 200] == replay(builder.build({"routes": [[wire]]})).finish_ns.tolist()


def test_on_a_shared_resource_a_message_is_a_user_until_its_bytes_flow():
    builder = GraphBuilder()
    core = builder.resource("core", discipline=Discipline.SHARED)
    wire = builder.resource("wire", ResourceKind.LINK, rate=1e9)
    builder.task("prepare and send", duration_ns=10, resource=core, route=0, message_bytes=100)
    builder.task("compute", duration_ns=50, resource=core)

    # both have half a core until 20, then the message flows and the other has all of it
    assert [120, 60] == replay(builder.build({"routes": [[wire]]})).finish_ns.tolist()


def test_a_message_without_bytes_takes_its_latency():
    graph = network([1e9], [[0]], [0], latency_ns=7)

    assert [7] == replay(graph).finish_ns.tolist()
    assert "static" == replay(graph).engine


@given(messages())
def test_fair_rates_fill_a_link_of_every_message_and_overload_none(drawn):
    rates, routes, _, _ = drawn
    fair = fair_rates(dict(enumerate(routes)), dict(enumerate(rates)))
    load = [sum(fair[flow] for flow, route in enumerate(routes) if link in route) for link in range(len(rates))]

    assert all(used <= rate * (1 + 1e-9) for used, rate in zip(load, rates, strict=True))
    for flow, route in enumerate(routes):
        # max-min: on some full link of its own nobody has more
        peers = {link: [fair[other] for other, over in enumerate(routes) if link in over] for link in route}
        assert any(
            load[link] >= rates[link] * (1 - 1e-9) and max(peers[link]) <= fair[flow] * (1 + 1e-9) for link in route
        )


@given(messages())
def test_messages_of_a_graph_equal_the_reference_and_those_on_a_clock(drawn):
    rates, routes, sizes, starts = drawn
    graph = network(rates, routes, sizes, starts=starts)
    clock, finish = EventClock(links_bytes_per_s=rates), [0] * len(sizes)

    def send(number):
        def done():
            finish[number] = clock.now_ns

        clock.flows.start(routes[number], sizes[number], done)

    for number, start in enumerate(starts):
        clock.at(start, lambda number=number: send(number))
    clock.run()

    assert reference_replay(graph)[1] == replay(graph).finish_ns.tolist() == finish


@given(messages(), messages())
def test_messages_that_share_nothing_do_not_change_each_other(one, other):
    """Not even by rounding: rates are filled only where a message can reach."""
    shifted = [[link + len(one[0]) for link in route] for route in other[1]]
    both = network(one[0] + other[0], one[1] + shifted, one[2] + other[2], starts=one[3] + other[3])
    alone = [network(*drawn[:3], starts=drawn[3]) for drawn in (one, other)]

    assert [end for graph in alone for end in replay(graph).finish_ns.tolist()] == replay(both).finish_ns.tolist()


def test_a_batch_of_durations_shares_links_in_each_variant():
    graph = network([1e9], [[0], [0]], [100, 100])
    durations_KT = np.array([[0, 0], [0, 1000]])

    assert [200, 1100] == replay_many(graph, durations_KT).makespan_ns.tolist()


def test_a_link_is_busy_while_anything_flows_over_it():
    uses = replay(network([1e9, 1e9], [[0], [0, 1]], [100, 100], latency_ns=50)).utilization().to_pylist()

    assert [200, 200] == [use["busy_ns"] for use in uses]
    assert [2, 1] == [use["num_tasks"] for use in uses]


def test_edits_store_and_copies_keep_routes(tmp_path):
    graph = network([1e9, 1e9], [[0], [0, 1]], [100, 100])
    twice = graph.replicate(2, shared=[1])
    back = load(save(twice, tmp_path / "ranks.wt"))

    assert ((0,), (0, 1), (2,), (2, 1)) == back.meta.routes == twice.validate().meta.routes
    assert [0, 1, 2, 3] == back.tasks["route"].tolist()
    assert apply_edits(graph, twice.edits).meta.routes == twice.meta.routes
    assert replay(twice).finish_ns.tolist() == replay(back).finish_ns.tolist()
    assert [-1] == graph.insert({"name": ["more"], "duration_ns": [1]}).tasks["route"][2:].tolist()
    assert [1] == graph.remove([0]).tasks["route"].tolist()


def test_joined_graphs_keep_their_routes():
    parts = [network([1e9], [[0]], [100]), network([1e9, 1e9], [[1, 0]], [200])]
    tables = join(parts)
    whole = Graph(*tables, parts[0].meta.with_entries({"routes": join_routes(parts)})).validate()

    assert ((0,), (2, 1)) == whole.meta.routes
    assert [100, 200] == replay(whole).finish_ns.tolist()


def test_messages_over_different_routes_are_not_fused():
    graph = network([1e9, 1e9], [[0], [1]], [100, 100])

    assert 2 == graph.fuse(graph.all_tasks).num_tasks


@pytest.mark.parametrize(
    ("rates", "routes", "message"),
    [
        ([1e9], [[]], "leads nowhere"),
        ([1e9], [[1]], "uses resource 1, which is no LINK"),
        ([1e9], [[0, 0]], "uses a link twice"),
        ([0.0], [[0]], "uses link 0, which has no rate above 0"),
        ([1e9], [], "dangling route: route 0 does not exist"),
    ],
)
def test_a_route_that_cannot_be_is_refused(rates, routes, message):
    with pytest.raises(GraphError, match=message):
        network(rates, routes, [100])


def test_flows_beyond_64_bits_are_refused():
    with pytest.raises(GraphError, match="more than 64 bits hold safely"):
        replay(network([1e-9], [[0]], [10**6]))


# --- the clock -------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 5), max_size=20), st.sets(st.integers(0, 19)))
def test_events_are_handled_in_order_of_time_then_of_asking(times, canceled):
    clock, seen = EventClock(), []
    events = [clock.at(time, lambda item=(time, n): seen.append(item)) for n, time in enumerate(times)]
    for n in canceled & set(range(len(times))):
        assert clock.cancel(events[n])
    end_ns = clock.run()

    left = [(time, n) for n, time in enumerate(times) if n not in canceled]
    assert sorted(left) == seen
    assert max((time for time, _ in left), default=0) == end_ns


def test_a_run_stops_at_its_limit_and_goes_on_from_there():
    clock, seen = EventClock(), []
    for time in (5, 10, 15):
        clock.at(time, lambda time=time: seen.append(time))

    assert (10, [5, 10], 1) == (clock.run(until_ns=10), seen, len(clock))
    assert (15, [5, 10, 15], 0) == (clock.run(), seen, len(clock))


def test_a_handler_may_ask_for_more_at_the_same_time():
    clock, seen = EventClock(), []
    clock.at(3, lambda: clock.after(0, lambda: seen.append(clock.now_ns)))
    clock.run()

    assert [3] == seen


def test_a_canceled_message_leaves_its_share_to_the_others():
    clock, ends = EventClock(links_bytes_per_s=[1e9]), []
    clock.flows.start([0], 100, lambda: ends.append(clock.now_ns))
    other = clock.flows.start([0], 100, lambda: ends.append(-1))
    clock.at(100, lambda: clock.flows.cancel(other))
    clock.run()

    assert [150] == ends  # half the rate until 100, all of it then
    assert not clock.flows.cancel(other)


@settings(max_examples=20)
@given(st.integers(17, 60), st.integers(0, 2**32 - 1))
def test_many_messages_that_come_and_go_equal_the_reference(num_messages, seed):
    """More at once than there was room for, over ever longer routes."""
    rng = np.random.default_rng(seed)
    rates = rng.uniform(1e8, 1e9, 12).tolist()
    routes = [rng.permutation(12)[: 1 + n * 11 // num_messages].tolist() for n in range(num_messages)]
    sizes, starts = rng.integers(1, 10**4, num_messages).tolist(), sorted(rng.integers(0, 10**4, num_messages).tolist())
    clock, ends = EventClock(links_bytes_per_s=rates), {}
    for n in range(num_messages):
        begin = lambda n=n: clock.flows.start(routes[n], sizes[n], lambda: ends.update({n: clock.now_ns}))  # noqa: E731
        clock.at(starts[n], begin)
    clock.run()

    graph = network(rates, routes, sizes, starts=starts)
    assert reference_replay(graph)[1] == [ends[n] for n in range(num_messages)]


@pytest.mark.parametrize("time_ns", [-1, 1.5, float("nan"), 2**62])
def test_an_event_in_the_past_or_at_no_time_is_refused(time_ns):
    with pytest.raises(InputError, match="an event cannot be at"):
        EventClock().at(time_ns, print)


@pytest.mark.parametrize(("route", "size"), [([], 1), ([1], 1), ([0, 0], 1), ([0], 0), ([0], float("inf"))])
def test_a_message_that_cannot_be_sent_is_refused(route, size):
    with pytest.raises(InputError, match=r"no route|never ends"):
        EventClock(links_bytes_per_s=[1e9]).flows.start(route, size, print)


def test_a_link_without_a_rate_is_refused():
    with pytest.raises(InputError, match="a link needs a rate above 0"):
        EventClock(links_bytes_per_s=[0.0])


def test_a_program_that_never_ends_is_stopped_and_named():
    clock = EventClock(max_events=1000)

    def tick_forever():
        clock.after(0, tick_forever)

    clock.after(0, tick_forever)
    with pytest.raises(InputError, match="more than 1,000 events were handled by 0 ns") as caught:
        clock.run()

    assert "tick_forever" in str(caught.value.where)


def test_equal_programs_run_equally():
    def run():
        clock, seen = EventClock(links_bytes_per_s=[GBIT, 2 * GBIT]), []
        for number, route in enumerate(itertools.islice(itertools.cycle([[0], [1], [0, 1]]), 30)):
            clock.flows.start(route, 1000 + number, lambda number=number: seen.append((number, clock.now_ns)))
        clock.run()
        return seen

    assert run() == run()
