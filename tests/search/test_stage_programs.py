"""The programs over stages agree where they solve the same problem: a chain on equal devices, without messages."""

import itertools
import math

import numpy as np
import pytest

from windtunnel.search.downsets import chain, downsets
from windtunnel.search.minmax import solve
from windtunnel.search.work import DeviceType, Groups, Work
from windtunnel.systems.chips.stages import Job, Network, Stages
from windtunnel.systems.pipelines.piper import plan_piper
from windtunnel.systems.pipelines.piper_format import PiperProblem

NO_MESSAGES = Groups(
    np.zeros(0, np.int32), np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0), np.zeros(0, np.bool_)
)


def by_hand(times, num_devices):
    """The least largest part of all ways to cut a list."""
    num = len(times)
    return min(
        max(sum(times[first:last]) for first, last in itertools.pairwise((0, *cuts, num)))
        for count in range(min(num_devices, num))
        for cuts in itertools.combinations(range(1, num), count)
    )


def by_minmax(times, num_devices, lattice):
    num = len(times)
    work = Work((DeviceType("gpu", num_devices),), np.array(times)[:, None], np.zeros(num),
                np.zeros((num, 1), np.int64), NO_MESSAGES, np.zeros(num))  # fmt: skip
    return solve(lattice, work).value


def by_piper(times, num_devices):
    """One tensor degree, one variant, one microbatch, so that no stage is repeated."""
    num = len(times)
    time_NTV, none_NTV, no_sync_ETV = np.array(times)[:, None, None], np.zeros((num, 1, 1)), np.zeros((num - 1, 1, 1))
    before = np.arange(num - 1)
    plan = plan_piper(PiperProblem(
        tuple(map(str, range(num))), (1,), ("plain",), time_NTV, none_NTV, none_NTV, none_NTV, before, before + 1,
        np.zeros(num - 1), no_sync_ETV, no_sync_ETV, num_devices, math.inf, 1.0, 1,
    ))  # fmt: skip
    return plan.time_s


def by_phaze(times, num_devices):
    """So many microbatches that only the slowest stage counts, and weights that no second pipeline is worth."""
    num = len(times)
    before, none_LT = np.arange(num - 1), np.zeros((num, 1))
    network = Network(tuple(map(str, range(num))), (1,), before, before + 1, np.zeros((num - 1, 1)), none_LT + 1.0,
                      none_LT, none_LT, none_LT, np.zeros(num, np.bool_))  # fmt: skip
    job = Job(num_devices, memory_bytes=1e9, bandwidth_bytes_per_s=1e-12, num_microbatches=1_000_000)
    plan = Stages.of(network, job).best(np.array(times)[:, None] / 2, np.array(times)[:, None] / 2)
    assert 1 == plan.num_pipelines
    return max(stage.load_s for stage in plan.stages)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("num_devices", [1, 2, 3, 7])
def test_four_ways_to_cut_a_chain_agree(seed, num_devices):
    times = np.random.default_rng(seed).integers(1, 20, 6).astype(float).tolist()
    before = np.arange(len(times) - 1)
    expected = by_hand(times, num_devices)

    assert expected == by_minmax(times, num_devices, chain(range(len(times))))
    assert expected == by_minmax(times, num_devices, downsets(len(times), before, before + 1))
    assert expected == pytest.approx(by_piper(times, num_devices))
    assert expected == pytest.approx(by_phaze(times, num_devices))
