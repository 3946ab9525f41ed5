"""Gradients gathered to other messages: sizes, order, and what the step then takes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.averaging_job import BACKWARD_NS, FORWARD_NS, ISSUE_NS, LAYERS, SIZES, UPDATE_NS, averaging_job
from windtunnel.cost.rerun import AllReduceNeed, AllReduceTimes, MessageCost
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import Kind
from windtunnel.simulate import replay
from windtunnel.whatifs import parse_request
from windtunnel.whatifs.ask import apply
from windtunnel.whatifs.buckets import averaging_of, caps_of, gradient_buckets
from windtunnel.whatifs.measured import Unpriced, price_change

LATENCY_NS, NS_PER_BYTE = 700, 1.0
LINK = {"latency_ns": LATENCY_NS, "bandwidth_bytes_per_s": 1e9 / NS_PER_BYTE}


def sent(graph):
    """Bytes of the messages of each rank, in order of issue."""
    rows = np.flatnonzero(graph.select(kind=Kind.COMM))
    return {
        int(rank): [
            int(graph.tasks["message_bytes"][row])
            for row in sorted(rows[graph.tasks["rank"][rows] == rank], key=lambda row: graph.tasks["sequence"][row])
        ]
        for rank in np.unique(graph.tasks["rank"][rows])
    }


def by_hand(groups):
    """When the step ends: messages one after the other, each once its last gradient is there and issued."""
    at, done = FORWARD_NS, 0.0
    closed = {group[-1]: group for group in groups}
    for place, _ in enumerate(LAYERS):
        at += BACKWARD_NS
        if place in closed:
            size = sum(SIZES[LAYERS[one]] for one in closed[place])
            done = max(done, at) + LATENCY_NS + NS_PER_BYTE * size
            at += ISSUE_NS
    return max(at, done) + UPDATE_NS


@pytest.mark.parametrize(
    ("caps", "groups"),
    [
        ("1", [(0,), (1,), (2,)]),
        ("7000", [(0, 1, 2)]),
        ("3000", [(0, 1), (2,)]),
        ("1000/6000", [(0,), (1, 2)]),
        ("25MiB", [(0, 1, 2)]),
    ],
)
def test_the_step_is_as_long_as_by_hand(caps, groups):
    for before, captured in (
        ([(0, 1, 2)], averaging_job()),
        ([(0,), (1, 2)], averaging_job(((0,), (1, 2)), (1700, 6700))),
    ):
        if before == groups:
            with pytest.raises(NotApplicableError, match=f"these {len(groups)} messages already"):
                gradient_buckets(captured, caps, **LINK)
            continue
        changed = gradient_buckets(captured, caps, **LINK).validate()
        expected = [sum(SIZES[LAYERS[one]] for one in group) for group in groups]
        assert sent(changed) == {0: expected, 1: expected}
        assert replay(changed).makespan_ns == by_hand(groups)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 8000), min_size=1, max_size=4), st.integers(2, 4))
def test_no_gradient_is_lost_whatever_the_caps(caps, num_ranks):
    graph = averaging_job(num_ranks=num_ranks)
    try:
        changed = gradient_buckets(graph, "/".join(map(str, caps)))
    except NotApplicableError:  # as they are
        changed = graph
    assert {sum(sizes) for sizes in sent(changed).values()} == {sum(SIZES.values())}
    assert len(sent(changed)) == num_ranks


def test_all_wait_for_the_slowest_rank():
    even, uneven = (gradient_buckets(averaging_job(slow_rank=slow), "1", **LINK) for slow in (None, 1))
    assert replay(uneven).makespan_ns > replay(even).makespan_ns


def test_messages_of_two_sizes_tell_latency_and_rate():
    averaging = averaging_of(averaging_job(((0,), (1, 2)), (700 + 1000, 700 + 6000)))
    assert averaging.message.latency_ns == pytest.approx(700)
    assert averaging.message.ns_per_byte == pytest.approx(1.0)
    assert averaging.layers == LAYERS


def test_messages_of_one_size_are_all_by_the_byte():
    averaging = averaging_of(averaging_job())
    assert averaging.message == MessageCost(0.0, 9000 / 7000)


def on_this_host(graph):
    """As a capture of processes that windtunnel started, which knows their operators."""
    return graph.note({"origin": {"ranks": {"num_ranks": 2}}, "program": {"calls": "of both"}})


TIMES = AllReduceTimes((1000.0, 2000.0, 4000.0, 7000.0), (900.0, 1000.0, 1200.0, 1500.0), 0.1)  # 800 ns and 0.1 a byte


def test_what_a_message_takes_by_itself_is_measured_and_not_read_off_two_captured_ones():
    """In a step both captured messages overlap its computation and each other: a line through them tells neither."""
    graph = on_this_host(averaging_job(((0,), (1, 2)), (100, 4600)))
    change = gradient_buckets(graph, "1")
    assert isinstance(change, Unpriced)
    (need,) = change.needs

    changed = price_change(change, "measured", lambda needs, _: dict.fromkeys(needs, TIMES), graph)
    messages = changed.select(kind=Kind.COMM, rank=0)
    # the captured ones, of 1000 and 6000 bytes, took 4700 in place of 900 and 1400
    assert [round(4700 / 2300 * item) for item in (900, 1000, 1200)] == changed.duration_ns[messages].tolist()
    assert {0.1} == set(changed.tasks["price_spread_ratio"][messages].tolist())
    assert AllReduceNeed(2) == need


def test_messages_that_are_under_way_during_the_backward_pass_cost_it_time():
    """Processes of one host carry their messages on the cores that they compute on."""
    graph = on_this_host(averaging_job())  # one message, behind the backward pass
    change = gradient_buckets(graph, "1")
    assert isinstance(change, Unpriced)
    free, carried = (
        price_change(change, "measured", lambda needs, _, times=times: dict.fromkeys(needs, times), graph)
        for times in (TIMES, replace(TIMES, lost_ratio=0.5))
    )

    # the first message begins when it is issued, two backward tasks before the last gradient, and ends behind it
    rows = carried.select(name="carry messages")
    assert 0 == free.select(name="carry messages").sum()
    assert [round(0.5 * 2 * (ISSUE_NS + BACKWARD_NS))] * 2 == carried.duration_ns[rows].tolist()


def test_without_this_hosts_processes_captured_messages_are_all_that_is_known():
    assert not isinstance(gradient_buckets(averaging_job(), "1"), Unpriced)
    assert not isinstance(gradient_buckets(on_this_host(averaging_job()), "1", **LINK), Unpriced)


def test_one_rank_averages_nothing():
    with pytest.raises(NotApplicableError, match="no ranks average"):
        gradient_buckets(averaging_job(num_ranks=1))


@pytest.mark.parametrize("text", ["0", "", "two", "1MiB/-3"])
def test_caps_that_are_no_sizes_are_refused(text):
    with pytest.raises(InputError):
        caps_of(text)


def test_compression_works_before_a_rank_arrives():
    graph = averaging_job()
    changed = apply(graph, parse_request("fp16-gradients:bandwidth_bytes_per_s=7e9"), prices="paper")
    ahead = np.flatnonzero(changed.select(op="compress"))
    assert len(ahead) == 2  # once on each rank's own thread
    assert sorted(changed.tasks["rank"][ahead].tolist()) == [0, 1]
    hosts = {int(row) for row in changed.tasks["resource"][np.flatnonzero(changed.select(name="forward"))]}
    assert set(changed.tasks["resource"][ahead].tolist()) <= hosts
    assert replay(changed).makespan_ns < replay(graph).makespan_ns
