"""DLion and those it is compared with."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.systems.uneven.small import fleet_of, small_job, trained, without_server
from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.systems.uneven.policy import sparse_bytes
from windtunnel.systems.uneven.strategies.dlion import BatchPlan, Power, equal_times, largest_that_fits

OFF = {"adjust_every": 0, "transfer_every": 0}
FREE = {"rate": "10 GB/s", "latency": "0 us"}


@given(st.integers(1, 300), st.integers(0, 5000), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_what_fits_is_sent_and_no_more(size, budget, random):
    """Within the budget, or the least that is always sent; the largest entries of each parameter first."""
    gradient = torch.tensor([random.gauss(0, 1) for _ in range(size)]).nan_to_num().clamp(-5, 5).mul(8).round() / 8
    cut = random.randint(0, size)
    shapes = [one for one in (cut, size - cut) if one]
    indices = largest_that_fits(gradient, shapes, budget, 0.85)
    least = largest_that_fits(gradient, shapes, 0, 0.85)

    assert sparse_bytes(len(indices), size) <= max(budget, sparse_bytes(len(least), size))
    if sparse_bytes(int((gradient != 0).sum()), size) <= budget:
        assert len(indices) == int((gradient != 0).sum())
    assert set(least.tolist()) <= set(indices.tolist())
    begin = 0
    for one in shapes:
        part = gradient[begin : begin + one].abs()
        chosen = [at - begin for at in indices.tolist() if begin <= at < begin + one]
        left = sorted(set(range(one)) - set(chosen))
        if chosen and left:
            assert part[chosen].min() >= part[left].max()
        begin += one


def test_nothing_of_zeros_is_sent():
    """A parameter whose gradient is zero has no largest entry."""
    assert len(largest_that_fits(torch.zeros(10), [10], 1e9, 0.85)) == 0
    assert largest_that_fits(torch.tensor([0.0, 0.0, 1.0, 0.5]), [2, 2], 8, 0.85).tolist() == [2]


def test_every_sample_counts_once_while_batches_change(tmp_path):
    """The gradient of a constant loss is the same for any batch: the weights move by rate times it, each step."""
    job = small_job(batch_size=9)
    job = dataclasses.replace(job, loss=lambda out, _: out.sum(1).mean(), model=lambda: torch.nn.Linear(6, 1),
                              inputs=torch.ones(160, 6))  # fmt: skip
    fleet = without_server(fleet_of(tmp_path, [1.0, 1.0, 0.25], **FREE))
    run = trained(job, fleet, "dlion", duration_s=2, adjust_every=6, transfer_every=0)
    torch.manual_seed(0)
    first = torch.nn.Linear(6, 1)
    moved = np.concatenate([one.detach().reshape(-1).numpy() for one in first.parameters()]) - run.weights
    num_steps = int(np.bincount(run.steps[:, 0]).min())

    assert num_steps > 12
    assert np.allclose(moved / 0.1, np.round(moved / 0.1), atol=1e-3)
    assert abs(moved[0] / 0.1 - num_steps) <= 1.001


def test_what_was_not_sent_is_kept_for_its_link(tmp_path):
    """Behind a slow card and a quick one, sums of gradients arrive whole in the end: both come near to the same."""
    path = tmp_path / "c.toml"
    card = '[[workers]]\nup = "1 MB/s"\ndown = "{}"\nlatency = "0 us"\n'
    path.write_text('step_time = "10 ms"\n' + card.format("1 MB/s") * 2 + card.format("8 kB/s"), encoding="utf-8")
    from windtunnel.systems.uneven.fleet import read_fleet

    run = trained(small_job(), read_fleet(path), "dlion", duration_s=3, staleness=2, accumulates=True, **OFF)

    assert run.points[-1].loss < 0.5 * run.points[0].loss


def test_batches_follow_power(tmp_path):
    """Three times as fast, three times the samples: steps then take the same time, within 15 %."""
    fleet = without_server(fleet_of(tmp_path, [1.0, 1.0, 0.25], rate="1 GB/s"))
    run = trained(small_job(batch_size=24), fleet, "dlion", duration_s=4, adjust_every=6, transfer_every=0)
    last = [run.steps[run.steps[:, 0] == worker] for worker in range(3)]
    first_ns = [int(one[0, 2] - one[0, 1]) for one in last]
    # of the last whole round, without the step that measures with another batch
    times_ns = [int(np.median(one[-6:, 2] - one[-6:, 1])) for one in last]

    assert max(first_ns) / min(first_ns) >= 3
    assert max(times_ns) / min(times_ns) <= 1.15


def test_a_worker_that_slows_down_gets_less_at_once(tmp_path):
    """Its trace halves its speed long before the next adjustment is due; steps soon take the same time again."""
    (tmp_path / "speed.csv").write_text("t_s,speed\n0,1\n1,0.25\n", encoding="utf-8")
    card = 'up = "1 GB/s"\ndown = "1 GB/s"\n'
    text = f'step_time = "10 ms"\noverhead_time = "2 ms"\n[[workers]]\nspeed = "speed.csv"\n{card}[[workers]]\n{card}'
    (tmp_path / "c.toml").write_text(text, encoding="utf-8")
    from windtunnel.systems.uneven.fleet import read_fleet

    job = small_job(batch_size=24)
    run = trained(job, read_fleet(tmp_path / "c.toml"), "dlion", duration_s=3, adjust_every=60, transfer_every=0)
    slow, other = (run.steps[run.steps[:, 0] == worker] for worker in range(2))
    changed = slow[slow[:, 1] >= 1_000_000_000]

    assert changed[0, 3] > 1.5 * changed[8, 3]
    times = [int((one[:, 2] - one[:, 1])[one[:, 1] >= changed[8, 1]][0]) for one in (slow, other)]
    assert max(times) / min(times) <= 1.2


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0.001, 1)), min_size=1, max_size=8),
    st.integers(50, 5000),
)
def test_batches_that_take_one_time_add_up(said, total):
    """No step is longer than another by more than a sample of each, but of those that have one sample only."""
    shares = equal_times([Power(0, fixed, per, 1) for fixed, per in said], total)
    took = [(fixed + per * b, per) for (fixed, per), b in zip(said, shares, strict=True) if b > 1]

    assert sum(shares) == total
    assert min(shares) >= 1
    if took:
        longest, least = max(took), min(took)
        assert longest[0] - least[0] <= longest[1] + least[1] + 1e-9


def test_all_batches_grow_to_a_tenth_of_the_samples():
    """By steps to 1 %, by a factor to 10 %."""
    plan = BatchPlan(32, 10_000, 32, 2.0)

    assert [plan.after(at) for at in range(7)] == [32, 64, 96, 100, 200, 400, 800]
    assert plan.after(50) == 1000


def test_a_slow_link_gets_less(tmp_path):
    """Bytes to a peer behind a slow card follow its rate; the others get all."""
    path = tmp_path / "c.toml"
    card = '[[workers]]\nup = "1 MB/s"\ndown = "{}"\nlatency = "0 us"\n'
    path.write_text('step_time = "10 ms"\n' + card.format("1 MB/s") * 2 + card.format("8 kB/s"), encoding="utf-8")
    from windtunnel.systems.uneven.fleet import read_fleet

    run = trained(small_job(), read_fleet(path), "dlion", duration_s=3, staleness=2, **OFF)
    sizes = {pair: run.messages[(run.messages[:, 0] == pair[0]) & (run.messages[:, 1] == pair[1])][10:, 4]
             for pair in ((0, 1), (0, 2))}  # fmt: skip

    assert sizes[0, 2].mean() < 0.7 * sizes[0, 1].mean()


def test_the_worst_moves_to_the_best(tmp_path):
    """Data by label: losses differ; weights of the best are asked for and sent."""
    fleet = without_server(fleet_of(tmp_path, [1.0, 1.0], more='[partition]\nkind = "by_label"\n', **FREE))
    run = trained(small_job(), fleet, "dlion", duration_s=1, adjust_every=0, transfer_every=10)
    whole = 4 * len(run.weights)

    assert (run.messages[:, 4] == whole).any()


def test_ako_sends_a_partition_a_step_and_nothing_is_lost(tmp_path):
    """Each step's messages are one part; three steps later the rest has gone, too."""
    fleet = without_server(fleet_of(tmp_path, [1.0] * 3, **FREE))
    quarter = trained(small_job(), fleet, "ako", duration_s=0.203, partitions=4)

    num = len(quarter.weights)
    assert quarter.messages[:, 4].max() <= 4 * (num // 4 + 1)
    from_one_to_one = quarter.messages[(quarter.messages[:, 0] == 0) & (quarter.messages[:, 1] == 1)]
    assert int(from_one_to_one[:20, 4].sum()) == 5 * 4 * num
    assert quarter.points[-1].loss < quarter.points[0].loss


def test_hop_waits_for_all_but_its_backup(tmp_path):
    """With one slow worker and one backup nobody waits for it; without a backup all do."""
    fleet = without_server(fleet_of(tmp_path, [1.0, 1.0, 1.0, 0.1], **FREE))
    free = trained(small_job(), fleet, "hop", duration_s=2)
    bound = trained(small_job(), fleet, "hop", duration_s=2, backup=0)

    assert max(free.wait_shares()) < 0.05
    assert free.points[-1].loss < free.points[0].loss
    assert bound.wait_shares()[0] > 0.5
    assert not free.warnings


@pytest.mark.parametrize(
    ("strategy", "numbers"),
    [("ako", {"partitions": 0}), ("hop", {"staleness": -2}), ("hop", {"backup": -1}), ("dlion", {"transfer": 2.0})],
)
def test_numbers_that_mean_nothing_are_refused(strategy, numbers):
    """Before anything is trained."""
    with pytest.raises(InputError):
        registry.get("strategy", strategy).function(**numbers)
