"""Nested events as a line of points, and unlike iterations laid over each other."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.sources.torch.profile import Events
from windtunnel.sources.torch.timeline_points import align, by_kind, walk


def events_of(spans):
    """Events from (name, start, end), sorted as a profile sorts them."""
    spans = sorted(spans, key=lambda span: (span[1], -span[2]))
    zeros = np.zeros(len(spans), dtype=np.int64)
    return Events(
        names=[name for name, _, _ in spans],
        start_ns=np.array([start for _, start, _ in spans], dtype=np.int64),
        end_ns=np.array([end for _, _, end in spans], dtype=np.int64),
        thread=zeros,
        sequence=zeros - 1,
        forward_thread=zeros,
    )


def points_of(*spans, hidden="\0"):
    events = events_of(spans)
    return walk(events, np.arange(len(spans)), hidden)


def test_self_time_lies_between_the_children():
    points = points_of(("step", 0, 100), ("a", 10, 60), ("b", 20, 30), ("c", 30, 50), ("d", 70, 90))

    assert ["+step", "+a", "+b", "-b", "+c", "-c", "-a", "+d", "-d", "-step"] == points.tokens.tolist()
    assert [0, 1, 2, 1, 3, 1, 0, 4, 0, -1] == points.owner.tolist()
    assert [10, 10, 10, 0, 20, 10, 10, 20, 10] == np.diff(points.times_ns).tolist()


def test_a_child_that_ends_after_its_parent_is_cut():
    points = points_of(("step", 0, 100), ("a", 10, 50), ("b", 20, 51))

    assert [0, 10, 20, 50, 50, 100] == points.times_ns.tolist()


def test_hidden_events_leave_no_points_but_their_children_do():
    points = points_of(("step", 0, 100), ("wt:module:x", 5, 90), ("a", 10, 50), hidden="wt:module:")

    assert ["+step", "+a", "-a", "-step"] == points.tokens.tolist()
    assert [-1, 0] == points.parent.tolist()


def test_an_iteration_with_one_more_operator_counts_it_where_it_happened():
    template = points_of(("step", 0, 100), ("a", 10, 50), ("b", 60, 90))
    other = points_of(("step", 0, 200), ("a", 10, 50), ("log", 55, 150), ("b", 160, 190))

    assert [0, 10, 50, 160, 190, 200] == align(template, other).tolist()


def test_an_operator_that_an_iteration_lacks_takes_no_time_in_it():
    template = points_of(("step", 0, 100), ("a", 10, 50), ("log", 52, 58), ("b", 60, 90))
    other = points_of(("step", 0, 95), ("a", 10, 50), ("b", 55, 85))

    assert [0, 10, 50, 50, 50, 55, 85, 95] == align(template, other).tolist()


def test_iterations_with_nothing_in_common_are_not_joined():
    template = points_of(("step", 0, 100), *((f"a{row}", 2 * row + 1, 2 * row + 2) for row in range(20)))
    other = points_of(("step", 0, 100), *((f"b{row}", 2 * row + 1, 2 * row + 2) for row in range(20)))

    assert align(template, other) is None


def test_slices_of_one_kind_give_each_other_their_times():
    """Three long calls in the template, two short ones in the iteration: each of the three takes what those two did."""
    template = points_of(("step", 0, 100), ("a", 10, 30), ("a", 40, 60), ("a", 70, 90))
    other = points_of(("step", 1000, 1030), ("a", 1005, 1009), ("a", 1014, 1020))

    times = by_kind(template, other)

    assert [5, 5, 5] == (times[2:7:2] - times[1:6:2]).tolist()
    assert 1000 == times[0]
    assert (np.diff(times) >= 0).all()


def test_an_iteration_gives_itself_back_by_kind():
    template = points_of(("step", 0, 100), ("a", 10, 30), ("b", 40, 60), ("c", 61, 97))

    assert by_kind(template, template).tolist() == template.times_ns.tolist()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50), st.integers(0, 5)), max_size=30), st.data())
def test_slices_always_sum_to_the_iteration(calls, data):
    spans, now = [], 0
    for name, length, gap in calls:
        spans.append((name, now + gap, now + gap + length))
        now += gap + length
    template = points_of(("step", 0, now + 1), *spans)
    kept = [span for span in spans if data.draw(st.booleans())]
    other = points_of(("step", 0, now + 1), *kept)

    aligned = align(template, other)

    if aligned is not None:
        assert (np.diff(aligned) >= 0).all()
        assert now + 1 == np.diff(aligned).sum()
