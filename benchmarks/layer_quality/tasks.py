"""Small trainings whose quality is compared between layers.

In: a case of layers, a seed, epochs. Out: ``Score``: what the trained network is worth on data that it has not seen.
All randomness follows from the seed: cases of one seed begin with the same weights, and see the same batches in the
same order. Not here: several seeds and cases (``run``), networks (``dropping``, ``circulant``), words (``words``).

Source: Zaremba et al., Recurrent Neural Network Regularization, 2014, for the language model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.layer_quality.circulant import block_of, circulant_network
from benchmarks.layer_quality.dropping import CASES, Recurrent, Scores, checked_case
from benchmarks.layer_quality.words import WordText, word_text
from windtunnel.workloads.image_sets import ImageSet, image_set

__all__ = ["TASKS", "Score", "Task", "accuracy", "train_images", "train_words"]

Tensor = torch.Tensor
_BLOCKS = ("dense", "k=8", "k=16")


@dataclass(frozen=True)
class Score:
    """What a network is worth after its training.

    Attributes
    ----------
    metrics : mapping of name to float
        The first one is the task's.
    by_epoch : tuple of float
        The task's metric on data to validate with, after each epoch.
    num_weights : int
    data : str
    """

    metrics: Mapping[str, float]
    by_epoch: tuple[float, ...]
    num_weights: int
    data: str


@dataclass(frozen=True)
class Task:
    """A small training.

    Attributes
    ----------
    train : callable (case, seed, epochs, width, p)
        Gives a :class:`Score`.
    metric : str
    cases : tuple of str
        The first one is what the others are compared with.
    epochs, width : int
        By default.
    p : float
        Share that is dropped, by default.
    check : callable
        Refuses what is no case of the task.
    """

    train: Callable[[str, int, int, int, float], Score]
    metric: str
    cases: tuple[str, ...]
    epochs: int
    width: int
    p: float
    check: Callable[[str], object]


def _num_weights(*modules: nn.Module) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


# --- a language model over words ---------------------------------------------------------------------------

_BATCH, _LENGTH, _CLIP, _DECAY = 20, 35, 5.0, 2.0


class _LanguageModel(nn.Module):
    def __init__(self, case: str, vocabulary: int, width: int, p: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.recurrent = Recurrent(case, width, width, 2, p)
        self.scores = Scores(case, width, vocabulary, p)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.1, 0.1)

    def forward(self, words: Tensor, states: list[Any] | None) -> tuple[Tensor, list[Any]]:
        hidden, states = self.recurrent(self.embedding(words), states)
        return self.scores(hidden), states


def _columns(tokens: Any, batch_size: int) -> Tensor:
    """Running words side by side: [T, B]."""
    rows = len(tokens) // batch_size
    return torch.from_numpy(tokens[: rows * batch_size].reshape(batch_size, rows).T.copy())


def _windows(words: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    for first in range(0, len(words) - 1, _LENGTH):
        last = min(first + _LENGTH, len(words) - 1)
        yield words[first:last], words[first + 1 : last + 1]


def _detached(states: list[Any] | None) -> list[Any] | None:
    return None if states is None else [tuple(one.detach() for one in state) for state in states]


@torch.no_grad()
def _perplexity(model: _LanguageModel, words: Tensor) -> float:
    model.eval()
    total, states = 0.0, None
    for given, following in _windows(words):
        scores, states = model(given, states)
        total += float(functional.cross_entropy(scores.flatten(0, 1), following.flatten(), reduction="sum"))
    model.train()
    return math.exp(total / ((len(words) - 1) * words.shape[1]))


def word_lm(case: str, seed: int, epochs: int, width: int, p: float) -> Score:
    """The next word of WikiText-2, with two recurrent layers: SGD at a rate of 1, halved each epoch of the second half.

    Losses are summed over the steps of a window, gradients clipped at 5, as Zaremba et al. train.
    """
    return train_words(word_text(), case, seed, epochs, width, p)


def train_words(text: WordText, case: str, seed: int, epochs: int, width: int, p: float) -> Score:
    """The same on any running words."""
    torch.manual_seed(seed)
    model = _LanguageModel(case, text.vocabulary, width, p)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    train, validation, test = (_columns(part, _BATCH) for part in (text.train, text.validation, text.test))
    by_epoch = []
    for epoch in range(epochs):
        optimizer.param_groups[0]["lr"] = _DECAY ** -max(0, epoch + 1 - math.ceil(epochs / 2))
        states: list[Any] | None = None
        for given, following in _windows(train):
            optimizer.zero_grad()
            scores, states = model(given, _detached(states))
            (functional.cross_entropy(scores.flatten(0, 1), following.flatten()) * len(given)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
            optimizer.step()
        by_epoch.append(_perplexity(model, validation))
    metrics = {"perplexity": by_epoch[-1], "test perplexity": _perplexity(model, test)}
    return Score(metrics, tuple(by_epoch), _num_weights(model), text.data)


# --- images ------------------------------------------------------------------------------------------------


def _images(data: str, kind: str) -> Callable[[str, int, int, int, float], Score]:
    def train(case: str, seed: int, epochs: int, width: int, p: float) -> Score:
        del p
        images = image_set(data)
        model, by_epoch = train_images(images, kind, case, seed, epochs, width)
        return Score({"accuracy": by_epoch[-1]}, tuple(by_epoch), _num_weights(model), images.data)

    return train


def train_images(
    images: ImageSet, kind: str, case: str, seed: int, epochs: int, width: int
) -> tuple[nn.Module, list[float]]:
    """A network of a kind after its training, and its accuracy, in percent, after each epoch."""
    torch.manual_seed(seed)
    channels, pixels = images.inputs.shape[1:3]
    model = circulant_network(kind, case, channels, pixels, width)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    order, by_epoch = torch.Generator().manual_seed(seed), []
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for rows in torch.randperm(len(images.inputs), generator=order).split(64):
            optimizer.zero_grad()
            functional.cross_entropy(model(images.inputs[rows]), images.targets[rows]).backward()
            optimizer.step()
        schedule.step()
        by_epoch.append(accuracy(model, images.test_inputs, images.test_targets))
    return model, by_epoch


@torch.no_grad()
def accuracy(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    """Share of classes that are found, in percent."""
    model.eval()
    found = torch.cat([model(part).argmax(-1) for part in inputs.split(500)])
    model.train()
    return 100 * float((found == targets).float().mean())


TASKS: dict[str, Task] = {
    "word-lm": Task(word_lm, "perplexity", CASES, 6, 200, 0.5, checked_case),
    "mnist": Task(_images("mnist", "perceptron"), "accuracy", _BLOCKS, 10, 512, 0.0, block_of),
    "cifar10": Task(_images("cifar10", "convolutions"), "accuracy", _BLOCKS, 15, 64, 0.0, block_of),
}
