"""Pages in random order: what is read is summed right, and far pages cost no less than near ones."""

import numpy as np
import pytest

pytest.importorskip("tvm")

from windtunnel.cost.programs import pages
from windtunnel.cost.programs.build import ISAS
from windtunnel.cost.programs.worker import Worker


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

    assert rates["last_cache_bytes"] in pages.SHARED_BYTES
    assert 0 < rates["page_bandwidth_bytes_per_s"] <= rates["cache_page_bandwidth_bytes_per_s"]
