"""Times of iterations on a GPU come from its stream; here its events are stood in for."""

from types import SimpleNamespace

import torch

from windtunnel.measure.devices import IterationClock, time_with_sync_ns, uses_gpu


class Event:
    """An event of a stream on which every second record lies 3 ms behind the one before."""

    recorded, waited = 0, 0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        Event.recorded += 1
        self.at_ms = 3.0 * Event.recorded

    def elapsed_time(self, end):
        return end.at_ms - self.at_ms

    def synchronize(self):
        Event.waited += 1


def test_iterations_on_a_gpu_are_timed_by_its_stream_and_waited_for_once(monkeypatch):
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(Event=Event))
    clock = IterationClock(is_on_gpu=True)
    clock.begin()
    for _ in range(4):
        clock.mark()

    assert 4 == len(clock)
    assert [3_000_000] * 4 == clock.durations_ns()
    assert 1 == Event.waited
    assert [] == clock.durations_ns()


def test_what_lies_before_a_new_begin_does_not_count(monkeypatch):
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(Event=Event))
    clock = IterationClock(is_on_gpu=True)
    clock.begin()
    clock.mark()
    clock.begin()
    clock.mark()

    assert [3_000_000] * 2 == clock.durations_ns()


def test_a_call_is_over_when_its_device_has_done_it(monkeypatch):
    waited = []
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(synchronize=waited.append))

    assert time_with_sync_ns(lambda: None, "cuda:1") >= 0
    assert time_with_sync_ns(lambda: None, "cpu") >= 0
    assert ["cuda:1"] == waited


def test_a_process_that_never_used_a_gpu_uses_none():
    assert not uses_gpu()
    assert not uses_gpu("cpu")
    assert uses_gpu("cuda:0")
