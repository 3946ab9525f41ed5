"""Messages that only their readers wait for, worked out by hand and traced."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.errors import NotApplicableError
from windtunnel.graph import EdgeKind, GraphBuilder, Kind, ResourceKind
from windtunnel.simulate import replay
from windtunnel.whatifs.overlap import overlap


def layers(computes, sends, is_read=True):
    """Each layer's result is sent, the next one's work does not need it, the work after that does."""
    builder = GraphBuilder()
    stream, wire = builder.resource("stream", ResourceKind.STREAM), builder.resource("group", ResourceKind.STREAM)
    tasks, messages = [], []
    for work, message in zip(computes, sends, strict=True):
        tasks.append(builder.task("work", duration_ns=work, resource=stream))
        messages.append(builder.task("all_reduce", kind=Kind.COMM, duration_ns=message, resource=wire))
        builder.edge(tasks[-1], messages[-1])
    for place, task in enumerate(tasks[1:], start=1):
        builder.edge(tasks[place - 1], task, kind=EdgeKind.ORDER)
        builder.edge(messages[place - 1], messages[place], kind=EdgeKind.ORDER)
        builder.edge(messages[place - 1], task, kind=EdgeKind.SYNC)
        if is_read and place > 1:
            builder.edge(messages[place - 2], task, kind=EdgeKind.DATA)
    return builder.build()


def test_a_message_hides_behind_the_work_before_its_reader():
    graph = layers([10, 10, 10], [4, 4, 4])

    assert 10 + 4 + 10 + 4 + 10 + 4 == replay(graph).makespan_ns
    # the second piece of work hides the first message; nobody reads the last two, so the second one keeps its wait
    assert 10 + 10 + 4 + 10 + 4 == replay(overlap(graph)).makespan_ns


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=3, max_size=8))
def test_overlap_never_takes_longer_and_readers_still_wait(pairs):
    graph = layers(*zip(*pairs, strict=True))
    changed = overlap(graph)
    before, after = replay(graph), replay(changed.validate())
    read = graph.edges["kind"] == EdgeKind.DATA

    assert after.makespan_ns <= before.makespan_ns
    assert graph.duration_ns.tolist() == changed.duration_ns.tolist()
    assert (after.finish_ns[graph.edges["src"][read]] <= after.start_ns[graph.edges["dst"][read]]).all()


def test_messages_without_known_readers_stay():
    with pytest.raises(NotApplicableError, match="nothing says who reads"):
        overlap(layers([10, 10], [4, 4], is_read=False))


def test_what_overlaps_already_is_refused():
    with pytest.raises(NotApplicableError, match="only its readers wait"):
        overlap(overlap(layers([10, 10, 10], [4, 4, 4])))
