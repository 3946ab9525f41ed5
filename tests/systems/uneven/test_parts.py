"""Partitions, traces, cluster files, loss curves, sums by messages."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.systems.uneven.small import fleet_of
from windtunnel.errors import InputError
from windtunnel.systems.uneven.fleet import read_fleet
from windtunnel.systems.uneven.partitions import PARTITIONERS, Partition, partition_counts, split
from windtunnel.systems.uneven.policy import Message, Node, sparse_bytes
from windtunnel.systems.uneven.reduction import Ring
from windtunnel.systems.uneven.rewards import Window, fit_curves, reward_pair
from windtunnel.systems.uneven.trace import Trace

LABELS = np.arange(500) % 10


@given(st.sampled_from(sorted(PARTITIONERS)), st.integers(1, 10), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_partitions_hold_every_sample_once(kind, num, seed):
    """Disjoint, complete, and the same for the same seed."""
    parts = split(LABELS, num, Partition(kind, {"min_size": 1} if kind == "dirichlet" else {}, seed))
    again = split(LABELS, num, Partition(kind, {"min_size": 1} if kind == "dirichlet" else {}, seed))

    assert sorted(np.concatenate(parts).tolist()) == list(range(500))
    assert all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))


def test_skew_goes_from_equal_to_by_label():
    """The share of a worker's own classes grows with the skew, to all."""
    shares = []
    for s in (0.0, 0.4, 0.8, 1.0):
        counts = partition_counts(LABELS, split(LABELS, 5, Partition("skew", {"s": s})))
        shares.append(counts[0, [0, 5]].sum() / counts[0].sum())

    assert shares == sorted(shares)
    assert abs(shares[0] - 0.2) < 0.1
    assert shares[-1] == 1.0


@pytest.mark.parametrize(
    ("kind", "parameters", "says"),
    [
        ("dirichlet", {"alpha": 0.0}, "alpha must be above 0"),
        ("skew", {"s": 2.0}, "must be between 0 and 1"),
        ("by_label", {}, "partition 10 has 0 samples"),
        ("magic", {}, "no partitioner is called 'magic'"),
        ("skew", {"q": 1}, "takes other numbers"),
    ],
)
def test_what_cannot_be_shared_out_is_said(kind, parameters, says):
    """With the partitioner, the worker and a remedy."""
    with pytest.raises(InputError, match=says) as error:
        split(LABELS, 11, Partition(kind, parameters))

    assert error.value.where


@given(
    st.lists(st.tuples(st.integers(1, 100), st.floats(0.1, 10)), max_size=5), st.integers(0, 300), st.integers(1, 500)
)
def test_work_along_a_trace_is_done_when_its_integral_is(steps, begin, work):
    """The area under the speed between begin and end is the work."""
    times = np.cumsum([0, *(gap for gap, _ in steps)])
    trace = Trace(tuple(times.tolist()), (1.0, *(value for _, value in steps)))
    end = trace.finish_ns(begin, work)

    fine = np.arange(begin, end) + 0.5
    area = sum(trace.value_at(int(one)) for one in fine)
    assert area >= work - 11  # the last ns may not be full
    assert area <= work + 11


@given(st.integers(1, 7), st.integers(1, 40), st.randoms())
@settings(max_examples=60, deadline=None)
def test_a_ring_adds_up_in_whatever_order_it_is_heard(num, size, random):
    """Messages between two nodes keep their order; anything else may happen first."""
    parts = [torch.randn(size, generator=torch.Generator().manual_seed(rank)) for rank in range(num)]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    rings = [Ring(Node(rank, num, torch.zeros(size), torch.empty(0), optimizer, 1), "sum") for rank in range(num)]
    waiting: list[list[Message]] = [[] for _ in range(num)]

    def post(source, sends):
        for one in sends:
            waiting[one.target].append(Message(source, one.tag, one.values, one.size_bytes, one.about, 0))

    left = list(range(num))
    while left or any(waiting):
        ready = [("add", rank) for rank in left] + [("hear", rank) for rank in range(num) if waiting[rank]]
        what, rank = random.choice(ready)
        if what == "add":
            left.remove(rank)
            post(rank, rings[rank].add(parts[rank]))
        else:
            post(rank, rings[rank].on_message(waiting[rank].pop(0)))
    totals = [ring.total for ring in rings]

    assert all(one is not None and torch.equal(one, totals[0]) for one in totals)
    assert torch.allclose(totals[0], torch.stack(parts).sum(0), atol=1e-5)


