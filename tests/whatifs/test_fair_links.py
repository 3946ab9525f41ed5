"""Messages that share links instead of waiting for each other, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from windtunnel.comm.collective_algorithm import collective_algorithm
from windtunnel.errors import NotApplicableError
from windtunnel.graph import Discipline, EdgeKind, GraphBuilder, Kind, ResourceKind
from windtunnel.simulate import replay
from windtunnel.whatifs.fair_links import fair_links


def test_messages_that_waited_for_each_other_end_together():
    builder = GraphBuilder()
    wire = builder.resource("wire", ResourceKind.LINK)
    for name in "ab":
        builder.task(name, kind=Kind.COMM, duration_ns=100, resource=wire, message_bytes=1000)
    graph = builder.build()

    assert [100, 200] == replay(graph).finish_ns.tolist()
    assert [200, 200] == replay(fair_links(graph).validate()).finish_ns.tolist()


def test_what_a_message_takes_beyond_its_bytes_is_latency():
    """A short message is slower per byte, and pays its latency beside the long one's bytes."""
    builder = GraphBuilder()
    wire = builder.resource("wire", ResourceKind.LINK)
    builder.task("long", kind=Kind.COMM, duration_ns=1000, resource=wire, message_bytes=1000)
    builder.task("short", kind=Kind.COMM, duration_ns=150, resource=wire, message_bytes=100)
    fair = fair_links(builder.build())

    assert [0, 50] == fair.duration_ns.tolist()
    # 50 bytes of the long one alone, 100 of each at half the rate until 250, then what is left of the long one
    assert [1100, 250] == replay(fair).finish_ns.tolist()


def test_a_send_and_its_receive_are_one_flow_over_both_ports():
    builder = GraphBuilder()
    out, into = (builder.resource(name, ResourceKind.LINK) for name in ("out", "in"))
    send = builder.task("send", kind=Kind.COMM, duration_ns=100, resource=out, message_bytes=100)
    receive = builder.task("recv", kind=Kind.COMM, duration_ns=100, resource=into, message_bytes=100)
    builder.edge(send, receive, kind=EdgeKind.MESSAGE, lag_ns=7, from_start=True)
    graph = builder.build()
    fair = fair_links(graph).validate()

    assert ((out, into),) == fair.meta.routes
    assert [0, -1] == fair.tasks["route"].tolist()
    assert 107 == replay(graph).makespan_ns == replay(fair).makespan_ns


@pytest.mark.parametrize("algorithm", ["ring", "halving-doubling"])
def test_collectives_that_never_wait_for_a_port_take_as_long_as_before(algorithm):
    builder = GraphBuilder()
    wire = builder.resource("comm", ResourceKind.LINK)
    builder.task("all-reduce", op="all_reduce", kind=Kind.COMM, duration_ns=1, resource=wire, message_bytes=1 << 20)
    ranks = collective_algorithm(builder.build().replicate(8), algorithm, links="infiniband-ndr")
    fair = fair_links(ranks).validate()
    num_steps = int((ranks.tasks.strings("op").to_numpy() == "send").sum()) // 8

    assert abs(replay(fair).makespan_ns - replay(ranks).makespan_ns) <= num_steps


def test_a_link_that_goes_by_priority_stays_as_it_is():
    builder = GraphBuilder()
    wire = builder.resource("wire", ResourceKind.LINK, discipline=Discipline.PRIORITY)
    for priority in (0, 1):
        what = {"kind": Kind.COMM, "resource": wire, "message_bytes": 1000, "priority": priority}
        builder.task(f"{priority}", duration_ns=100, **what)
    with pytest.raises(NotApplicableError, match="no message of known size waits"):
        fair_links(builder.build())


def test_what_flows_already_flows_on():
    builder = GraphBuilder()
    wire = builder.resource("wire", ResourceKind.LINK, rate=1e9)
    other = builder.resource("other", ResourceKind.LINK, rate=1.0)
    builder.task("flows", kind=Kind.COMM, duration_ns=0, route=0, message_bytes=100)
    builder.task("waits", kind=Kind.COMM, duration_ns=10, resource=other, message_bytes=100)
    fair = fair_links(builder.build({"routes": [[wire]]})).validate()

    assert ((0,), (1,)) == fair.meta.routes
    assert np.array_equal([1e9, 1e10], fair.resources["rate"])
    assert [100, 10] == replay(fair).finish_ns.tolist()
