"""Overlap Local-SGD and its siblings: who waits, what is refused. Their equalities are in ``test_exact``."""

from __future__ import annotations

import numpy as np
import pytest

from tests.systems.uneven.small import fleet_of, small_job, trained, without_server
from windtunnel import registry
from windtunnel.errors import InputError

WORKERS = 3


def _ours(tmp_path, strategy: str, **numbers) -> np.ndarray:
    """The mean of three equal workers after 40 steps, before their 41st ends."""
    fleet = without_server(fleet_of(tmp_path, [1.0] * WORKERS, rate="1 GB/s", latency="10 us"))
    run = trained(small_job(momentum=0.9), fleet, strategy, duration_s=0.401 + 0.002, **numbers)
    assert len(run.steps) == 40 * WORKERS
    return run.weights


def test_velocities_in_both_units_agree_at_a_constant_rate(tmp_path):
    """They differ by rounding only."""
    one, other = (_ours(tmp_path, "overlap-local-sgd", velocity=unit) for unit in ("param", "grad"))

    assert np.abs(one - other).max() < 1e-5


def test_fragments_land_when_they_are_due(tmp_path):
    """Two fragments travel in turn, each a part of the bytes, and training goes on and learns."""
    fleet = without_server(fleet_of(tmp_path, [1.0] * WORKERS))
    run = trained(small_job(), fleet, "streaming-diloco", duration_s=1, tau=8, fragments=2, delay=3)

    assert run.points[-1].loss < run.points[0].loss
    assert max(run.wait_shares()) < 0.03
    sizes = run.messages[:, 4]
    assert sizes.max() < 4 * len(run.weights) / WORKERS


def test_what_travels_meanwhile_makes_nobody_wait(tmp_path):
    """t_m below tau t_c: overlapped no wait, blocking a wait of t_m / (tau t_c + t_m)."""
    fleet = without_server(fleet_of(tmp_path, [1.0] * WORKERS, rate="20 kB/s"))
    overlapped = trained(small_job(), fleet, "overlap-local-sgd", duration_s=2, tau=4)
    blocking = trained(small_job(), fleet, "local-sgd", duration_s=2, tau=4)

    assert max(overlapped.wait_shares()) < 0.01
    assert min(blocking.wait_shares()) > 0.2


@pytest.mark.parametrize(
    ("strategy", "numbers", "says"),
    [
        ("overlap-local-sgd", {"alpha": 1.0}, "alpha must be from 0 to below 1"),
        ("overlap-local-sgd", {"beta": -0.1}, "beta must be from 0 to below 1"),
        ("overlap-local-sgd", {"velocity": "speed"}, "param or grad units"),
        ("cocod", {"tau": 0}, "no average is made every 0 steps"),
        ("streaming-diloco", {"delay": 30}, "lands after 30"),
        ("streaming-diloco", {"blend": 0.0, "delay": 20}, "would be thrown away"),
        ("streaming-diloco", {"blend": 1.0}, "no worker would ever take the anchor"),
        ("diloco", {"rate": 0.0}, "does not move at a rate of 0"),
        ("easgd", {"alpha": 1.0}, "alpha must be from 0 to below 1"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(strategy, numbers, says):
    """Before anything is trained."""
    with pytest.raises(InputError, match=says):
        registry.get("strategy", strategy).function(**numbers)


def test_elastic_pulls_that_overshoot_are_refused(tmp_path):
    """Three workers that pull by 0.4 each; the message says what three may do."""
    with pytest.raises(InputError, match="beyond their mean") as caught:
        trained(small_job(), fleet_of(tmp_path, [1.0] * 3), "easgd", alpha=0.4)
    assert "0.333" in caught.value.fix


def test_more_fragments_than_parameters_are_refused(tmp_path):
    """When the node is made."""
    with pytest.raises(InputError, match="4 parameters make no 9 fragments"):
        trained(small_job(), fleet_of(tmp_path, [1.0]), "streaming-diloco", fragments=9)
