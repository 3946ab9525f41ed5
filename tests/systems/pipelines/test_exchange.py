"""Messages that all ranks exchange between two rounds, as Megatron-LM's interleaved 1F1B does."""

from __future__ import annotations

import pytest

from windtunnel.graph import Phase
from windtunnel.simulate import replay
from windtunnel.systems.pipelines.chunked import interleaved
from windtunnel.systems.pipelines.schedules import one_forward_one_backward, repeat_schedule
from windtunnel.systems.pipelines.timed import StageTimes, build_schedule_graph


def makespan_ns(schedule, messages, message_ns=3, **times):
    given = {"forward_ns": 10, "backward_ns": 20, **times}
    return replay(
        build_schedule_graph(schedule, StageTimes(**given, message_ns=message_ns), messages=messages)
    ).makespan_ns


def test_one_microbatch_goes_there_and_back():
    assert 10 + 3 + 10 + 20 + 3 + 20 == makespan_ns(one_forward_one_backward(2, 1), "exchanged")


def test_a_sender_waits_for_what_it_sends():
    """Two ranks of two stages: the second pass of rank 0 begins when the first has arrived, so 3 later."""
    schedule = interleaved(2, 2, 2)
    first = dict.fromkeys(("exchanged", "buffered"), 0)
    for rule in first:
        graph = build_schedule_graph(schedule, StageTimes(forward_ns=10, backward_ns=20, message_ns=3), messages=rule)
        names = graph.tasks.strings("name").to_numpy().tolist()
        first[rule] = int(replay(graph).start_ns[names.index("sample 1, stage 0")])

    assert {"exchanged": 13, "buffered": 10} == first


@pytest.mark.parametrize(
    ("num_ranks", "num_microbatches", "num_chunks"), [(2, 2, 2), (2, 8, 2), (4, 8, 3), (3, 9, 2), (2, 4, 3)]
)
def test_an_exchange_never_ends_before_messages_that_nobody_waits_for(num_ranks, num_microbatches, num_chunks):
    schedule = interleaved(num_ranks, num_microbatches, num_chunks)
    uneven = [10 + stage % 3 for stage in range(schedule.num_stages)]

    waited, free = (makespan_ns(schedule, rule, forward_ns=uneven) for rule in ("exchanged", "buffered"))

    assert waited >= free


@pytest.mark.parametrize("num_batches", [1, 2])
@pytest.mark.parametrize(("num_ranks", "num_microbatches", "num_chunks"), [(2, 2, 2), (2, 8, 2), (4, 8, 3)])
def test_every_stage_is_updated_once_per_batch_at_its_end(num_ranks, num_microbatches, num_chunks, num_batches):
    schedule = repeat_schedule(interleaved(num_ranks, num_microbatches, num_chunks), num_batches)
    times = {"forward_ns": 10, "backward_ns": 20, "message_ns": 3}

    graph = build_schedule_graph(schedule, StageTimes(**times, update_ns=50), messages="exchanged")

    updates = graph.tasks.strings("name").to_numpy()[graph.select(phase=Phase.UPDATE)].tolist()
    expected = [f"update of stage {stage}" for stage in range(schedule.num_stages) for _ in range(num_batches)]
    assert sorted(expected) == sorted(updates)
    if num_batches == 1:
        bare = makespan_ns(schedule, "exchanged")
        assert bare + 50 * num_chunks == replay(graph).makespan_ns
