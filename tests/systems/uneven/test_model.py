"""Training in virtual time equals what it says it simulates."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

from tests.systems.uneven.small import fleet_of, serial, small_job, trained, without_server
from windtunnel.errors import FlightError, InputError
from windtunnel.systems.uneven.job import Samples
from windtunnel.systems.uneven.partitions import Partition, split
from windtunnel.systems.uneven.policy import Action, Finished, Policy, Worker
from windtunnel.systems.uneven.strategies.adsp import adsp

ALONE = [("bsp", {}), ("ssp", {}), ("asp", {}), ("local-sgd", {"tau": 3}), ("adsp", {"period_s": 0.2, "commits": 4})]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("strategy", "numbers"), ALONE)
def test_one_worker_is_serial_sgd_bit_for_bit(tmp_path, strategy, numbers, momentum):
    """Without others, every strategy is the plain loop."""
    job, fleet = small_job(momentum=momentum), fleet_of(tmp_path, [1.0])
    fleet = without_server(fleet) if strategy in ("bsp", "local-sgd") else fleet
    run = trained(job, fleet, strategy, **numbers)

    num_steps = len(run.steps)
    done = num_steps
    if strategy in ("ssp", "asp", "adsp"):  # the server has what was committed and has arrived
        done = [at for at in range(num_steps, -1, -1) if np.array_equal(serial(job, np.arange(160), at), run.weights)]
        done = done[0] if done else -1
        assert num_steps - done <= (1 if strategy != "adsp" else 20)
    assert num_steps > 20
    assert np.array_equal(serial(job, np.arange(160), done), run.weights)


@pytest.mark.parametrize("over_server", [True, False])
def test_bsp_is_sgd_on_the_mean_gradient(tmp_path, over_server):
    """Four workers that wait for each other take the step of one worker with their batches together."""
    job, fleet = small_job(), fleet_of(tmp_path, [1.0, 0.5, 1.0, 0.25])
    fleet = fleet if over_server else without_server(fleet)
    run = trained(job, fleet, "bsp")

    parts = split(job.sample_labels(), 4, fleet.partition)
    samples = [Samples(part, 0, rank) for rank, part in enumerate(parts)]
    torch.manual_seed(0)
    module = job.model()
    optimizer = job.optimizer(list(module.parameters()))
    off = []
    for _ in range(min(int((run.steps[:, 0] == worker).sum()) for worker in range(4))):
        optimizer.zero_grad()
        for one in samples:
            chosen = one.draw(job.batch_size)
            (job.loss(module(job.inputs[chosen]), job.targets[chosen]) / 4).backward()
        optimizer.step()
        expected = torch.cat([one.detach().reshape(-1) for one in module.parameters()]).numpy()
        off.append(float(np.abs(expected - run.weights).max()))

    assert len(off) > 10
    assert min(off[-2:]) < 1e-6  # the last sum may still have been under way


def test_bsp_takes_the_time_of_the_slowest_and_of_the_sum(tmp_path):
    """Step, vector up, vector down: to the nanosecond, on a wire that nobody shares."""
    job = small_job()
    run = trained(job, fleet_of(tmp_path, [1.0, 0.25], rate="1 MB/s", latency="4 ms"), "bsp")

    num_bytes = 4 * len(run.weights)
    travel_ns = num_bytes * 1000 + 2_000_000 + 0  # at 1 MB/s; half of the card's latency on each way
    second = run.steps[run.steps[:, 0] == 1][1]
    assert abs(int(second[1]) - (40_000_000 + 2 * travel_ns)) <= 2


def test_equal_seeds_give_equal_runs(tmp_path):
    """Events and weights, bit for bit."""
    job, fleet = small_job(), fleet_of(tmp_path, [1.0, 0.5, 0.3])
    runs = [trained(job, fleet, "adsp", period_s=0.1, epoch_periods=4) for _ in range(2)]

    assert np.array_equal(runs[0].weights, runs[1].weights)
    assert np.array_equal(runs[0].steps, runs[1].steps)
    assert np.array_equal(runs[0].messages, runs[1].messages)
    assert runs[0].points == runs[1].points


def test_ssp_keeps_its_bound(tmp_path):
    """No worker begins a step more than that many commits ahead of the slowest."""
    run = trained(small_job(), fleet_of(tmp_path, [1.0, 0.1], rate="100 MB/s"), "ssp", duration_s=2, staleness=2)
    counts = [0, 0]
    ahead = []
    for worker, *_ in run.steps.tolist():
        counts[worker] += 1
        ahead.append(counts[0] - counts[1])

    assert max(ahead) <= 3 + 1  # one step while the slowest one's commit travels
    assert counts[0] <= counts[1] + 4


def test_adsp_never_waits_and_commits_equally_often(tmp_path):
    """Workers of unequal speed end each period with commits that differ by one at most."""
    run = trained(small_job(), fleet_of(tmp_path, [1.0, 0.5, 0.25, 0.2]), "adsp", duration_s=4, period_s=0.5, commits=3)
    commits = run.messages[run.messages[:, 1] == 4]
    for period in range(1, 8):
        counts = [int((commits[commits[:, 3] <= period * 500_000_000][:, 0] == worker).sum()) for worker in range(4)]
        assert max(counts) - min(counts) <= 1, (period, counts)

    assert max(run.wait_shares()) < 0.01


def test_one_commit_per_period_is_made(tmp_path):
    """It is due near the period's end, and sent when the running batch is done, perhaps in the next period."""
    fleet = fleet_of(tmp_path, [1.0, 0.1])
    run = trained(small_job(), fleet, "adsp", duration_s=4, period_s=0.5, commits=1)
    commits = run.messages[run.messages[:, 1] == 2]
    counts = [int((commits[:, 0] == worker).sum()) for worker in range(2)]

    assert min(counts) >= 6
    assert run.points[-1].loss < 0.9 * run.points[0].loss


