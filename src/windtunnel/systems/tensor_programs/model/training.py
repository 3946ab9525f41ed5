"""One training loop for every learned model of the room: batches and a loss in, the best weights out.

Adam or AdamW with a triangular, one-cycle or constant rate. Training keeps the weights of the best validation error and
stops when the training loss has converged, when the validation error no longer falls, or when the time is spent. Not
here: what a batch is, which network.

Source: CDMPP (EuroSys 2024), section 4.2 and the released configuration (``PAPER_TRAINING``).
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from windtunnel.base.extras import require
from windtunnel.errors import InputError

if TYPE_CHECKING:
    import torch
else:
    torch = require("torch", extra="learn")

__all__ = ["PAPER_TRAINING", "History", "TrainingConfig", "fit", "learning_rate"]

Schedule = Literal["cyclic", "one-cycle", "none"]
CONVERGED = 1e-4
CONVERGENCE_EPOCHS = 10
CYCLE_STEPS = 2000
WARM_UP = 0.1
_clock_s = time.monotonic


@dataclass(frozen=True)
class TrainingConfig:
    """How to train; ``budget_s`` bounds the time, ``patience`` the epochs without a better validation error."""

    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    batch_size: int = 256
    max_epochs: int = 200
    schedule: Schedule = "one-cycle"
    optimizer: Literal["adam", "adamw"] = "adam"
    patience: int = 60
    budget_s: float = 600.0
    average_decay: float = 0.0
    clip_norm: float = 0.0
    seed: int = 0


PAPER_TRAINING = TrainingConfig(
    learning_rate=1.67657e-5, weight_decay=1.30707e-3, batch_size=600, max_epochs=5000, schedule="cyclic", patience=5000
)


@dataclass
class History:
    """Record of a training run: losses and validation errors by epoch, the best, why it ended, samples per second.

    ``start_error`` is that of the weights which training began from, where it goes on with trained ones.
    """

    losses: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    best_epoch: int = -1
    reason: str = "all epochs done"
    num_samples: int = 0
    training_s: float = 0.0
    start_error: float = math.inf

    @property
    def best_error(self) -> float:
        """Lowest validation error."""
        return min([*self.errors, self.start_error])

    @property
    def samples_per_s(self) -> float:
        """Training samples over the time spent in training steps."""
        return self.num_samples / self.training_s if self.training_s else math.nan


def learning_rate(config: TrainingConfig, step: int, progress: float) -> float:
    """Rate of a step; ``progress`` from 0 to 1 is the share of the epochs or of the time that is spent."""
    peak = config.learning_rate
    if config.schedule == "cyclic":  # up and down between a tenth and ten times in 2 * 2000 steps
        phase = abs(step / CYCLE_STEPS % 2 - 1)
        return peak / 10 + (10 * peak - peak / 10) * (1 - phase)
    if config.schedule == "one-cycle":
        if progress < WARM_UP:
            return peak * (0.05 + 0.95 * progress / WARM_UP)
        return peak * max(1e-3, 0.5 * (1 + math.cos(math.pi * (progress - WARM_UP) / (1 - WARM_UP))))
    return peak


def fit(
    model: Any,
    batches: Callable[[int], Iterable[Any]],
    loss_of: Callable[[Any, Any], Any],
    validate: Callable[[Any], float],
    config: TrainingConfig,
    on_epoch: Callable[[int, History], None] | None = None,
    *,
    is_trained: bool = False,
) -> History:
    """Train in place and leave the weights of the best validation error.

    Parameters
    ----------
    batches
        Batches of an epoch; each has a length, the number of its samples.
    loss_of
        ``(model, batch)`` to a scalar tensor.
    validate
        Error of a model in evaluation mode; smaller is better.
    on_epoch
        Told after each epoch.
    is_trained
        The weights are already good: they stay unless an epoch is better.
    """
    torch.manual_seed(config.seed)
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    optimizer = kind(model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    average = _average(model, config)
    history, state = History(), copy.deepcopy(model.state_dict())
    if is_trained:
        history.start_error = _error(model, validate)
    begin, step = _clock_s(), 0
    for epoch in range(config.max_epochs):
        model.train()
        epoch_begin = _clock_s()
        losses: list[float] = []
        for batch in batches(epoch):
            spent = (_clock_s() - begin) / max(config.budget_s, 1e-9)
            if spent > 1 and losses:
                break  # an epoch may take longer than the whole budget
            rate = learning_rate(config, step, min(1.0, max(epoch / config.max_epochs, spent)))
            losses.append(_step(model, loss_of(model, batch), optimizer, rate, config.clip_norm))
            if average is not None:
                average.update_parameters(model)
            history.num_samples += len(batch)
            step += 1
        history.training_s += _clock_s() - epoch_begin
        if not losses:
            raise InputError("there is no batch to learn from", fix="a bucket of one sample alone cannot be normalized")
        if not all(map(math.isfinite, losses)):
            raise InputError(f"the loss is no number in epoch {epoch}", fix="a smaller learning rate")
        history.losses.append(math.fsum(losses) / len(losses))
        state = _keep_best(model if average is None else average.module, validate, history, epoch, state)
        if on_epoch is not None:
            on_epoch(epoch, history)
        if reason := _reason_to_stop(history, epoch, config, _clock_s() - begin):
            history.reason = reason
            break
    model.load_state_dict(state)
    model.eval()
    return history


def _average(model: Any, config: TrainingConfig) -> Any:
    if not config.average_decay:
        return None

    def average_weights(average: Any, current: Any, count: Any) -> Any:
        decay = min(config.average_decay, (1 + float(count)) / (10 + float(count)))  # first weights are soon forgotten
        return torch.lerp(average, current, 1 - decay)

    return torch.optim.swa_utils.AveragedModel(model, avg_fn=average_weights, use_buffers=True)


def _step(model: Any, loss: Any, optimizer: Any, rate: float, clip_norm: float) -> float:
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    if clip_norm:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    optimizer.step()
    return float(loss.detach())


def _keep_best(model: Any, validate: Callable[[Any], float], history: History, epoch: int, state: Any) -> Any:
    error = _error(model, validate)
    is_better = error <= history.best_error  # infinite before the first
    history.errors.append(error)
    if not is_better:
        return state
    history.best_epoch = epoch
    return copy.deepcopy(model.state_dict())


def _error(model: Any, validate: Callable[[Any], float]) -> float:
    model.eval()
    with torch.no_grad():
        error = float(validate(model))
    return error if math.isfinite(error) else math.inf


def _reason_to_stop(history: History, epoch: int, config: TrainingConfig, elapsed_s: float) -> str:
    if elapsed_s > config.budget_s:
        return f"the budget of {config.budget_s:g} s is spent"
    if epoch - history.best_epoch >= config.patience:
        return f"no better validation error in {config.patience} epochs"
    last = history.losses[-CONVERGENCE_EPOCHS:]
    if len(last) == CONVERGENCE_EPOCHS:
        mean = math.fsum(last) / len(last)
        spread = math.sqrt(math.fsum((loss - mean) ** 2 for loss in last) / len(last))
        if mean and spread / abs(mean) < CONVERGED:
            return "the training loss has converged"
    return ""
