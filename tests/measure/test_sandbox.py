"""Whatever a child does, its parent goes on and knows how it ended."""

import ctypes
import os
import socket

import numpy as np
import pytest

from windtunnel.errors import FlightError
from windtunnel.measure.pairs import inner_repeats, take_pairs
from windtunnel.measure.sandbox import GuardedArray, Limits, run_in_fork


def locked(action, seconds=1.0):
    def run(lock):
        lock(seconds)
        action()
        return b"went on"

    return run_in_fork(run, Limits(wall_s=10))


def endless():
    while True:
        pass


def test_an_answer_comes_back():
    assert b"x" * 100_000 == run_in_fork(lambda _: b"x" * 100_000).answer


@pytest.mark.parametrize(("action", "kind"), [
    (lambda: os.open("/etc/hosts", os.O_RDONLY), "forbidden"),
    (lambda: os.fork(), "forbidden"),
    (lambda: os.kill(os.getppid(), 9), "forbidden"),
    (lambda: socket.socket(), "forbidden"),
    (lambda: ctypes.string_at(0), "crash"),
    (lambda: os.abort(), "crash"),
    (lambda: os._exit(0), "crash"),
    (lambda: bytes(8 << 30), "memory"),
    (lambda: 1 // 0, "crash"),
])  # fmt: skip
def test_every_end_has_a_class(action, kind):
    ended = locked(action)

    assert kind == ended.kind
    assert ended.detail


def test_what_never_ends_is_stopped_by_the_time_of_a_core_that_it_may_take():
    assert "timeout" == locked(endless, 0.05).kind


def test_what_waits_forever_is_stopped_by_the_clock():
    def wait(_):
        os.read(os.pipe()[0], 1)
        return b""

    assert "timeout" == run_in_fork(wait, Limits(wall_s=0.2)).kind


def test_one_element_beyond_the_end_is_seen_or_kills():
    guarded = GuardedArray((100,), np.float32)

    def beside(_):
        ctypes.memset(guarded.address + 400, 1, 4)
        return b"intact" if guarded.is_intact() else b"touched"

    def beyond(_):
        ctypes.memset(guarded.address + 448, 1, 4)
        return b""

    assert b"touched" == run_in_fork(beside).answer
    assert "crash" == run_in_fork(beyond).kind
    assert guarded.is_intact()


def test_an_array_with_walls_is_aligned_and_holds_what_is_put_there():
    for size in (1, 7, 64, 1000):
        guarded = GuardedArray((size,), np.int16)
        guarded.array[:] = np.arange(size)

        assert guarded.address % 64 == 0
        assert guarded.is_intact()
        assert guarded.array.sum() == size * (size - 1) // 2


def test_pairs_are_taken_in_turn_after_inputs_were_put_back():
    seen = []

    def slow(name):
        seen.append(name)
        sum(range(3000))

    taken = take_pairs(lambda: slow("a"), lambda: slow("b"), lambda: seen.append("put"), 4, max_warmup=1)

    assert (4, 2) == taken.shape
    assert ["put"] * 10 == seen[::2]
    assert [
        "put",
        "a",
        "put",
        "b",
        "put",
        "a",
        "put",
        "b",
        "put",
        "b",
        "put",
        "a",
        "put",
        "a",
        "put",
        "b",
        "put",
        "b",
        "put",
        "a",
    ] == seen


def test_what_no_clock_can_tell_is_refused_or_repeated():
    def nothing():
        pass

    assert inner_repeats(nothing, nothing) > 10
    with pytest.raises(FlightError, match="less than 2 µs"):
        take_pairs(nothing, nothing, nothing, 3)
