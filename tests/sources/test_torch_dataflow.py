"""Who reads what whom wrote, when storages are used again."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from windtunnel.sources.torch.dataflow import Flow, _Tracker
from windtunnel.sources.torch.ops import Span


def span(low: int, high: int, storage: int = 7) -> Span:
    return Span(storage, low, high, high - low)


def test_a_result_in_reused_memory_hides_all_that_lay_there_before():
    """Else a freed large tensor would seem to feed every reader of the small one that took its place."""
    tracker = _Tracker(Flow())
    tracker.write(span(0, 5120), 3, entered=2, in_place=False)
    tracker.write(span(0, 4096), 20, entered=19, in_place=False)
    tracker.read(span(0, 4096), 30)

    assert {(20, 30): 4096} == tracker.flow.data


def test_a_write_in_place_hides_only_what_it_covers():
    tracker = _Tracker(Flow())
    tracker.write(span(0, 100), 3, entered=2, in_place=False)
    tracker.write(span(0, 40), 20, entered=19, in_place=True)
    tracker.read(span(0, 100), 30)

    assert {(3, 30): 60, (20, 30): 40} == tracker.flow.data


def test_a_writer_in_place_waits_for_the_readers_before_it():
    tracker = _Tracker(Flow())
    tracker.write(span(0, 100), 3, entered=2, in_place=False)
    tracker.read(span(0, 100), 10)
    tracker.write(span(0, 100), 20, entered=19, in_place=True)

    assert {(10, 20)} == tracker.flow.control
