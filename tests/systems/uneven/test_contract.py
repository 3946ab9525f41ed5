"""Every strategy keeps what others' strategies are held to."""

from __future__ import annotations

import pytest

from tests.systems.uneven.test_run import JOB
from windtunnel import registry
from windtunnel.systems.uneven.testing import StrategyContract


@pytest.mark.parametrize("strategy", sorted(registry.all("strategy")))
def test_a_strategy_keeps_the_contract(strategy, tmp_path):
    """All tests of the contract, one strategy after the other."""

    class Ours(StrategyContract):
        name = strategy

        def job(self, folder):
            (folder / "job.py").write_text(JOB, encoding="utf-8")
            return f"{folder / 'job.py'}:make"

    held = Ours()
    held.test_its_name_can_be_typed()
    held.test_it_states_where_it_comes_from()
    held.test_it_says_what_it_does_in_a_sentence()
    held.test_a_near_name_is_offered_it()
    held.test_it_trains_and_says_the_same_twice(tmp_path)
    held.test_it_goes_on_without_a_worker_or_says_that_it_cannot(tmp_path)
