"""Pages in random order: what is read is summed right, and far pages cost no less than near ones."""

import numpy as np
import pytest

pytest.importorskip("tvm")

from windtunnel.systems.tensor_programs.run import pages
from windtunnel.systems.tensor_programs.run.build import ISAS
from windtunnel.systems.tensor_programs.run.worker import Worker


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_reader_sums_the_pages_of_each_thread(num_threads):
    generator = np.random.default_rng(0)
    runtime = pytest.importorskip("tvm.runtime")
    data = generator.uniform(-1, 1, (12, pages.PAGE_ELEMENTS)).astype(np.float32)
    order = generator.permutation(12)[: 5 * num_threads].reshape(num_threads, 5).astype(np.int32)
    room = runtime.empty((num_threads, pages.PAGE_ELEMENTS), "float32", runtime.cpu())

    # checks what is computed, and refuses what is wrong
    pages.build(
        pages.reader(12, order.shape), "sse4.2", [runtime.tensor(data), runtime.tensor(order), room], data[order].sum(1)
    )

    np.testing.assert_allclose(room.numpy(), data[order].sum(axis=1), rtol=1e-5, atol=1e-5)


def test_a_sheet_knows_what_pages_cost():
    with Worker() as worker:
        rates = worker.ask("describe", next(iter(ISAS)), 1)

    assert 2**20 < rates["last_cache_bytes"] <= pages.SHARED_BYTES[-1]
    assert rates["others_bandwidth_bytes_per_s"] >= 0
    assert 0 < rates["page_bandwidth_bytes_per_s"] <= rates["cache_page_bandwidth_bytes_per_s"]


def test_what_a_shared_cache_keeps_is_seen_in_how_larger_sets_are_read():
    near_s, far_s, kept_bytes = 1e-11, 8e-11, 14 * 2**20
    times = {size: near_s + max(0.0, 1 - kept_bytes / size) * (far_s - near_s) for size in pages.SHARED_BYTES}

    assert pages.resident_bytes(times, near_s, far_s) == pytest.approx(kept_bytes)
    assert pages.resident_bytes(dict.fromkeys(pages.SHARED_BYTES, near_s), near_s, far_s) == pages.SHARED_BYTES[-1]


@pytest.mark.parametrize("rate", [0.0, 1e9, 5e9, 5e11])
def test_what_others_put_into_a_shared_cache_is_seen_in_what_waiting_costs(rate):
    near_s, far_s, kept_bytes, size_bytes = 1e-11, 8e-11, 16e6, 8_000_000
    times = {
        wait: near_s + max(0.0, 1 - kept_bytes / (size_bytes + rate * wait)) * (far_s - near_s)
        for wait in pages.WAITS_S
    }
    found = pages.others_rate(times, size_bytes, kept_bytes, near_s, far_s)

    if rate < 1e11:
        assert found == pytest.approx(rate)
    else:  # all was gone after the first wait: at least so fast
        assert 1e10 < found <= rate
