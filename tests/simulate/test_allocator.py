"""The simulated caching allocator against its rules, an obvious reference and numbers worked out by hand."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.errors import InfeasibleError
from windtunnel.simulate.memory import CachingAllocator, compute_reserved_bytes, round_size

MIB = 2**20
SIZES = st.one_of(
    st.integers(1, 4096),
    st.integers(1, 3 * MIB),
    st.integers(1, 40 * MIB),
    st.sampled_from([512, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 20 * MIB]),
)
ACTIONS = st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, 1), st.integers(0, 10**6)), max_size=60)


class Reference:
    """The same rules on flat lists: a segment is a list of [address, size, is_free]; every search looks at all."""

    def __init__(self) -> None:
        self.segments: list[tuple[int, bool, list[list[int]]]] = []
        self.end = 0

    def allocate(self, size_bytes: int, stream: int) -> int:
        size = max(512, (size_bytes + 511) // 512 * 512)
        small = size <= MIB
        fits = [
            (cell[1], cell[0], cells, cell)
            for owner, is_small, cells in self.segments
            for cell in cells
            if owner == stream and is_small == small and cell[2] and cell[1] >= size
        ]
        if not fits:
            segment = 2 * MIB if small else 20 * MIB if size < 10 * MIB else (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
            cell = [self.end, segment, 1]
            self.segments.append((stream, small, [cell]))
            fits = [(segment, self.end, self.segments[-1][2], cell)]
            self.end += segment + 2 * MIB
        _, address, cells, cell = min(fits, key=lambda fit: fit[:2])
        left = cell[1] - size
        if left >= 512 if small else left > MIB:
            cells.insert(cells.index(cell) + 1, [address + size, left, 1])
            cell[1] = size
        cell[2] = 0
        return address

    def free(self, address: int) -> None:
        for _, _, cells in self.segments:
            for cell in cells:
                if cell[0] == address and not cell[2]:
                    cell[2] = 1
            joined = [list(cells[0])]
            for cell in cells[1:]:
                if joined[-1][2] and cell[2]:
                    joined[-1][1] += cell[1]
                else:
                    joined.append(list(cell))
            cells[:] = joined

    @property
    def reserved(self) -> int:
        return sum(cell[1] for _, _, cells in self.segments for cell in cells)

    @property
    def live(self) -> int:
        return sum(cell[1] for _, _, cells in self.segments for cell in cells if not cell[2])


@settings(max_examples=150, deadline=None)
@given(ACTIONS)
def test_the_allocator_does_what_the_obvious_one_does_and_never_overlaps(actions):
    allocator, reference, held = CachingAllocator(), Reference(), []
    for is_release, size, stream, which in actions:
        if is_release and held:
            block, address = held.pop(which % len(held))
            allocator.free(block)
            reference.free(address)
        else:
            block, address = allocator.allocate(size, stream), reference.allocate(size, stream)
            assert address == block.address
            assert block.size_bytes >= round_size(size)
            held.append((block, address))
        assert (reference.live, reference.reserved) == (allocator.live_bytes, allocator.reserved_bytes)
        assert allocator.live_bytes <= allocator.reserved_bytes
        spans = [(one.address, one.address + one.size_bytes) for blocks in allocator.segments() for one in blocks]
        assert all(end <= begin for (_, end), (begin, _) in pairwise(sorted(spans)))
        assert sum(end - begin for begin, end in spans) == allocator.reserved_bytes

    for block, _ in held:
        allocator.free(block)

    assert allocator.live_bytes == 0
    assert all(len(blocks) == 1 for blocks in allocator.segments())
    allocator.give_back()
    assert allocator.reserved_bytes == 0


def test_segments_have_the_published_sizes():
    """2 MiB for small requests, 20 MiB below 10 MiB, above that the request rounded to 2 MiB."""
    expected = {1: 2, MIB: 2, MIB + 1: 20, 10 * MIB - 512: 20, 10 * MIB: 10, 10 * MIB + 1: 12, 100 * MIB: 100}
    for size, segment_mib in expected.items():
        allocator = CachingAllocator()
        allocator.allocate(size)

        assert allocator.reserved_bytes == segment_mib * MIB


def test_a_large_block_keeps_a_rest_of_one_mebibyte():
    """What is left of a large block is split off only above 1 MiB."""
    allocator = CachingAllocator()
    first = allocator.allocate(9 * MIB)
    second = allocator.allocate(10 * MIB - 512)

    assert (9 * MIB, 11 * MIB) == (first.size_bytes, 11 * MIB)
    assert allocator.reserved_bytes == 20 * MIB
    assert second.size_bytes == 10 * MIB - 512
    third = allocator.allocate(MIB + 512)
    assert third.address == second.address + second.size_bytes
    assert third.size_bytes == MIB + 512


def test_streams_do_not_share_free_blocks():
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(4096, stream=1))
    allocator.allocate(4096, stream=2)

    assert allocator.reserved_bytes == 4 * MIB


def test_a_full_device_first_gives_back_what_is_wholly_free():
    allocator = CachingAllocator(limit_bytes=30 * MIB)
    allocator.free(allocator.allocate(16 * MIB))

    assert allocator.allocate(24 * MIB).size_bytes == 24 * MIB
    assert allocator.reserved_bytes == 24 * MIB
    with pytest.raises(InfeasibleError, match=r"do not fit.*24.0 MiB are reserved"):
        allocator.allocate(10 * MIB)


def test_a_block_is_taken_back_once():
    allocator = CachingAllocator()
    block = allocator.allocate(512)
    allocator.free(block)

    with pytest.raises(ValueError, match="not handed out"):
        allocator.free(block)


def test_reserved_over_time_follows_sizes_that_change():
    reserved = compute_reserved_bytes(np.array([0, 1, 0, 0, 1]), np.array([600, 30 * MIB, 700, 0, 0]))

    assert [2 * MIB, 32 * MIB, 32 * MIB, 32 * MIB, 32 * MIB] == reserved.tolist()
