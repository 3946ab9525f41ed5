"""SkewScout: its tuner on made-up scores, its models that travel, its bytes."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from tests.systems.uneven.small import fleet_of, small_job, trained, without_server
from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.systems.uneven.job import FlatModel
from windtunnel.systems.uneven.policy import Probe
from windtunnel.systems.uneven.strategies.skewscout import GRIDS, TUNERS, Tuner, objective


@pytest.mark.parametrize("best", range(7))
def test_hill_climbing_starts_at_the_end_with_the_least_traffic(best):
    """Scores that fall to one place and rise behind it: it gets there and stays within one place of it."""
    tuner = Tuner(7, "hill")
    walked = [tuner.record_score(abs(tuner.position - best)) for _ in range(20)]

    assert best in walked or best == 6
    assert all(abs(one - best) <= 1 for one in walked[12:])


@pytest.mark.parametrize("kind", TUNERS)
def test_tuners_stay_on_the_grid_and_end_where_it_is_good(kind):
    """Mostly near the best place, under noise."""
    rng = np.random.default_rng(0)
    tuner = Tuner(8, kind, seed=1)
    walked = [tuner.record_score(abs(tuner.position - 3) + 0.1 * rng.random()) for _ in range(300)]

    assert set(walked) <= set(range(8))
    assert np.mean([abs(one - 3) <= 1 for one in walked[50:]]) > 0.8


def test_saving_counts_until_accuracy_is_lost():
    """Five percent are allowed; beyond, a percent weighs half of BSP's traffic."""
    assert objective(0.05, 0.1) == pytest.approx(0.1)
    assert objective(0.06, 0.1) == pytest.approx(0.6)
    assert objective(-0.2, 0.3) == pytest.approx(0.3)


@pytest.mark.parametrize("learner", sorted(GRIDS))
def test_models_travel_and_learning_goes_on(tmp_path, learner):
    """To each other worker in turn, whole, once per period; all workers retune alike and none waits for ever."""
    fleet = without_server(fleet_of(tmp_path, [1.0] * 3, rate="1 GB/s", more='[partition]\nkind = "skew"\ns = 0.5\n'))
    run = trained(small_job(), fleet, "skewscout", duration_s=3, learner=learner, travel_every=20, probe=16)
    whole = 4 * len(run.weights)
    pairs = [tuple(one[:2]) for one in run.messages.tolist() if one[4] == whole]

    assert {(one, other) for one in range(3) for other in range(3) if one != other} <= set(pairs)
    assert run.points[-1].loss < run.points[0].loss
    assert len(run.steps) > 3 * 100


def test_statistics_of_batch_norms_travel_with_their_model(tmp_path):
    """They count as bytes, and a model is judged away from home by its own."""

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))

    fleet = without_server(fleet_of(tmp_path, [1.0] * 2, rate="1 GB/s"))
    run = trained(small_job(model=network), fleet, "skewscout", duration_s=0.5, travel_every=20, probe=16)
    num_weights, num_buffers = 6 * 5 + 5 + 5 + 5 + 5 * 4 + 4, 5 + 5

    assert len(run.weights) == num_weights
    assert 4 * (num_weights + num_buffers) in set(run.messages[:, 4].tolist())

    flat = FlatModel(small_job(model=network), 0)
    probes = [Probe(flat.initial, flat.initial_buffers + shift, 16, "") for shift in (0.0, 3.0)]
    losses = [flat.probe(one, np.arange(160))[0] for one in probes]
    assert losses[0] != losses[1]


def test_an_old_score_is_tried_again():
    """A neighbor that was bad once is not bad for ever: training moves on."""
    tuner = Tuner(3, "hill")
    scores = {2: 1.0, 1: 2.0, 0: 2.0}
    walked = [tuner.record_score(scores[tuner.position]) for _ in range(12)]

    assert walked[:2] == [1, 2]
    assert 1 in walked[4:]


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
