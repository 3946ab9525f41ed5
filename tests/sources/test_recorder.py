"""What the recorder looks up about an iteration is no part of it."""

import contextlib

import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch

from windtunnel.sources.torch import recorder as module
from windtunnel.sources.torch.disturbed_iterations import QuietWatch
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