def test_a_batch_tuned_to_speed_ends_at_the_same_time(tmp_path):
    """After the first steps the workers' computing times differ by their rounding only."""
    run = trained(small_job(batch_size=64), fleet_of(tmp_path, [1.0, 0.5]), "batchtune", duration_s=2)
    last = [run.steps[run.steps[:, 0] == worker][-1] for worker in range(2)]
    times = [int(one[2] - one[1]) for one in last]

    assert sum(int(one[3]) for one in last) == 128
    assert max(times) / min(times) < 1.03


def test_a_rate_that_changes_is_followed(tmp_path):
    """A message under way when its wire slows down takes longer."""
    (tmp_path / "rate.csv").write_text("t_s,bytes_per_s\n0,1000000\n0.5,10000\n", encoding="utf-8")
    path = tmp_path / "c.toml"
    path.write_text(
        'step_time="10 ms"\n[server]\nup="1 GB/s"\ndown="1 GB/s"\n[[workers]]\nup="rate.csv"\ndown="1 GB/s"\n',
        encoding="utf-8",
    )
    from windtunnel.systems.uneven.fleet import read_fleet

    run = trained(small_job(), read_fleet(path), "asp")
    ups = run.messages[run.messages[:, 0] == 0]
    took = ups[:, 3] - ups[:, 2]

    size = int(ups[0, 4])
    assert abs(int(took[0]) - size * 1000) <= 2
    assert abs(int(took[-1]) - size * 100_000) <= 2


class _Nan(Worker):
    def on_step(self, step: Finished, now_ns: int) -> list[Action]:
        raise AssertionError("no strategy sees such a gradient")


class _Idle(Worker):
    def on_step(self, step: Finished, now_ns: int) -> list[Action]:
        return []


def test_a_gradient_that_is_no_number_names_its_worker(tmp_path):
    """The step fails; nothing is applied."""
    from windtunnel.systems.uneven.goal import Goal
    from windtunnel.systems.uneven.model import train_virtually

    def broken() -> nn.Module:
        network = nn.Linear(6, 4)
        with torch.no_grad():
            network.weight.fill_(float("inf"))
        return network

    job = small_job(model=broken)
    with pytest.raises(FlightError, match="worker 0 has a gradient that is not finite"):
        train_virtually(job, fleet_of(tmp_path, [1.0]), "nan", Policy(_Nan), Goal(10**9))
    with pytest.raises(FlightError, match="deadlock under"):
        train_virtually(small_job(), fleet_of(tmp_path, [1.0]), "idle", Policy(_Idle), Goal(2 * 10**9))


def test_what_a_fleet_lacks_is_said(tmp_path):
    """No server, no way between two workers."""
    fleet = fleet_of(tmp_path, [1.0, 1.0])
    with pytest.raises(InputError, match="needs a parameter server"):
        trained(small_job(), without_server(fleet), "adsp")
    path = tmp_path / "c.toml"
    path.write_text('step_time="1 ms"\n[[workers]]\nname="a"\n[[workers]]\nname="b"\n', encoding="utf-8")
    from windtunnel.systems.uneven.fleet import read_fleet

    with pytest.raises(InputError, match="no route a → b"):
        trained(small_job(), read_fleet(path), "bsp")


def _normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4))


@pytest.mark.parametrize(
    ("model", "kind", "is_warned"),
    [(_normed, "by_label", True), (_normed, "iid", False), (None, "by_label", False)],
)
def test_batch_norms_on_skewed_shares_are_warned_of(tmp_path, model, kind, is_warned):
    """Each worker's batches are then of its own classes alone."""
    fleet = dataclasses.replace(fleet_of(tmp_path, [1.0, 1.0]), partition=Partition(kind))
    run = trained(small_job(model=model), fleet, "bsp", 0.1)

    assert is_warned == any("group-norm" in text for text in run.warnings)


@pytest.mark.parametrize("wrong", [{"period_s": 0.0}, {"period_s": math.nan}, {"epoch_periods": 0}, {"commits": -1}])
def test_numbers_that_adsp_cannot_have_are_named(wrong):
    with pytest.raises(InputError, match="ADSP needs a period above 0"):
        adsp(**wrong)


def test_adsp_may_commit_once_per_period_and_decide_in_every_period():
    assert adsp(commits=1, epoch_periods=1).shape is not None
