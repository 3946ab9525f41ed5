"""Schedules with times: what the papers say of bubbles and memory, uneven stages, links that are shared."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.errors import InputError
from windtunnel.graph import Kind, Phase
from windtunnel.simulate import replay
from windtunnel.systems.pipelines.generate import SCHEDULES, generate
from windtunnel.systems.pipelines.played import play
from windtunnel.systems.pipelines.replayed import alike, reads_of, side_by_side
from windtunnel.systems.pipelines.schedules import pipedream
from windtunnel.systems.pipelines.timed import StageTimes, build_schedule_graph, working_ranks
from windtunnel.systems.pipelines.verify import in_flight, needs, parts, weight_versions

ONE = StageTimes(forward_ns=100, backward_ns=200)
TRAINING = [one for one in SCHEDULES if one != "forward-only"]


def taken(schedule, times=ONE, **options):
    return replay(build_schedule_graph(schedule, times, **options)).makespan_ns


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 16), (8, 32)])
def test_bubbles_are_those_of_the_papers(p, m):
    """Of passes of length F, I = W = F and B = 2F, in F: (p - 1)(F + B); that over v; (p - 1)(F + I - W)."""

    def bubble(name, num_stages_per_rank=1, **options):
        return taken(generate(name, p, m, **options)) - 300 * m * num_stages_per_rank

    assert 300 * (p - 1) == bubble("gpipe") == bubble("1f1b")
    assert 300 * (p - 1) == bubble("interleaved", 2) == bubble("interleaved", 3, num_chunks=3)  # of smaller stages
    assert 100 * (p - 1) == bubble("zb-h1")
    assert 100 * (p - 1) == bubble("zbv", 2)
    assert 100 * (p - 1) == taken(generate("forward-only", p, m)) - 100 * m


@pytest.mark.parametrize(("p", "m"), [(2, 8), (4, 16)])
def test_dualpipe_has_no_larger_bubble_than_its_paper_says(p, m):
    """DeepSeek-V3, table 2: at most (p / 2 - 1)(F&B + B - 3W); less, as here the first of two passes ends first."""
    assert 100 * (p // 2 - 1) == taken(generate("dualpipe", p, m)) - 300 * m
    assert 100 * (p - 1) == taken(generate("dualpipev", p, m)) - 600 * m


def test_2bw_has_no_bubble_between_batches():
    times = [taken(generate("2bw", 4, 8, num_batches=batches)) for batches in (3, 4)]
    flushed = [taken(generate("1f1b", 4, 8, num_batches=batches)) for batches in (3, 4)]

    assert 8 * 300 == times[1] - times[0]
    assert 11 * 300 == flushed[1] - flushed[0]


@pytest.mark.parametrize("name", SCHEDULES)
@given(data=st.data())
def test_nothing_begins_before_what_it_needs_and_ranks_do_one_thing_at_a_time(name, data):
    numbers = st.integers(0, 50)
    schedule = generate(name, 2, 4, num_batches=2)
    num = schedule.num_stages
    each = st.lists(numbers, min_size=num, max_size=num)
    times = StageTimes(
        forward_ns=data.draw(each), input_ns=data.draw(each), weights_ns=data.draw(each), backward_ns=data.draw(each),
        message_ns=data.draw(st.lists(numbers, min_size=num - 1, max_size=num - 1)), update_ns=data.draw(each),
    )  # fmt: skip
    played = play(schedule, times)
    ends = {part: end for row in played.passes for action, _, end in row for part in parts(action)}

    for row in played.passes:
        for (_, _, end), (_, begin, _) in pairwise(row):
            assert end <= begin
        for action, begin, end in row:
            kind = {"F": times.forward_ns, "B": times.backward_ns, "I": times.input_ns, "W": times.weights_ns}
            assert end - begin == kind[action.kind][action.stage]
            for part in parts(action):
                for other in needs(part, num):
                    crosses = schedule.rank(other.stage, other.microbatch) != schedule.rank(*action[::2])
                    sent = times.message_ns[min(other.stage, action.stage)] if crosses else 0
                    assert other in parts(action) or ends[other] + sent <= begin


def test_a_slow_stage_sets_the_pace():
    times = StageTimes(forward_ns=[100, 300, 100], backward_ns=[200, 600, 200])
    few, many = (taken(generate("1f1b", 3, m), times) for m in (6, 16))

    assert 10 * 900 == many - few


def test_messages_on_one_link_take_turns():
    """Two chunks of two ranks: messages of both go over the one link between them."""
    schedule = generate("interleaved", 2, 4)
    times = replace(ONE, message_ns=150)
    graph = build_schedule_graph(schedule, times)
    apart = build_schedule_graph(schedule, times, link_of=lambda a, b: f"{a} to {b}")
    shared = build_schedule_graph(schedule, times, link_of=lambda a, b: "the switch")

    names = graph.resources.strings("name").to_numpy()
    assert {"rank 0", "rank 1", "link 0-1", "link 1-0"} == set(names)
    assert replay(apart).makespan_ns == replay(graph).makespan_ns < replay(shared).makespan_ns
    sent = graph.select(kind=Kind.COMM)
    assert 4 * 2 * 3 == int(sent.sum())
    assert (graph.tasks["rank"][sent] != working_ranks(graph)[sent]).all()


@pytest.mark.parametrize("name", TRAINING)
def test_every_rank_holds_its_own_weights_and_what_is_in_flight(name):
    """Base and peak per rank: kept until the weights' gradients are there."""
    schedule = generate(name, 4, 8)
    base = [1000, 2000, 3000, 4000]
    times = replace(ONE, kept_bytes=10)
    timeline = replay(build_schedule_graph(schedule, times, base_bytes=base))

    for rank, held in enumerate(in_flight(schedule)):
        memory = timeline.memory(timeline.graph.select(rank=rank))
        assert base[rank] == memory.base_bytes
        assert base[rank] + 10 * held == memory.peak_bytes
    assert sum(base) == timeline.memory().base_bytes


