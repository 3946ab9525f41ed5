"""What the recorder looks up about an iteration is no part of it."""

import contextlib

import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import time

import torch

from windtunnel.sources.torch import recorder as module
from windtunnel.sources.torch.recorder import Recorder
from windtunnel.sources.torch.recording import BareIteration, QuietWatch, Recording
from windtunnel.sources.torch.shapes import ShapeSorter
from windtunnel.sources.torch.step import capture


def test_nothing_is_looked_up_within_a_profiled_iteration(monkeypatch):
    """What others took of the cores is read from the kernel, for milliseconds, before it begins and after it ended."""
    inside, looked_up = [], []
    original = module.annotate

    @contextlib.contextmanager
    def annotate(name):
        with original(name):
            inside.append(name)
            yield
            inside.pop()

    def watch(owner, name):
        real = getattr(owner, name)

        def called(*args, **kwargs):
            looked_up.append((name, tuple(inside)))
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, called)

    monkeypatch.setattr(module, "annotate", annotate)
    for owner in (QuietWatch, ShapeSorter):
        for name in ("begin", "end"):
            watch(owner, name)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()

    capture(step, iterations=2)

    assert {"begin", "end"} == {name for name, _ in looked_up}
    assert [] == [entry for entry in looked_up if entry[1]]


def recording_of(step_s, *, num_iterations=None):
    """What a recorder has of a step that sleeps; as many iterations as it asks for, or fewer."""
    recorder = Recorder(iterations=2, warmup=1)
    model = torch.nn.Linear(4, 4)
    recorder.recording.discovery.add([model], [])
    recorder.begin()
    done = 0
    while not recorder.is_complete and done != num_iterations:
        model(torch.randn(2, 4)).sum().backward()
        time.sleep(step_s)
        recorder.boundary()
        done += 1
    recorder.close()
    return recorder.recording, done


def test_a_short_step_is_also_timed_in_a_row():
    recording, _ = recording_of(0.001)

    assert len(recording.row) >= 16
    assert len({item.marks[0][0] for item in recording.row}) == 1  # the backward pass of each
    assert len(recording.row) == len(recording.unmarked_ns)


def test_a_long_step_is_not():
    recording, _ = recording_of(0.025)

    assert recording.is_complete
    assert recording.row == []


def test_a_script_that_ends_within_the_row_is_captured_whole():
    planned = recording_of(0.025)[1]

    recording, done = recording_of(0.001, num_iterations=planned + 12)

    assert recording.is_complete
    assert done == planned + 12
    assert recording.with_row().bare_ns == recording.bare_ns  # too few in a row stand for nothing


def test_a_row_that_others_disturbed_is_not_used():
    row = [BareIteration(1_000, (), 0, 0, 0)] * 20

    assert [1_000] * 20 == Recording(bare_ns=[3_000] * 4, row=row, row_lost=0.0).with_row().bare_ns
    assert [3_000] * 4 == Recording(bare_ns=[3_000] * 4, row=row, row_lost=0.2).with_row().bare_ns


def test_a_row_takes_as_long_as_iterations_without_marks():
    row = [BareIteration(1_000, (("update", 800),), 0, 0, 0)] * 20
    recording = Recording(bare_ns=[3_000] * 4, row=row, unmarked_ns=[900] * 20).with_row()

    assert [900] * 20 == recording.bare_ns
    assert [(("update", 720),)] * 20 == recording.bare_marks
    assert [1_000] * 20 == Recording(row=row, unmarked_ns=[900] * 20, unmarked_lost=0.2).with_row().bare_ns
    assert [1_000] * 20 == Recording(row=row, unmarked_ns=[1_100] * 20).with_row().bare_ns  # marks save no time


def test_a_row_that_others_disturbed_is_run_again(monkeypatch):
    ratios = iter([0.0] * 4 + [0.5] + [0.0] * 1000)  # of two bare iterations, two profiled ones, and the row
    monkeypatch.setattr(QuietWatch, "end", lambda _: next(ratios))

    recording, done = recording_of(0.001)

    assert 0.0 == recording.row_lost
    assert done > 2 * len(recording.row) + len(recording.unmarked_ns)
