"""The learned price of tensor programs: a recipe and a split in, a ``Predictor`` out, and its prices.

``RECIPES["paper"]`` is CDMPP to the letter; ``"paper-small"`` the same on a network for CPUs; ``"efficiency"``: times
of leaves that add up, learned as the share of the physical bound that a program reaches, so that sizes extrapolate;
``"code"``, the default, is that with what a code generator makes of each statement. Not here: files (``checkpoint``),
baselines, choosing what to measure (``sampling``).

Source: CDMPP (EuroSys 2024).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from windtunnel.base.extras import require
from windtunnel.cost.intervals import ConformalIntervals
from windtunnel.cost.metrics import mape
from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.model.additive import AdditiveConfig, AdditiveNetwork
from windtunnel.systems.tensor_programs.model.code_features import CODE_NAMES
from windtunnel.systems.tensor_programs.model.context import ContextKind
from windtunnel.systems.tensor_programs.model.distance import central_moment_discrepancy
from windtunnel.systems.tensor_programs.model.encoding import bucket_batches
from windtunnel.systems.tensor_programs.model.features import NUM_FEATURES
from windtunnel.systems.tensor_programs.model.losses import DomainTerm, LossKind, label_loss
from windtunnel.systems.tensor_programs.model.network import PRESETS, Network, NetworkConfig
from windtunnel.systems.tensor_programs.model.samples import Buckets, Normalizer, Target, labels_of
from windtunnel.systems.tensor_programs.model.splits import Split
from windtunnel.systems.tensor_programs.model.training import PAPER_TRAINING, History, TrainingConfig, fit
from windtunnel.systems.tensor_programs.model.transforms import LabelKind
from windtunnel.systems.tensor_programs.program_set import ProgramSet

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = require("torch", extra="learn")

__all__ = ["RECIPES", "Predictor", "Recipe", "build", "going_on", "shrinkage", "train", "with_intervals"]

PREDICTION_BATCH = 512
MIN_CHOICES = 8  # programs of a task among which one is chosen
TUNING_RATE = 0.2  # of the rate from scratch
ADDITIVE_TRAINING = TrainingConfig(
    learning_rate=2e-3,
    weight_decay=0.05,
    batch_size=128,
    max_epochs=80,
    optimizer="adamw",
    patience=80,
    average_decay=0.995,
    clip_norm=1.0,
)
ADDITIVE = AdditiveConfig(dropout=0.1)


@dataclass(frozen=True)
class Recipe:
    """How a predictor is made.

    Parameters
    ----------
    has_code
        Whether it looks at what a code generator makes of the statements.
    domain, domain_weight, num_target
        Term that draws the latents of source and target together, its factor, target samples per step.
    """

    network: NetworkConfig | AdditiveConfig = field(default_factory=AdditiveConfig)
    labels: LabelKind = "log"
    target: Target = "efficiency"
    context: ContextKind = "bound"
    loss: LossKind = "huber"
    has_code: bool = False
    domain: DomainTerm = "none"
    domain_weight: float = 1.0
    num_target: int = 512
    training: TrainingConfig = field(default_factory=TrainingConfig)


RECIPES = {
    "paper": Recipe(
        network=PRESETS["paper"],
        labels="box-cox",
        target="seconds",
        context="paper",
        loss="hybrid",
        num_target=2048,
        training=PAPER_TRAINING,
    ),
    "paper-small": Recipe(network=PRESETS["small"], labels="box-cox", target="seconds", loss="hybrid"),
    "efficiency": Recipe(network=ADDITIVE, loss="ratio", training=ADDITIVE_TRAINING),
    "code": Recipe(network=ADDITIVE, loss="ratio", training=ADDITIVE_TRAINING, has_code=True),
}


@dataclass(frozen=True)
class Predictor:
    """A trained network with everything that it needs to price programs."""

    network: Any
    normalizer: Normalizer
    header: dict[str, Any]

    def predict(self, programs: ProgramSet, samples: np.ndarray) -> np.ndarray:
        """Seconds float64 [M] of samples [M, 2] (program, device column)."""
        return self.predict_and_count_clamps(programs, samples)[0]

    def predict_and_count_clamps(self, programs: ProgramSet, samples: np.ndarray) -> tuple[np.ndarray, int]:
        """Seconds, and how many predictions had no inverse and were clamped."""
        buckets = Buckets(programs, samples, self.normalizer, has_labels=False)
        return self.normalizer.decode(_predict(self.network, buckets), programs, samples)


def _predict(network: Any, buckets: Buckets) -> np.ndarray:
    """Batches side by side, one thread each: they are too small for several."""
    values = np.zeros(len(buckets), dtype=np.float64)
    network.eval()

    def price(rows: np.ndarray) -> None:
        batch = buckets.batch(rows)
        with torch.inference_mode():
            values[rows] = network(batch.leaves, batch.context)[0].numpy()

    num_threads = torch.get_num_threads()
    if num_threads == 1 or len(buckets) <= PREDICTION_BATCH:
        for rows in bucket_batches(buckets.num_leaves, PREDICTION_BATCH):
            price(rows)
        return values
    with ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        list(pool.map(price, bucket_batches(buckets.num_leaves, PREDICTION_BATCH)))
    torch.set_num_threads(num_threads)
    return values


def train(
    programs: ProgramSet,
    split: Split,
    recipe: Recipe = RECIPES["code"],
    *,
    start: Predictor | None = None,
    on_epoch: Callable[[int, History], None] | None = None,
) -> tuple[Predictor, History]:
    """Learn from the split's training samples, stop by its validation samples; its verdict is not looked at.

    Parameters
    ----------
    start
        Fine-tune this predictor: its normalizers stay, and its weights where no epoch is better.
    """
    if recipe.domain != "none" and not len(split.target):
        raise InputError(
            "a domain term needs target samples", where=split.kind, fix="split_by_device, or domain='none'"
        )
    normalizer = start.normalizer if start else _normalizer(programs, split, recipe)
    torch.manual_seed(recipe.training.seed)
    num_features = NUM_FEATURES + (len(CODE_NAMES) if normalizer.code else 0)
    num_context = len(normalizer.context_mean)
    network = build(replace(recipe.network, num_features=num_features, num_context=num_context), normalizer)
    if start:
        network.load_state_dict(start.network.state_dict())
    source = Buckets(programs, split.train, normalizer)
    # Without validation samples, training stops by its own samples.
    held = split.validation if len(split.validation) else split.train
    validation, truth = Buckets(programs, held, normalizer), labels_of(programs, held)

    def validate(model: Any) -> float:
        return mape(normalizer.decode(_predict(model, validation), programs, held)[0], truth)

    loss_of = _loss(recipe, programs, split, normalizer)
    batch_size = recipe.training.batch_size
    history = fit(
        network,
        lambda epoch: source.batches(batch_size, seed=recipe.training.seed * 100_003 + epoch),
        loss_of,
        validate,
        recipe.training,
        on_epoch,
        is_trained=start is not None,
    )
    return Predictor(network, normalizer, _header(programs, split, recipe, history)), history


def going_on(recipe: Recipe, start: Predictor) -> Recipe:
    """The recipe that trains a predictor on: its network, a fifth of the rate."""
    is_other = start.header.get("loss") != recipe.loss or (start.normalizer.code is not None) != recipe.has_code
    if is_other or start.normalizer.labels.kind != recipe.labels:
        raise InputError("this predictor was made by another recipe", fix="name its recipe, or begin without it")
    rate = TUNING_RATE * recipe.training.learning_rate
    return replace(recipe, network=start.network.config, training=replace(recipe.training, learning_rate=rate))


def with_intervals(predictor: Predictor, programs: ProgramSet, samples: np.ndarray, *, level: float = 0.9) -> Predictor:
    """Return the predictor with its errors on held-out samples.

    Intervals by kind of task, and how much of the gain of the least prediction is real (``shrinkage``).
    """
    predicted, truth = np.log(predictor.predict(programs, samples)), np.log(labels_of(programs, samples))
    missed = truth - predicted
    tasks, index = np.unique(programs.task[samples[:, 0]], return_inverse=True)
    kinds = np.array([str(programs.tasks[task].get("kind", "")) for task in tasks])[index]
    result: dict[str, Any] = {"intervals": ConformalIntervals.fit(kinds.tolist(), missed, level=level).to_dict()}
    result["shrinkage"] = shrinkage(predicted, truth, index * len(programs.devices) + samples[:, 1])
    return replace(predictor, header=predictor.header | result)


def shrinkage(predicted: np.ndarray, truth: np.ndarray, group: np.ndarray) -> float:
    """How far below its group's mean the least prediction turned out to be, over how far it was predicted to be.

    The least of many predictions is low by luck, too. By what a whole group is off says nothing of that.

    Parameters
    ----------
    predicted, truth : float [M]
        Logarithms of times.
    group : int [M]
        Programs of one task on one device; those of fewer than ``MIN_CHOICES`` say nothing.

    Returns
    -------
    float
        Least squares over the groups, from 0 to 1; 1 where no group is large enough.
    """
    # Of many predictions the least one is low partly by luck (the winner's curse). The ratio says which part
    # of the predicted gain came true, by least squares through the origin over all groups.
    order = np.argsort(group, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
    selected = [(rows, rows[predicted[rows].argmin()]) for rows in parts if len(rows) >= MIN_CHOICES]
    gain = np.array([predicted[rows].mean() - predicted[least] for rows, least in selected])
    turned_out = np.array([truth[rows].mean() - truth[least] for rows, least in selected])
    total = float((gain**2).sum())
    return min(1.0, max(0.0, float((gain * turned_out).sum()) / total)) if total else 1.0


def _normalizer(programs: ProgramSet, split: Split, recipe: Recipe) -> Normalizer:
    return Normalizer.fit(
        programs,
        split.train,
        labels=recipe.labels,
        target=recipe.target,
        context=recipe.context,
        has_positions=recipe.network.has_positions,
        is_standard=isinstance(recipe.network, AdditiveConfig),
        has_code=recipe.has_code,
    )


def build(config: NetworkConfig | AdditiveConfig, normalizer: Normalizer) -> Any:
    """A fresh network of either kind."""
    if isinstance(config, NetworkConfig):
        return Network(config)
    if normalizer.labels.kind != "log":
        raise InputError(f"times cannot add up in {normalizer.labels.kind} labels", fix='labels="log"')
    network = AdditiveNetwork(config)
    network.label_shift.fill_(normalizer.labels.shift)
    network.label_scale.fill_(normalizer.labels.scale)
    return network


def _loss(recipe: Recipe, programs: ProgramSet, split: Split, normalizer: Normalizer) -> Callable[[Any, Any], Tensor]:
    targets = _target_batches(recipe, programs, split, normalizer)
    scale = normalizer.labels.scale if normalizer.labels.kind == "log" else None

    def loss_of(model: Any, batch: Any) -> Tensor:
        predicted, latent = model(batch.leaves, batch.context)
        loss: Tensor = label_loss(recipe.loss, predicted, batch.label, log_scale=scale)
        if recipe.domain != "none":
            others = [model(item.leaves, item.context)[1] for item in next(targets)]
            loss = loss + recipe.domain_weight * central_moment_discrepancy(latent, torch.cat(others))
        return loss

    return loss_of


def _target_batches(recipe: Recipe, programs: ProgramSet, split: Split, normalizer: Normalizer) -> Iterator[list[Any]]:
    """Fresh unlabeled samples of the target domain for every step."""
    if recipe.domain == "none":
        return
    buckets = Buckets(programs, split.target, normalizer, has_labels=False)
    generator = np.random.default_rng(recipe.training.seed)
    while True:
        rows = generator.permutation(len(buckets))[: recipe.num_target]
        by_count = [rows[buckets.num_leaves[rows] == count] for count in np.unique(buckets.num_leaves[rows])]
        yield [buckets.batch(members) for members in by_count if members.size > 1]


def _header(programs: ProgramSet, split: Split, recipe: Recipe, history: History) -> dict[str, Any]:
    names = programs.device_names
    best = history.best_error
    return {
        "devices": sorted({names[column] for column in np.unique(split.train[:, 1])}),
        "device_sheets": {str(device["name"]): device for device in programs.devices},
        "split": {"kind": split.kind, "digest": split.digest()},
        "num_training_samples": len(split.train),
        "validation_mape": best if math.isfinite(best) else None,
        "loss": recipe.loss,
        "domain": recipe.domain,
        "data": programs.meta,
    }
