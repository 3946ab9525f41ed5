"""What messages cost computing, measured between processes of this host."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from windtunnel.cost.rerun import CarryingNeed, price_needs
from windtunnel.cost.rerun.carrying import carrying_ratio
from windtunnel.measure import ProfileDatabase


def test_links_of_other_rates_are_other_needs():
    assert CarryingNeed(2, 1e8) == CarryingNeed(2, 1e8)
    assert 4 == len({CarryingNeed(2), CarryingNeed(2, 1e8), CarryingNeed(2, 1e8, 1000), CarryingNeed(3, 1e8)})


@pytest.mark.slow
def test_real_processes_lose_time_to_messages_and_a_second_asking_reads_the_database(tmp_path):
    database = ProfileDatabase(str(tmp_path / "profile.db"))
    need = CarryingNeed(2)
    lost = price_needs([need], database=database)[need]

    assert lost >= 0
    assert lost.spread_ratio >= 0
    assert 1 == len(database)
    assert lost == carrying_ratio(2, database=database)