def test_split_passes_may_keep_less_for_the_weights():
    schedule = generate("zb-h1", 4, 8)
    peaks = []
    for kept in (10, 4):
        timeline = replay(build_schedule_graph(schedule, replace(ONE, kept_bytes=10, kept_for_weights_bytes=kept)))
        peaks.append(timeline.memory(timeline.graph.select(rank=3)).peak_bytes)

    assert [40, 10 + 3 * 4] == peaks  # the last rank has done three of four passes half


def test_versions_of_weights_are_those_of_the_papers():
    assert (1, 1, 1, 1) == weight_versions(generate("1f1b", 4, 8, num_batches=3))
    assert (2, 2, 2, 2) == weight_versions(generate("2bw", 4, 8, num_batches=3))
    assert (4, 3, 2, 1) == weight_versions(pipedream(4, 1, 12))  # a batch of one microbatch, as in PipeDream
    assert (2, 2, 2, 1) == weight_versions(pipedream(4, 8, 3))


def test_every_batch_ends_with_an_update_of_each_stage():
    schedule = generate("zbv", 2, 4, num_batches=3)
    graph = build_schedule_graph(schedule, replace(ONE, update_ns=50))

    updates = graph.select(phase=Phase.UPDATE)
    assert 3 * 4 == int(updates.sum())
    plain = taken(generate("zbv", 2, 4))
    assert plain + 2 * 50 == taken(generate("zbv", 2, 4), replace(ONE, update_ns=50))


def wide(name, times, **options):
    """Two pipelines of two ranks beside each other."""
    table = generate(name, 2, 4, **options)
    num = table.num_stages
    return build_schedule_graph(side_by_side(table, 2), times, reads=reads_of(num, 2), alike=alike(num, 2))


def times_of(graph, text):
    """When tasks of that name begin and end."""
    rows = [row for row, name in enumerate(graph.tasks.strings("name").to_numpy()) if name == text]
    timeline = replay(graph)
    return [(int(timeline.start_ns[row]), int(timeline.finish_ns[row])) for row in rows]


def test_gradients_are_exchanged_once_all_replicas_have_them():
    """Behind the last backward pass of the slower one, before either updates; then both have taken the same time."""
    slow = replace(ONE, forward_ns=[100, 100, 150, 100], update_ns=50, exchange_ns=70)
    graph = wide("1f1b", slow)
    begins = [times_of(graph, f"gradients of stage {stage}")[0][0] for stage in (0, 2)]
    back = times_of(graph, "sample 3, stage 2 backward")[0][1]

    assert [back, back] == begins
    assert [back + 70 + 50] * 2 == [times_of(graph, f"update of stage {stage}")[0][1] for stage in (0, 2)]
    alone = replace(ONE, update_ns=50, exchange_ns=70)
    assert replay(wide("1f1b", alone)).makespan_ns == taken(generate("1f1b", 2, 4), alone)
    assert taken(generate("1f1b", 2, 4)) + 70 + 50 == taken(generate("1f1b", 2, 4), alone)


@pytest.mark.parametrize("name", ["interleaved", "zbv"])
def test_an_exchange_goes_on_beside_the_backward_passes_of_other_stages(name):
    """Only what lies behind a rank's last pass takes longer."""
    each = replace(ONE, exchange_ns=100)
    table = generate(name, 2, 4)
    hidden = taken(table, each) - taken(table)

    assert 0 < hidden < 100 * table.num_stages / table.num_ranks
    assert replay(wide(name, each)).makespan_ns == taken(table, each)
    graph = build_schedule_graph(table, each)
    first, last = (f"gradients of stage {stage}" for stage in (table.num_stages - 1, 0))
    assert times_of(graph, first)[0][1] <= times_of(graph, last)[0][0]


def test_two_ranks_with_one_stage_exchange_its_gradients():
    """DualPipe has every stage twice."""
    graph = build_schedule_graph(generate("dualpipe", 2, 4), replace(ONE, exchange_ns=[0, 70]))
    begins = [begin for begin, _ in times_of(graph, "gradients of stage 1")]
    last = max(end for at in range(4) for _, end in times_of(graph, f"sample {at}, stage 1 backward"))

    assert [last, last] == begins


def test_times_must_fit_to_the_stages():
    schedule = generate("1f1b", 4, 8)
    with pytest.raises(InputError, match="3 values for 4 stages"):
        build_schedule_graph(schedule, StageTimes(forward_ns=[1, 2, 3]))
    with pytest.raises(InputError, match="negative or no number"):
        build_schedule_graph(schedule, StageTimes(forward_ns=-1))
    with pytest.raises(InputError, match="negative or no number"):
        build_schedule_graph(schedule, StageTimes(forward_ns=np.nan))
