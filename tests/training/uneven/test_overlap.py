"""Overlap Local-SGD and its siblings, each beside its own ten lines."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.training.uneven.small import fleet_of, small_job, trained, without_server
from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.training.uneven.job import FlatModel, Samples, step_seed
from windtunnel.training.uneven.partitions import split

WORKERS, STEPS = 3, 40


def _direct(rule, tau: int) -> list[torch.Tensor]:
    """Weights of three workers after 40 steps; ``rule(round)`` is called with their weights every ``tau`` steps."""
    job = small_job(momentum=0.9)
    flat = FlatModel(job, 0)
    parts = split(job.sample_labels(), WORKERS, fleet_partition())
    samples = [Samples(part, 0, rank) for rank, part in enumerate(parts)]
    nodes = [flat.node(rank, WORKERS) for rank in range(WORKERS)]
    for step in range(1, STEPS + 1):
        for rank, node in enumerate(nodes):
            chosen = samples[rank].draw(job.batch_size)
            gradient, _ = flat.gradient(node.weights, flat.buffers(), chosen, step_seed(0, rank, step - 1))
            node.apply(gradient)
        if step % tau == 0:
            for node, new in zip(nodes, rule([node.weights.clone() for node in nodes]), strict=True):
                node.weights.copy_(new)
    return [node.weights for node in nodes]


def fleet_partition():
    from windtunnel.training.uneven.partitions import Partition

    return Partition()


def _ours(tmp_path, strategy: str, **numbers) -> np.ndarray:
    """The mean of three equal workers after 40 steps, before their 41st ends."""
    fleet = without_server(fleet_of(tmp_path, [1.0] * WORKERS, rate="1 GB/s", latency="10 us"))
    run = trained(small_job(momentum=0.9), fleet, strategy, duration_s=0.401 + 0.002, **numbers)
    assert len(run.steps) == STEPS * WORKERS
    return run.weights


def _overlap(alpha: float, beta: float):
    z, v = FlatModel(small_job(), 0).initial.clone(), [0.0] * WORKERS

    def rule(xs):
        nonlocal z
        xs = [(1 - alpha) * x + alpha * z for x in xs]
        for at, x in enumerate(xs):
            v[at] = beta * v[at] - (x - z)
        z = sum(z - one for one in v) / WORKERS
        return xs

    return rule


def _slowmo(beta: float):
    z, u = FlatModel(small_job(), 0).initial.clone(), 0.0

    def rule(xs):
        nonlocal z, u
        u = beta * u + (sum(xs) / WORKERS - z)
        z = z + u
        return [z] * WORKERS

    return rule


def _cocod():
    z = FlatModel(small_job(), 0).initial.clone()
    last = [z] * WORKERS

    def rule(xs):
        nonlocal z, last
        xs = [z + (x - before) for x, before in zip(xs, last, strict=True)]
        z, last = sum(xs) / WORKERS, xs
        return xs

    return rule


def _easgd(alpha: float):
    z = FlatModel(small_job(), 0).initial.clone()

    def rule(xs):
        nonlocal z
        pulled = [x - alpha * (x - z) for x in xs]
        z = z + alpha * sum(x - z for x in xs)
        return pulled

    return rule


def _diloco(rate: float, momentum: float):
    z, v = FlatModel(small_job(), 0).initial.clone(), 0.0

    def rule(xs):
        nonlocal z, v
        delta = z - sum(xs) / WORKERS
        v = momentum * v + delta
        z = z - rate * (delta + momentum * v)
        return [z] * WORKERS

    return rule


CASES = [
    ("overlap-local-sgd", {"alpha": 0.6, "beta": 0.7, "tau": 2}, _overlap(0.6, 0.7)),
    ("overlap-local-sgd", {"alpha": 0.3, "beta": 0.0, "tau": 4}, _overlap(0.3, 0.0)),
    ("slowmo", {"tau": 4, "beta": 0.5}, _slowmo(0.5)),
    ("cocod", {"tau": 4}, _cocod()),
    ("easgd", {"tau": 4, "alpha": 0.1}, _easgd(0.1)),
    ("diloco", {"tau": 4, "rate": 0.7, "momentum": 0.9}, _diloco(0.7, 0.9)),
    ("local-sgd", {"tau": 4}, _slowmo(0.0)),
]


@pytest.mark.parametrize(("strategy", "numbers", "rule"), CASES)
def test_each_setting_is_its_own_ten_lines(tmp_path, strategy, numbers, rule):
    """The mean of the workers after twenty rounds or ten, to 1e-6."""
    expected = torch.stack(_direct(rule, numbers["tau"])).mean(0).numpy()
    off = np.abs(_ours(tmp_path, strategy, **numbers) - expected).max()

    assert off < 1e-6 * max(1.0, np.abs(expected).max())


def test_velocities_in_both_units_agree_at_a_constant_rate(tmp_path):
    """They differ by rounding only."""
    one, other = (_ours(tmp_path, "overlap-local-sgd", velocity=unit) for unit in ("param", "grad"))

    assert np.abs(one - other).max() < 1e-5


def test_without_pull_workers_stay_alone(tmp_path):
    """alpha = 0: each is what it is without the others."""
    expected = torch.stack(_direct(lambda xs: xs, 2)).mean(0).numpy()

    assert np.abs(_ours(tmp_path, "overlap-local-sgd", alpha=0.0) - expected).max() < 1e-6


def test_streaming_with_one_fragment_and_no_delay_is_diloco(tmp_path):
    """blend 0 takes the anchor whole."""
    one = _ours(tmp_path, "streaming-diloco", tau=4, fragments=1, delay=0, blend=0.0)

    assert np.abs(one - _ours(tmp_path, "diloco", tau=4)).max() < 1e-6


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
    ],
)
def test_numbers_that_mean_nothing_are_refused(strategy, numbers, says):
    """Before anything is trained."""
    with pytest.raises(InputError, match=says):
        registry.get("strategy", strategy).function(**numbers)


def test_more_fragments_than_parameters_are_refused(tmp_path):
    """When the node is made."""
    with pytest.raises(InputError, match="4 parameters make no 9 fragments"):
        trained(small_job(), fleet_of(tmp_path, [1.0]), "streaming-diloco", fragments=9)
