"""The search for the largest batch that fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.errors import InputError
from windtunnel.sources.memory.fit import largest_batch


def tight(peak_of):
    """Of an allocator that reserves just what tensors hold."""
    return lambda batch: (peak_of(batch),) * 2


@given(st.integers(0, 10**6), st.integers(1, 10**5), st.integers(1, 256), st.integers(1, 64))
def test_the_largest_batch_that_fits_is_found_exactly_where_it_is_small(base, growth, largest, start):
    limit = base + growth * largest + growth // 2
    found = largest_batch(tight(lambda batch: base + growth * batch), limit, start)

    assert (largest, largest + 1) == (found.batch_size, found.next_batch_size)
    assert len(found.peaks) <= 16


def test_a_large_batch_is_found_to_a_part_in_256():
    found = largest_batch(tight(lambda batch: 7_000 + 13 * batch + batch // 3), 10**7)

    assert found.peaks[found.batch_size] <= 10**7 < found.peaks[found.next_batch_size]
    assert found.next_batch_size - found.batch_size <= found.batch_size // 256
    assert len(found.peaks) < 10


def test_a_batch_that_gives_no_answer_bounds_the_search():
    def peak_of(batch):
        if batch > 37:
            raise InputError("the data set has 37 samples")
        return 1_000 * batch

    found = largest_batch(tight(peak_of), 10**9)

    assert (37, 38) == (found.batch_size, found.next_batch_size)
    assert "37 samples" in found.failures[38]


def test_where_no_batch_fits_none_is_found():
    found = largest_batch(tight(lambda batch: 10**6 + batch), 10**6)

    assert (0, 1) == (found.batch_size, found.next_batch_size)


def test_a_peak_that_does_not_grow_is_no_batch():
    with pytest.raises(InputError, match="does not grow with the batch"):
        largest_batch(tight(lambda _: 1_000), 10**6)


@given(st.integers(1, 2**20), st.integers(1, 2000), st.integers(1, 64))
def test_memory_reserved_in_segments_is_no_peak_that_does_not_grow(segment_bytes, growth, start):
    limit = 10 * segment_bytes
    found = largest_batch(
        lambda batch: (-(-growth * batch // segment_bytes) * segment_bytes, growth * batch), limit, start
    )

    assert found.peaks[found.batch_size] <= limit if found.batch_size else growth > limit
    assert not found.next_batch_size or found.peaks[found.next_batch_size] > limit
