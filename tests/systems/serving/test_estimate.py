"""The batch that a queue asks for, beside the published program's loop."""

from hypothesis import given
from hypothesis import strategies as st

from windtunnel.systems.serving.estimate import BatchEstimate

periods = st.lists(st.lists(st.integers(0, 200), max_size=30), min_size=1, max_size=6)


def plain(batch, all_depths):
    """As it is written in the paper's program."""
    ring, found = [], []
    for depths in all_depths:
        x, stable = float(batch), 1
        for depth in depths if sum(depths) else []:
            x = 0.9 * x + 0.1 * depth
            power = 1
            while power * 2 <= round(x):
                power *= 2
            ring = [*ring, power][-10:]
            stable = max(ring, key=lambda one: (ring.count(one), -ring.index(one)))
        batch = stable
        found.append(batch)
    return found


@given(st.sampled_from([1, 2, 8, 64]), periods)
def test_every_period_ends_as_in_the_published_program(batch, all_depths):
    estimate = BatchEstimate(batch)

    assert plain(batch, all_depths) == [estimate.after(depths) for depths in all_depths]


def test_published_vectors():
    assert [16, 16, 32] == [BatchEstimate(b).after([depth] * 100) for b, depth in ((1, 16), (32, 16), (32, 32))]
    assert 1 == BatchEstimate(1).after([1] * 5 + [7] + [2] * 4)  # five ones, then five twos


def test_what_was_seen_stays_for_the_next_period():
    estimate = BatchEstimate(1)
    estimate.after([1] * 10)

    assert 1 == estimate.after([40] * 3)
    assert 8 <= estimate.after([40] * 10)


@given(st.lists(st.integers(1, 500), min_size=1))
def test_no_batch_is_larger_than_the_server_can_answer(depths):
    assert BatchEstimate(1, most=16).after(depths) <= 16


def test_without_requests_one_is_answered_at_a_time():
    assert 1 == BatchEstimate(64).after([])