@given(st.floats(0.01, 3), st.floats(0.3, 2), st.floats(0, 1.5))
@settings(max_examples=40, deadline=None)
def test_a_curve_without_noise_is_found_again(slope, offset, floor):
    """Its three numbers within 1 %, where the window shows the curve bend."""
    times = np.linspace(0, 20 / slope * offset, 61)
    curve = fit_curves([(times, 1 / (slope * times + offset) + floor)])[0]

    assert curve.slope == pytest.approx(slope, rel=0.01)
    assert curve.offset == pytest.approx(offset, rel=0.01)
    assert curve.floor == pytest.approx(floor, rel=0.01, abs=0.01 / offset)


def test_faster_learning_is_rewarded_under_noise():
    """Two windows in a row, 20 % apart, 2 % noise: the faster one nearly always."""
    rng = np.random.default_rng(0)
    right = 0
    for _ in range(100):
        first, second = _two_windows(rng, 0.02)
        slow, fast = reward_pair(first, second)
        right += fast > slow

    assert right >= 95


def _two_windows(rng: np.random.Generator, noise: float) -> tuple[Window, Window]:
    times = np.linspace(0, 60, 61)
    first = 1 / (0.02 * times + 0.5) + 0.3
    begin = 1 / (first[-1] - 0.3)
    second = 1 / (0.024 * times + begin) + 0.3
    both = (losses * (1 + noise * rng.standard_normal(61)) for losses in (first, second))
    one, other = (tuple(zip(times.tolist(), losses.tolist(), [1.0] * 61, strict=True)) for losses in both)
    return Window(1, one), Window(2, other)


def test_a_sparse_message_takes_the_smaller_of_indices_and_bits():
    """4 bytes each, or one bit per entry."""
    assert sparse_bytes(3, 1000) == 24
    assert sparse_bytes(500, 1000) == 2000 + 125


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "there are no workers"),
        ("[[workers]]\nspeed = 0.0\n", "speed or rate must be above 0"),
        ("[[workers]]\nspeeed = 1.0\n", "'speeed' is no field here"),
        ('[[workers]]\nname="a"\n[[workers]]\nname="a"\n', "two workers are called a"),
        ('[[workers]]\nname="a"\n[[links]]\nfrom="a"\nto="z"\nrate="1 MB/s"\n', "'z' is no node"),
        ('[[workers]]\nup="fast"\n', "not a"),
        ("[[workers]]\ncount = 0\n", "count must be 1 or more"),
        ('[[workers]]\nspeed = "absent.csv"\n', "cannot be read"),
        ("[[workers\n", "cannot be read"),
    ],
)
def test_a_wrong_cluster_file_names_its_field(tmp_path, text, says):
    """What is wrong, in which file, and what to do."""
    path = tmp_path / "c.toml"
    path.write_text('step_time = "10 ms"\n' + text, encoding="utf-8")
    with pytest.raises(InputError, match=says) as error:
        read_fleet(path)

    assert "c.toml" in error.value.where


def test_links_of_two_names_come_before_cards(tmp_path):
    """A link of its own has its own rate and latency."""
    fleet = fleet_of(
        tmp_path, [1.0, 1.0], more='[[links]]\nfrom="w0"\nto="w1"\nrate="5 MB/s"\nlatency="3 ms"\none_way=true\n'
    )

    assert [fleet.wires[one].name for one in fleet.route(0, 1)] == ["w0 → w1"]
    assert fleet.latency_ns(0, 1) == 3_000_000
    assert [fleet.wires[one].name for one in fleet.route(1, 0)] == ["w1 up", "w0 down"]
