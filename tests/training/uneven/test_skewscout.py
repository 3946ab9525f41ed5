"""SkewScout: its tuner on made-up scores, its models that travel, its bytes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.training.uneven.small import fleet_of, small_job, trained, without_server
from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.training.strategies.skewscout import GRIDS, TUNERS, Tuner, objective


@pytest.mark.parametrize("best", range(7))
def test_a_hill_is_climbed_from_the_thrifty_end(best):
    """Scores that fall to one place and rise behind it: it gets there and stays within one place of it."""
    tuner = Tuner(7, "hill")
    walked = [tuner.told(abs(tuner.at - best)) for _ in range(20)]

    assert best in walked or best == 6
    assert all(abs(one - best) <= 1 for one in walked[12:])


@pytest.mark.parametrize("kind", TUNERS)
def test_tuners_stay_on_the_grid_and_end_where_it_is_good(kind):
    """Mostly near the best place, under noise."""
    rng = np.random.default_rng(0)
    tuner = Tuner(8, kind, seed=1)
    walked = [tuner.told(abs(tuner.at - 3) + 0.1 * rng.random()) for _ in range(300)]

    assert set(walked) <= set(range(8))
    assert np.mean([abs(one - 3) <= 1 for one in walked[50:]]) > 0.8


def test_saving_counts_until_accuracy_is_lost():
    """Five percent are allowed; beyond, a percent weighs half of BSP's traffic."""
    assert objective(0.05, 0.1) == pytest.approx(0.1)
    assert objective(0.06, 0.1) == pytest.approx(0.6)
    assert objective(-0.2, 0.3) == pytest.approx(0.3)


@pytest.mark.parametrize("learner", sorted(GRIDS))
def test_models_travel_and_learning_goes_on(tmp_path, learner):
    """To the next worker, whole, once per period; all workers retune alike and none waits for ever."""
    fleet = without_server(fleet_of(tmp_path, [1.0] * 3, rate="1 GB/s", more='[partition]\nkind = "skew"\ns = 0.5\n'))
    run = trained(small_job(), fleet, "skewscout", duration_s=3, learner=learner, travel_every=20, probe=16)
    whole = 4 * len(run.weights)
    pairs = [tuple(one[:2]) for one in run.messages.tolist() if one[4] == whole]

    assert {(0, 1), (1, 2), (2, 0)} <= set(pairs)
    assert run.points[-1].loss < run.points[0].loss
    assert len(run.steps) > 3 * 100


def test_looking_takes_time(tmp_path):
    """A third of the steps on as many samples, between steps."""
    fleet = without_server(fleet_of(tmp_path, [1.0] * 2, rate="10 GB/s", latency="0 us"))
    plain = trained(small_job(), fleet, "gaia", duration_s=2, threshold=0.5)
    scouted = trained(small_job(), fleet, "skewscout", duration_s=2, travel_every=10, probe=24)

    # per 10 steps of 10 ms, one look at home and one for the other: 2 x 24 / 8 / 3 steps
    expected = len(plain.steps) * 10 / (10 + 2)
    assert abs(len(scouted.steps) - expected) < 0.08 * expected


@pytest.mark.parametrize("numbers", [{"learner": "sgd"}, {"tuner": "luck"}, {"travel_every": 0}])
def test_numbers_that_mean_nothing_are_refused(numbers):
    """Before anything is trained."""
    with pytest.raises(InputError):
        registry.get("strategy", "skewscout").function(**numbers)
