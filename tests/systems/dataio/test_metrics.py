"""AU and throughput: DLIO's formulas, correct ones, and results of its own runs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shared_data import shared_path
from windtunnel.errors import InputError
from windtunnel.systems.dataio.metrics import BlockTimes, job_metrics
from windtunnel.systems.dataio.results import read_results, write_results

seconds = st.floats(1e-4, 10.0)


@st.composite
def blocks(draw: st.DrawFn) -> BlockTimes:
    """Any block of steps, with some time for barriers."""
    steps = draw(st.integers(1, 30))
    load, compute, barrier = (np.array(draw(st.lists(seconds, min_size=steps, max_size=steps))) for _ in range(3))
    return BlockTimes(load, compute, float((load + compute + barrier).sum()), draw(st.integers(1, 64)))


@given(blocks(), st.integers(0, 3), st.integers(0, 3))
def test_au_and_throughput_are_dlios_formulas(block: BlockTimes, start: int, end: int) -> None:
    """As the program has them: its throughput counts n - 2 steps whatever is excluded."""
    n = block.num_steps
    au, ours = block.au_ratio(start, end), block.samples_per_s(start, end)
    theirs = block.samples_per_s(start, end, is_dlio=True)

    if n <= start + end:
        assert (au, ours, theirs) == (None, None, None)
        return
    proc = block.load_s + block.compute_s
    time = block.wall_s - sum(proc[:start]) - sum(proc[n - end :])
    assert au == pytest.approx(sum(block.compute_s[start : n - end]) / time, abs=1e-9)
    assert theirs == pytest.approx((n - 2) * block.batch_size / time, rel=1e-9)
    assert ours == pytest.approx((n - start - end) * block.batch_size / time, rel=1e-9)


def test_blocks_count_by_their_steps_and_ranks_alike() -> None:
    def block(steps: int, load_s: float) -> BlockTimes:
        return BlockTimes(np.full(steps, load_s), np.ones(steps), steps * (1 + load_s), 2)

    metrics = job_metrics({1: [[block(2, 0.0), block(6, 1.0)], [block(8, 1.0)]]}, num_start=0)

    assert metrics.au_ratios == (pytest.approx(((1.0 * 2 + 0.5 * 6) / 8 + 0.5) / 2),)


def test_too_few_steps_have_no_au_and_a_note_says_why() -> None:
    block = BlockTimes(np.ones(2), np.ones(2), 4.0, 1)

    metrics = job_metrics({1: [[block]]}, num_start=1, num_end=1)

    assert metrics.au_ratio is None
    assert "epoch 1 is undefined: 2 steps per block, of which 1 at the start and 1 at the end" in metrics.notes[0]


def test_the_reference_run_is_recomputed() -> None:
    """Its version leaves out the first step only."""
    folder = shared_path("serve/dlio/reference_run")
    results = read_results(folder)

    ours = [100 * ratio for ratio in results.metrics().au_ratios if ratio is not None]

    assert results.num_ranks == 2
    assert ours == pytest.approx([100 * ratio for ratio in results.reported_au_ratios], abs=0.01)
    # that version's throughput counts all steps over the whole block
    rates = json.loads((folder / "summary.json").read_bytes())["metric"]["train_throughput_samples_per_second"]
    assert rates == pytest.approx(results.metrics(num_start=0).samples_per_s, rel=1e-6)


def test_written_results_are_read_back(tmp_path: Path) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    block = BlockTimes(np.array([2.0, 0.1, 0.1]), np.full(3, 0.5), 3.9, 4)
    epochs = {1: [[block, block], [block, block]], 2: [[block], [block]]}
    starts = {1: [[start, start + timedelta(seconds=4)]] * 2, 2: [[start]] * 2}

    write_results(tmp_path, epochs, starts, num_start=1, num_end=0, record_bytes=1 << 20, extra={})
    results = read_results(tmp_path)

    assert results.metrics().au_ratios == pytest.approx(job_metrics(epochs).au_ratios, abs=1e-6)
    assert results.reported_au_ratios == pytest.approx(results.metrics().au_ratios, abs=1e-6)


def test_a_folder_without_results_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no results of DLIO"):
        read_results(tmp_path)
    (tmp_path / "1_output.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match=r"ranks \[0\] are missing"):
        read_results(tmp_path)
    (tmp_path / "0_output.json").write_text('{"1": {"load": 3}}', encoding="utf-8")
    with pytest.raises(InputError, match="epoch 1 is damaged"):
        read_results(tmp_path)
