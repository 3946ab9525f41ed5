"""Gaia and DGC: exact in bytes. Their equalities are in ``test_exact``."""

from __future__ import annotations

import pytest

from tests.systems.uneven.small import fleet_of, small_job, trained, without_server
from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.systems.uneven.job import FlatModel

WORKERS, STEPS = 3, 20


def _run(tmp_path, strategy: str, **numbers):
    fleet = without_server(fleet_of(tmp_path, [1.0] * WORKERS, rate="10 GB/s", latency="0 us"))
    run = trained(small_job(momentum=0.9), fleet, strategy, duration_s=0.203, **numbers)
    assert len(run.steps) == STEPS * WORKERS
    return run


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
