"""A profile from few of its cells."""

import numpy as np
import pytest

from windtunnel.errors import InputError
from windtunnel.systems.serving.few_shot import estimate_profile, measure_few_cells
from windtunnel.systems.serving.profile import Profile
from windtunnel.systems.serving.search import best_split, soonest_ns

THREADS, BATCHES = range(1, 9), (1, 2, 4, 8, 16, 32, 64)
GRID = [(t, b) for t in THREADS for b in BATCHES]


def law(cell, start=4e6, shared=2e6, own=3e5, power=0.8):
    threads, batch = cell
    return start + batch * (shared / threads**power + own)


def test_a_server_that_keeps_the_law_is_known_from_five_cells():
    found = {cell: law(cell) for cell in [(1, 1), (1, 64), (8, 1), (8, 64), (3, 8)]}

    assert estimate_profile(found, GRID).cells == pytest.approx({cell: law(cell) for cell in GRID}, rel=1e-2)


def test_measured_cells_stay_as_they_are():
    found = {cell: 1.7 * law(cell) for cell in [(1, 1), (8, 64)]} | {(4, 8): law((4, 8))}
    guessed = estimate_profile(found, GRID).cells

    assert found == {cell: guessed[cell] for cell in found}
    assert all(value > 0 for value in guessed.values())


@pytest.mark.parametrize("seed", range(4))
def test_few_cells_choose_nearly_as_well_as_all(seed):
    random = np.random.default_rng(seed)
    truth = {cell: law(cell, power=random.uniform(0.5, 0.9)) * random.uniform(0.9, 1.1) for cell in GRID}
    asked = []

    def measure(cell):
        asked.append(cell)
        return truth[cell]

    found = measure_few_cells(measure, THREADS, BATCHES, 8, max_fraction=0.4)
    guessed, whole = estimate_profile(found, GRID), Profile.of(truth)
    lost = [
        max(truth[cell] for cell in best_split(guessed, 8, batch).cells) / soonest_ns(whole, 8, batch) - 1
        for batch in BATCHES
    ]

    assert len(asked) == len(set(asked)) == len(found) <= 0.4 * len(GRID)
    assert np.mean(lost) <= 0.06


def test_what_is_chosen_in_the_end_was_measured_or_there_was_no_more_to_measure():
    found = measure_few_cells(law, THREADS, BATCHES, 8, max_fraction=1.0)
    guessed = estimate_profile(found, GRID)

    assert all(cell in found for batch in BATCHES for cell in best_split(guessed, 8, batch).cells)
    assert len(found) < len(GRID)


def test_without_cells_there_is_nothing_to_measure():
    with pytest.raises(InputError, match="no cell"):
        measure_few_cells(law, [], BATCHES, 8)
