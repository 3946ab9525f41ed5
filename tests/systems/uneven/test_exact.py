"""Every strategy beside a few lines of its own: the weights of each worker, to 1e-6 after twenty rounds."""

from __future__ import annotations

import pytest

from tests.systems.uneven.direct import CASES, NO_MOMENTUM
from tests.systems.uneven.small import beside_direct, small_job
from windtunnel import registry

ROUNDS_MS = {"fedavg": 1003, "adacomm": 603, "adsp": 1003}
WITHOUT = {"fedavg of every step", *(name for name, case in CASES.items() if case[0] in NO_MOMENTUM)}
LONGER = {name: 10 * 20 * case[1]["tau"] + 3 for name, case in CASES.items() if "tau" in case[1]}


@pytest.mark.parametrize("case", CASES)
def test_each_strategy_is_its_own_few_lines(case):
    """A momentum of 0.5 where momentum means anything: with 0.9 a sum of three workers magnifies what rounding does."""
    job = small_job(momentum=0.0 if case in WITHOUT else 0.5)
    off, num_steps = beside_direct(job, case, ROUNDS_MS.get(case, LONGER.get(case, 203)))

    assert num_steps >= 30
    assert off <= 1e-6


def test_every_strategy_has_a_direct_form():
    """But SkewScout, which is one of three others whose number moves."""
    assert set(registry.all("strategy")) - {case[0] for case in CASES.values()} == {"skewscout"}
