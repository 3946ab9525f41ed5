"""Predictions that can be computed by hand, and plans that follow from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.systems.dataio.jobs import MS, costs, planned_job
from windtunnel.errors import InputError
from windtunnel.flights import Ledger
from windtunnel.systems.dataio.calibrate import read_costs, write_costs
from windtunnel.systems.dataio.config import TimeDraw
from windtunnel.systems.dataio.flight import LoaderFlight, with_receipts
from windtunnel.systems.dataio.order import Dataset
from windtunnel.systems.dataio.predict import batches_of, predict_job
from windtunnel.systems.dataio.search import Space, count_accelerators, plan_loader


def test_a_loader_that_is_faster_than_the_accelerator_keeps_it_busy() -> None:
    """4 samples in 4 ms from memory, 8 ms from the device, for steps of 10 ms."""
    for cache in ("warm", "cold"):
        prediction = predict_job(planned_job(), costs(), cache=cache)

        assert prediction.au_ratio == pytest.approx(1.0, abs=1e-6)
        assert prediction.bottleneck is not None
        assert prediction.bottleneck.cause == "accelerator"
        assert prediction.meets_target


def test_without_workers_loading_and_computing_alternate() -> None:
    prediction = predict_job(planned_job(num_workers=0), costs(), cache="cold")

    assert prediction.au_ratio == pytest.approx(10 / (10 + 8), abs=1e-3)
    assert prediction.step_ns == pytest.approx(18 * MS, rel=1e-3)
    assert prediction.samples_per_s == pytest.approx(4 / 0.018, rel=1e-3)


def test_ranks_share_the_device() -> None:
    """Eight ranks need 32 MB per step of 10 ms, which takes 32 ms at 1 GB/s."""
    prediction = predict_job(planned_job(4000, num_ranks=8, num_workers=4), costs(num_cores=64, slowdown=[]))

    assert prediction.au_ratio == pytest.approx(10 / 32, abs=0.02)
    assert prediction.bottleneck is not None
    assert prediction.bottleneck.cause == "storage bandwidth"


def test_the_interval_covers_what_samples_that_differ_can_give() -> None:
    prediction = predict_job(
        planned_job(compute=TimeDraw("constant", 0.004)),
        costs(warm_ns=[0.5 * MS, 0.8 * MS, 1.2 * MS, 1.5 * MS]),
        cache="warm",
    )

    assert prediction.au_low is not None
    assert prediction.au_high is not None
    assert prediction.au_low < prediction.au_high
    assert prediction.au_low <= 1.0


def test_the_second_epoch_of_a_cold_start_reads_from_memory() -> None:
    job = planned_job(num_workers=0, epochs=2)

    fits = predict_job(job, costs(), cache="cold-start")
    half = predict_job(job, costs(memory_bytes=200_000_000), cache="cold-start")

    assert [epoch.device_ratio for epoch in fits.epochs] == [1.0, 0.0]
    assert half.epochs[1].device_ratio == pytest.approx(0.5, abs=0.1)


def test_files_of_many_samples_come_from_the_device_once() -> None:
    job = planned_job(dataset=Dataset(10, 40, sample_shuffle="seed"))

    _, device_ratio = batches_of(job, costs(), 1, "cold", None)

    assert device_ratio == 10 / 400


def test_an_epoch_without_steps_is_refused() -> None:
    with pytest.raises(InputError, match="2 files x 1 samples = 2 samples, fewer than batch 4 x 1 ranks = 4"):
        predict_job(planned_job(2), costs())


def test_a_plan_takes_the_fewest_workers_that_suffice() -> None:
    """A batch takes 32 ms, a step 10 ms: three workers give AU 0.93, two 0.62."""
    slow = costs(warm_ns=[8.0 * MS] * 4, cold_ns=[8.1 * MS] * 4, curve={1: 1e10})

    plan = plan_loader(planned_job(), {("npy", 1): slow}, Space(num_workers=(0, 1, 2, 3, 4, 8)))

    assert plan.is_reached
    assert plan.recommended.setting.num_workers == 3
    assert plan.speedup == pytest.approx(3.0, rel=0.05)


def test_a_plan_rewrites_the_data_only_where_nothing_else_suffices() -> None:
    slow = costs(warm_ns=[40.0 * MS] * 4, cold_ns=[41.0 * MS] * 4)
    stores = {("npy", 1): slow, ("indexed_binary", 50): costs(format="indexed_binary")}
    space = Space(stores=(("indexed_binary", 50),))

    plan = plan_loader(planned_job(), stores, space)
    strong = plan_loader(planned_job(), {**stores, ("npy", 1): costs()}, space)

    assert plan.recommended.rewrites
    assert plan.recommended.setting.format == "indexed_binary"
    assert not strong.recommended.rewrites


def test_a_plan_that_reaches_nothing_says_so() -> None:
    hopeless = costs(curve={1: 1e6}, cold_ns=[1000.0 * MS] * 4)

    plan = plan_loader(planned_job(), {("npy", 1): hopeless}, Space(may_cache=False))

    assert not plan.is_reached
    assert plan.max_accelerators == 0


def test_the_storage_feeds_as_many_accelerators_as_its_bandwidth_allows() -> None:
    """Each takes 4 MB per 10 ms, 0.4 GB/s; at AU 0.9, 1 GB/s feeds 2.8."""
    assert count_accelerators(planned_job(num_workers=4), costs(), "cold", 0.9) == 2


def test_flights_that_erred_widen_the_interval(tmp_path: Path) -> None:
    """Five flights, whose steps were 20 % longer than predicted: AU may be a sixth lower."""
    ledger, step_ns = Ledger(tmp_path / "receipts.db"), 18.0 * MS
    prediction = predict_job(planned_job(num_workers=0), costs())
    assert with_receipts(prediction, ledger) == prediction
    for round_number in range(5):
        measured = [1.2 * step_ns + round_number] * 3
        ledger.add(LoaderFlight(prediction, prediction, measured, measured, [0.5] * 3, [0.5] * 3, (1.0, 1.0)).receipt())

    backed = with_receipts(prediction, ledger)

    assert backed.num_receipts == 5
    assert backed.au_low == pytest.approx(prediction.au_ratio / 1.2, rel=1e-3)
    assert backed.au_high == pytest.approx(prediction.au_ratio * 1.2, rel=1e-3)


def test_readers_that_limit_themselves_share_the_limit() -> None:
    """Four workers at 40 MB/s need 100 ms for a batch of 4 MB, whatever the device could give."""
    job = planned_job(num_workers=4, limit_bytes_per_s=40e6)

    assert predict_job(job, costs()).step_ns == pytest.approx(100 * MS, rel=0.05)


def test_costs_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"

    write_costs(path, costs())

    assert read_costs(path) == costs()
    path.write_text('{"costs": {"format": 3}}', encoding="utf-8")
    with pytest.raises(InputError, match="these are no costs of loading"):
        read_costs(path)
