"""Search of hyper-parameters: a program set and a split in, the best recipe out.

Optuna's TPE draws recipes from CDMPP's search space; each trial reports the error to which its learning curve
``a / (x + b) + c`` is heading, and successive halving ends those that head nowhere. Only training and validation
samples are looked at. Not here: training itself.

Source: CDMPP (EuroSys 2024), section 4.2 and its released tuner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from windtunnel.base.extras import require
from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.model.network import PRESETS, NetworkConfig
from windtunnel.systems.tensor_programs.model.predictor import RECIPES, Recipe, train
from windtunnel.systems.tensor_programs.model.splits import Split
from windtunnel.systems.tensor_programs.model.training import History
from windtunnel.systems.tensor_programs.program_set import ProgramSet

__all__ = ["Tuned", "forecast", "suggest", "tune"]

LEAST_CURVE = 4  # epochs before a curve is fitted
DEPTHS = (1, 3, 5, 7, 9)


@dataclass(frozen=True)
class Tuned:
    """The best recipe, its validation error, and every trial as (state, error, parameters)."""

    recipe: Recipe
    error: float
    trials: tuple[tuple[str, float | None, dict[str, Any]], ...]


def forecast(errors: Sequence[float]) -> float:
    """The error where a learning curve ends: ``c`` of ``a / (x + b) + c``, never above the best so far.

    Linear least squares for ``a`` and ``c`` over a grid of ``b``; a curve that is too short or rises gives its best.
    """
    values = np.asarray(errors, dtype=np.float64)
    best = float(values.min())
    if values.size < LEAST_CURVE or not np.isfinite(values).all():
        return best
    place = np.arange(values.size)
    fits = []
    for offset in np.geomspace(0.3, 100.0, 30):
        columns = np.column_stack([1 / (place + offset), np.ones(values.size)])
        (scale, level), *_ = np.linalg.lstsq(columns, values, rcond=None)
        residual = float(((columns @ (scale, level) - values) ** 2).sum())
        fits.append((residual, float(scale), float(level)))
    _, scale, level = min(fits)
    return min(best, max(0.0, level)) if scale > 0 else best


def suggest(trial: Any, base: Recipe) -> Recipe:
    """A recipe of CDMPP's search space."""
    embed = trial.suggest_int("embed_width", 64, 1024, log=True)
    depth = trial.suggest_categorical("embed_depth", DEPTHS)
    latent = trial.suggest_int("latent_length", 64, 1024, log=True)
    decoder = trial.suggest_int("decoder_width", 64, 1024, log=True)
    network = replace(
        base.network if isinstance(base.network, NetworkConfig) else PRESETS["small"],
        num_layers=trial.suggest_int("num_layers", 1, 12),
        projection=(trial.suggest_int("projection_width", 164, 1024, log=True), *([embed] * depth)),
        decoder=(*([decoder] * (trial.suggest_categorical("decoder_depth", DEPTHS) - 1)), latent),
    )
    training = replace(
        base.training,
        optimizer=trial.suggest_categorical("optimizer", ("adam", "sgd")),
        weight_decay=trial.suggest_float("weight_decay", 1e-5, 0.9, log=True),
        learning_rate=trial.suggest_float("learning_rate", 1e-7, 0.9, log=True),
        schedule=trial.suggest_categorical("schedule", ("one-cycle", "cyclic", "exponential", "none")),
        batch_size=trial.suggest_int("batch_size", 4, 512, log=True),
    )
    loss = trial.suggest_categorical("loss", ("mse", "hybrid"))
    return replace(base, network=network, training=training, loss=loss)


def tune(
    programs: ProgramSet,
    split: Split,
    *,
    num_trials: int = 20,
    trial_budget_s: float = 60.0,
    base: Recipe = RECIPES["paper-small"],
    seed: int = 0,
    suggest_recipe: Callable[[Any, Recipe], Recipe] = suggest,
    on_trial: Callable[[int], object] = lambda _: None,
) -> Tuned:
    """Search for the recipe of the least validation error; ``on_trial`` hears how many trials are over.

    Raises
    ------
    InputError
        Every trial failed.
    """
    optuna = require("optuna", extra="search")
    base = replace(base, training=replace(base.training, budget_s=trial_budget_s, seed=seed))
    recipes: dict[int, Recipe] = {}

    def objective(trial: Any) -> float:
        recipes[trial.number] = recipe = suggest_recipe(trial, base)

        def on_epoch(epoch: int, history: History) -> None:
            trial.report(forecast(history.errors), epoch)
            if trial.should_prune():
                raise optuna.TrialPruned

        return train(programs, split, recipe, on_epoch=on_epoch)[1].best_error

    def told(_: Any, trial: Any) -> None:
        on_trial(trial.number + 1)

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(
            sampler=optuna.samplers.TPESampler(seed=seed), pruner=optuna.pruners.SuccessiveHalvingPruner()
        )
        # a rate of 0.9 may well diverge: that trial is lost, the search goes on
        study.optimize(objective, n_trials=num_trials, catch=(InputError,), callbacks=[told])
    finally:
        optuna.logging.set_verbosity(verbosity)
    trials = tuple((trial.state.name, trial.value, dict(trial.params)) for trial in study.trials)
    if all(state != "COMPLETE" for state, _, _ in trials):
        raise InputError(f"none of {num_trials} trials came to an end", fix="more trials, or more seconds for each")
    return Tuned(recipes[study.best_trial.number], float(study.best_value), trials)
