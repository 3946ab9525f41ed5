from hypothesis import given
from hypothesis.strategies import integers, sampled_from

from windtunnel.systems.layers.nn.choice import coarse


@given(integers(0, 10**6), sampled_from([1, 2, 4]))
def test_a_coarse_size_is_no_smaller_and_at_most_a_step_larger(count, per_doubling):
    size = coarse(count, per_doubling)

    assert count <= size <= count * (1 + 1 / per_doubling)
    assert size == coarse(size, per_doubling)


def test_sizes_are_few():
    assert 11 == len({coarse(count) for count in range(1, 1025)})
    assert 41 >= len({coarse(count, 4) for count in range(1, 1025)})
