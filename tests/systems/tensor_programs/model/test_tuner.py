from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("optuna")
pytest.importorskip("scipy")

from tests.systems.tensor_programs.model.small_set import small_set
from tests.systems.tensor_programs.model.test_network import tiny
from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.model.predictor import Recipe
from windtunnel.systems.tensor_programs.model.splits import split_by_task
from windtunnel.systems.tensor_programs.model.training import TrainingConfig
from windtunnel.systems.tensor_programs.model.tuner import forecast, suggest, tune


def test_forecast_finds_the_level_of_its_own_curve():
    errors = 2 / (np.arange(12) + 3) + 0.15

    assert forecast(errors) == pytest.approx(0.15, abs=0.02)


def test_forecast_of_short_and_rising_curves_is_their_best():
    assert forecast([0.5, 0.4]) == 0.4
    assert forecast([0.3, 0.4, 0.5, 0.6, 0.7]) == 0.3


def narrow(trial, base):
    rate = trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True)
    return replace(base, training=replace(base.training, learning_rate=rate))


def test_the_best_trial_is_returned():
    programs = small_set(num_tasks=6, per_task=4)
    base = Recipe(network=tiny(), training=TrainingConfig(max_epochs=2, batch_size=8))

    tuned = tune(programs, split_by_task(programs, "slow"), num_trials=3, base=base, suggest_recipe=narrow)

    errors = [error for state, error, _ in tuned.trials if state == "COMPLETE"]
    assert tuned.error == min(errors)
    best = next(parameters for state, error, parameters in tuned.trials if error == tuned.error)
    assert tuned.recipe.training.learning_rate == best["learning_rate"]


def test_no_trial_comes_to_an_end():
    def diverge(trial, base):
        return replace(base, loss="unknown")

    programs = small_set(num_tasks=4, per_task=3)
    base = Recipe(network=tiny(), training=TrainingConfig(max_epochs=1, batch_size=8))
    with pytest.raises(InputError, match="none of 2 trials"):
        tune(programs, split_by_task(programs, "slow"), num_trials=2, base=base, suggest_recipe=diverge)


def test_space_of_the_paper():
    import optuna

    recipe = suggest(optuna.trial.FixedTrial({
        "embed_width": 100, "embed_depth": 3, "latent_length": 70, "decoder_width": 90, "num_layers": 4,
        "projection_width": 200, "decoder_depth": 3, "optimizer": "sgd", "weight_decay": 1e-3, "learning_rate": 1e-4,
        "schedule": "none", "batch_size": 32, "loss": "hybrid",
    }), Recipe())  # fmt: skip

    assert recipe.network.projection == (200, 100, 100, 100)
    assert recipe.network.decoder == (90, 90, 70)
    assert recipe.network.num_layers == 4
    assert recipe.training.optimizer == "sgd"
