"""The loader's graph: its replay is the recurrence, shared bandwidth and cores, and the named cause."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.systems.dataio.reference import loader_times
from windtunnel.simulate import replay
from windtunnel.systems.dataio.loader_graph import Batches, LoaderSetup, loader_graph
from windtunnel.systems.dataio.model import find_bottleneck, simulate

BATCH = 4


def batches(ranks: int, steps: int, **columns: Any) -> Batches:
    """Batches of equal cost, zero where nothing is given."""
    names = ("wait_ns", "size_bytes", "overhead_ns", "decode_ns", "compute_ns")
    arrays = {name: np.full((ranks, steps), columns.pop(name, 0), np.int64) for name in names}
    return Batches(**arrays, **columns)


@st.composite
def cases(draw: Any) -> tuple[Batches, LoaderSetup]:
    """Costs of any batches, and any loader."""
    ranks, steps = draw(st.integers(1, 3)), draw(st.integers(1, 25))

    def table(largest: int) -> Any:
        flat = draw(st.lists(st.integers(0, largest), min_size=ranks * steps, max_size=ranks * steps))
        return np.array(flat, np.int64).reshape(ranks, steps)

    costs = Batches(
        table(50), np.zeros((ranks, steps), np.int64), table(20), table(90), table(100),
        draw(st.integers(0, 9)), draw(st.integers(0, 5)), draw(st.integers(0, 5)),
    )  # fmt: skip
    return costs, LoaderSetup(draw(st.integers(0, 5)), draw(st.integers(1, 4)), num_cores=64)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_the_replay_is_the_loaders_recurrence(case: tuple[Batches, LoaderSetup]) -> None:
    """Equal to the last ns, for any costs, workers, prefetch factors and ranks."""
    costs, setup = case
    make = (costs.wait_ns + costs.overhead_ns + costs.decode_ns).tolist()

    timeline = replay(loader_graph(costs, setup))

    got, end = loader_times(
        make,
        costs.compute_ns.tolist(),
        setup.num_workers,
        setup.prefetch_factor,
        costs.transfer_ns,
        costs.get_ns,
        costs.barrier_ns,
    )
    count = costs.num_ranks * costs.num_steps
    assert [time for row in got for time in row] == timeline.finish_ns[2 * count : 3 * count].tolist()
    assert end == timeline.finish_ns[4 * count :].tolist()


def test_readers_share_the_bandwidth_of_the_storage() -> None:
    """Four streams of at most 1 GB/s on a pool of 2 GB/s: 1 MB takes 2 ms, hence two batches per ms of the pool."""
    costs = batches(1, 200, size_bytes=1_000_000)
    setup = LoaderSetup(4, 2, num_cores=8, pool_bytes_per_s=2e9, stream_bytes_per_s=1e9)

    wall_s = simulate(costs, setup, BATCH)[0].wall_s

    assert abs(wall_s / (200 * 1e6 / 2e9) - 1) < 0.02


def test_one_stream_does_not_exceed_its_cap() -> None:
    costs = batches(1, 100, size_bytes=1_000_000)
    setup = LoaderSetup(1, 2, num_cores=8, pool_bytes_per_s=4e9, stream_bytes_per_s=1e9)

    assert abs(simulate(costs, setup, BATCH)[0].wall_s / 0.1 - 1) < 0.01


def test_a_disk_that_saves_up_delivers_while_a_worker_decodes_or_the_accelerator_computes() -> None:
    """1 MB per batch at 1 GB/s in the long run takes 1 ms, at 10 GB/s at once; decoding or computing takes 0.8 ms."""
    rates = {"num_cores": 8, "pool_bytes_per_s": 1e9, "stream_bytes_per_s": 1e10}
    decoding = batches(1, 100, size_bytes=1_000_000, decode_ns=800_000, num_samples=100)
    computing = batches(1, 100, size_bytes=1_000_000, compute_ns=800_000)

    for costs, num_workers in ((decoding, 1), (computing, 0)):
        strict, saving = (
            simulate(costs, LoaderSetup(num_workers, 2, burst_bytes=burst, **rates), BATCH)[0].wall_s / 0.1
            for burst in (0.0, 4e6)
        )
        assert abs(saving / 1.0 - 1) < 0.03, num_workers
        assert strict > 1.5, num_workers


def test_what_a_bucket_does_not_hold_is_waited_for() -> None:
    """A quarter of each batch is there when it is requested: 0.75 ms and computing are left."""
    costs = batches(1, 100, size_bytes=1_000_000, compute_ns=800_000)
    setup = LoaderSetup(0, 2, 8, pool_bytes_per_s=1e9, stream_bytes_per_s=1e10, burst_bytes=250_000)

    assert abs(simulate(costs, setup, BATCH)[0].wall_s / 0.155 - 1) < 0.02


def test_more_workers_than_cores_decode_no_faster() -> None:
    costs = batches(1, 200, decode_ns=1_000_000)

    two = simulate(costs, LoaderSetup(2, num_cores=2), BATCH)[0].wall_s
    eight = simulate(costs, LoaderSetup(8, num_cores=2), BATCH)[0].wall_s

    assert abs(eight / two - 1) < 0.05


def test_every_planted_cause_is_named() -> None:
    busy = {"compute_ns": 1_000}
    setup = LoaderSetup(4, 2, num_cores=4, pool_bytes_per_s=1e9, stream_bytes_per_s=1e9)
    planted = {
        "accelerator": (batches(1, 64, compute_ns=10_000_000, decode_ns=1_000_000), setup),
        "storage bandwidth": (batches(1, 64, size_bytes=10_000_000, decode_ns=100_000, **busy), setup),
        "decoding": (batches(1, 64, decode_ns=10_000_000, size_bytes=1000, **busy), setup),
        "per-sample overhead": (batches(1, 64, overhead_ns=10_000_000, **busy), setup),
        "workers": (batches(1, 64, wait_ns=10_000_000, **busy), LoaderSetup(1, 2, num_cores=4)),
    }

    named = {name: find_bottleneck(*case).cause for name, case in planted.items()}

    assert named == {name: name for name in planted}
