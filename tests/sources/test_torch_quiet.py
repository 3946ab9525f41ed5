"""Iterations that other programs disturb are measured again, and what stays disturbed is estimated and reported."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.measure.disturbance import MAX_WAITED_RATIO, Stretch
from windtunnel.simulate import replay
from windtunnel.sources.torch import recording
from windtunnel.sources.torch.recording import disturbance_facts, quiet_iterations

LOST = st.lists(st.floats(0, 1), min_size=1, max_size=40)


@given(LOST)
def test_a_kept_iteration_waited_no_longer_than_a_dropped_one(lost):
    keep = quiet_iterations(lost)

    assert keep.any()
    assert max(np.array(lost)[keep]) <= min(np.array(lost)[~keep], default=1.0)


@given(LOST)
def test_quiet_iterations_are_all_kept_where_there_are_enough(lost):
    keep, is_quiet = quiet_iterations(lost), np.array(lost) <= MAX_WAITED_RATIO

    if is_quiet.sum() >= min(4, len(lost)):
        assert is_quiet.tolist() == keep.tolist()
    else:
        assert keep.sum() * 2 >= len(lost)


def test_a_quiet_capture_says_nothing():
    assert {} == disturbance_facts([0.0, 0.01], [0.02], 0)
    assert {"num_repeated": 2} == disturbance_facts([0.0, 0.01], [0.02], 2)
    assert {"lost_ratio": 0.5, "num_repeated": 9} == disturbance_facts([0.4, 0.6], [0.02], 9)


class Script:
    """Shares that others take of the iterations that are measured, in turn; the last one stays."""

    def __init__(self, monkeypatch, shares):
        self.shares, self.num_asked = list(shares), 0
        monkeypatch.setattr(recording.DisturbanceClock, "end", lambda _clock: self.next())

    def next(self):
        self.num_asked += 1
        return Stretch(self.shares.pop(0) if len(self.shares) > 1 else self.shares[0])


def captured(iterations=8):
    torch = pytest.importorskip("torch")
    from windtunnel.sources.torch.step import capture

    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        model(torch.ones(4, 16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return capture(step, iterations=iterations, model=model, optimizer=optimizer)


def test_disturbed_iterations_are_measured_again(monkeypatch):
    script = Script(monkeypatch, [0.5, 0.5, 0.0])
    graph = captured()

    assert {"num_repeated": 2} == graph.meta.disturbance
    assert script.num_asked in (16 + 2, 16 + 2 + 2)  # a short step is asked for each of its two rows
    num_samples = len(graph.meta.iteration_ns["samples"])
    assert num_samples == 8 or 16 <= num_samples <= 400


def test_a_host_that_stays_busy_ends_the_capture_and_is_reported(monkeypatch):
    script = Script(monkeypatch, [0.5])
    graph = captured()
    times = graph.meta.iteration_ns

    assert {"lost_ratio": 0.5, "num_repeated": 8} == graph.meta.disturbance
    assert script.num_asked in (16 + 8, 16 + 8 + 2 + 4)  # and for rows that are run again
    assert times["low"] < times["median"] < times["high"]
    assert pytest.approx(replay(graph).makespan_ns, rel=0.01) == times["median"]


def test_a_program_that_crowds_itself_is_not_disturbed(monkeypatch):
    """Workers of its own loader take the cores: that is how the program runs."""
    Script(monkeypatch, [0.5])
    monkeypatch.setattr(recording.Neighbors, "are_quiet", True)

    assert {} == captured().meta.disturbance
