"""What all-reduces of any size take between processes of this host."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from windtunnel.cost.rerun.all_reduces import all_reduce_times
from windtunnel.measure import ProfileDatabase


@pytest.mark.slow
def test_real_processes_take_longer_for_more_bytes(tmp_path):
    """A second asking reads the database; another link is another job."""
    database = ProfileDatabase(str(tmp_path / "profile.db"))
    times = all_reduce_times(2, database=database)

    assert 0 < times.duration_ns(1) < times.duration_ns(1 << 24) < times.duration_ns(1 << 26)
    assert times == all_reduce_times(2, database=database)
    assert 1 + len(times.sizes_bytes) == len(database)  # and a product, without a message and with one
    assert 0.0 <= times.lost_ratio < 1.0
