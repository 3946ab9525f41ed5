"""Gaia, DGC and federated averaging: equal to waiting for all where they send all, and exact in bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.training.uneven.small import fleet_of, small_job, trained, without_server
from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.training.uneven.job import FlatModel, Samples, step_seed
from windtunnel.training.uneven.partitions import Partition, split

WORKERS, STEPS = 3, 20


def _direct(learner) -> np.ndarray:
    """The mean of three workers after 20 steps, each with a momentum of its own; ``learner`` exchanges updates."""
    job = small_job(momentum=0.9)
    flat = FlatModel(job, 0)
    parts = split(job.sample_labels(), WORKERS, Partition())
    samples = [Samples(part, 0, rank) for rank, part in enumerate(parts)]
    w = [flat.initial.clone() for _ in range(WORKERS)]
    u = [torch.zeros_like(flat.initial) for _ in range(WORKERS)]
    acc = [torch.zeros_like(flat.initial) for _ in range(WORKERS)]
    for step in range(STEPS):
        for rank in range(WORKERS):
            chosen = samples[rank].draw(job.batch_size)
            gradient, _ = flat.gradient(w[rank], flat.buffers(), chosen, step_seed(0, rank, step))
            u[rank] = 0.9 * u[rank] - 0.1 * gradient
        learner(w, u, acc, flat.shapes)
    return torch.stack(w).mean(0).numpy()


def _bsp(w, u, acc, shapes):
    total = sum(u)
    for one in w:
        one += total


def _gaia(threshold):
    def learner(w, u, acc, shapes):
        sent = []
        for rank in range(WORKERS):
            w[rank] += u[rank]
            acc[rank] += u[rank]
            mask = (w[rank] == 0) | ((acc[rank] / w[rank]).abs() > threshold)
            sent.append(acc[rank] * mask)
            acc[rank][mask] = 0
        for rank in range(WORKERS):
            w[rank] += sum(sent[other] for other in range(WORKERS) if other != rank)

    return learner


def _dgc(sparsity):
    def learner(w, u, acc, shapes):
        sent = []
        for rank in range(WORKERS):
            acc[rank] += u[rank]
            mask = torch.zeros_like(acc[rank], dtype=torch.bool)
            begin = 0
            for size in shapes:
                num = max(1, int(size * (1 - sparsity)))
                mask[acc[rank][begin : begin + size].abs().topk(num).indices + begin] = True
                begin += size
            sent.append(acc[rank] * mask)
            acc[rank][mask] = 0
            u[rank][mask] = 0
        for one in w:
            one += sum(sent)

    return learner


def _run(tmp_path, strategy: str, **numbers):
    fleet = without_server(fleet_of(tmp_path, [1.0] * WORKERS, rate="10 GB/s", latency="0 us"))
    run = trained(small_job(momentum=0.9), fleet, strategy, duration_s=0.203, **numbers)
    assert len(run.steps) == STEPS * WORKERS
    return run


CASES = [
    ("gaia", {"threshold": 0.0}, _bsp),
    ("gaia", {"threshold": 0.05}, _gaia(0.05)),
    ("dgc", {"sparsity": 0.0, "masks_momentum": False}, _bsp),
    ("dgc", {"sparsity": 0.75, "warm_up": 0}, _dgc(0.75)),
]


@pytest.mark.parametrize(("strategy", "numbers", "learner"), CASES)
def test_each_learner_is_its_own_ten_lines(tmp_path, strategy, numbers, learner):
    """Where all is sent, that of workers that add all updates up after each step."""
    expected, found = _direct(learner), _run(tmp_path, strategy, **numbers).weights

    assert np.abs(found - expected).max() < 1e-6 * max(1.0, np.abs(expected).max())


def test_federated_averaging_of_every_step_without_momentum_is_bsp(tmp_path):
    """With the mean as the sum's convention."""
    fleet = without_server(fleet_of(tmp_path, [1.0] * WORKERS, rate="10 GB/s", latency="0 us"))
    one, other = (trained(small_job(), fleet, name, duration_s=0.203, **numbers).weights
                  for name, numbers in (("fedavg", {"local": 1}), ("bsp", {})))  # fmt: skip

    assert np.abs(one - other).max() < 1e-6


def test_dgc_sends_eight_bytes_for_each_of_k_entries(tmp_path):
    """k of each parameter, exactly; fewer as it warms up."""
    shapes = FlatModel(small_job(), 0).shapes
    run = _run(tmp_path, "dgc", sparsity=0.9, warm_up=5)
    levels = [0.75, 0.9]
    expected = [8 * sum(max(1, int(size * (1 - level) + 1e-9)) for size in shapes) for level in levels]
    sizes = run.messages[(run.messages[:, 0] == 0) & (run.messages[:, 1] == 1)][:, 4].tolist()

    assert sizes[:5] == [expected[0]] * 5
    assert set(sizes[5:]) == {expected[1]}


def test_gaia_sends_less_the_more_it_takes_to_be_significant(tmp_path):
    """And less than all."""
    sent = [_run(tmp_path, "gaia", threshold=one).messages[:, 4].sum() for one in (0.0, 0.05, 0.5)]

    assert sent[0] > sent[1] > sent[2]


@pytest.mark.parametrize(("strategy", "numbers"), [("gaia", {"threshold": -1.0}), ("dgc", {"sparsity": 1.0})])
def test_numbers_that_mean_nothing_are_refused(strategy, numbers):
    """Before anything is trained."""
    with pytest.raises(InputError):
        registry.get("strategy", strategy).function(**numbers)
