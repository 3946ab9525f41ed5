"""Small trainings whose quality is compared between layers.

In: a case of layers, a seed, epochs. Out: ``Score``: what the trained network is worth on data that it has not seen.
All randomness follows from the seed: cases of one seed begin with the same weights, and see the same batches in the
same order. Not here: several seeds and cases (``run``), networks (``dropping``, ``circulant``), data (``workloads``).

Source: Zaremba et al., Recurrent Neural Network Regularization, 2014, for the language model; Sarma et al., NeurIPS
2021, for the tasks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from windtunnel.systems.layers.training.circulant import block_of, circulant_network
from windtunnel.systems.layers.training.dropping import CASES, Recurrent, Scores, checked_case
from windtunnel.workloads.image_sets import ImageSet, image_set
from windtunnel.workloads.text_sets import Tagged, WordText, pair_text, tagged_text, word_text
from windtunnel.workloads.texts import BEGIN, END, PAD

__all__ = ["TASKS", "Score", "Task", "accuracy", "bleu", "macro_f1", "train_images", "train_words"]

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
    published : tuple of (what, value)
        What the paper says of the task.
    """

    train: Callable[[str, int, int, int, float], Score]
    metric: str
    cases: tuple[str, ...]
    epochs: int
    width: int
    p: float
    check: Callable[[str], object]
    published: tuple[tuple[str, str], ...] = ()


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


# --- tags of words -----------------------------------------------------------------------------------------


class _Tagger(nn.Module):
    def __init__(self, case: str, num_words: int, num_suffixes: int, num_tags: int, width: int, p: float) -> None:
        super().__init__()
        self.words, self.suffixes = nn.Embedding(num_words, width), nn.Embedding(num_suffixes, width)
        self.recurrent = Recurrent(case, 2 * width, width, 1, p, is_bidirectional=True)
        self.scores = Scores(case, 2 * width, num_tags, p)

    def forward(self, words: Tensor, suffixes: Tensor, lengths: Tensor) -> Tensor:
        given = torch.cat([self.words(words), self.suffixes(suffixes)], dim=-1)
        scores: Tensor = self.scores(self.recurrent(given, lengths=lengths)[0])
        return scores


_NOT_A_TAG = -1


def _padded(sentences: Sequence[Tagged]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Words, suffixes, tags [T, B], lengths [B]."""
    columns = ([torch.from_numpy(sentence[place]) for sentence in sentences] for place in range(3))
    words, suffixes, tags = (
        nn.utils.rnn.pad_sequence(column, padding_value=fill)
        for column, fill in zip(columns, (PAD, PAD, _NOT_A_TAG), strict=True)
    )
    return words, suffixes, tags, torch.tensor([len(sentence[0]) for sentence in sentences])


def macro_f1(found: Any, true: Any) -> float:
    """Mean over tags that occur of 2 (found and true) / (found + true).

    Examples
    --------
    >>> macro_f1(np.array([0, 0, 1]), np.array([0, 1, 1]))
    0.6666666666666666
    """
    each = [
        2 * int(((found == tag) & (true == tag)).sum()) / int((found == tag).sum() + (true == tag).sum())
        for tag in np.unique(true)
    ]
    return float(np.mean(each))


def tagging(case: str, seed: int, epochs: int, width: int, p: float) -> Score:
    """The part of speech of every word, with a recurrent layer in both directions."""
    text = tagged_text()
    torch.manual_seed(seed)
    model = _Tagger(case, text.num_words, text.num_suffixes, len(text.tags), width, p)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    order, by_epoch, metrics = np.random.default_rng(seed), [], {}
    for _ in range(epochs):
        for rows in np.array_split(order.permutation(len(text.train)), max(1, len(text.train) // 32)):
            words, suffixes, tags, lengths = _padded([text.train[row] for row in rows])
            optimizer.zero_grad()
            scores = model(words, suffixes, lengths)
            functional.cross_entropy(scores.flatten(0, 1), tags.flatten(), ignore_index=_NOT_A_TAG).backward()
            optimizer.step()
        metrics = _tag_scores(model, text.test)
        by_epoch.append(metrics["accuracy"])
    return Score(metrics, tuple(by_epoch), _num_weights(model), text.data)


@torch.no_grad()
def _tag_scores(model: _Tagger, sentences: Sequence[Tagged]) -> dict[str, float]:
    model.eval()
    found, true = [], []
    for first in range(0, len(sentences), 64):
        words, suffixes, tags, lengths = _padded(sentences[first : first + 64])
        is_tag = tags != _NOT_A_TAG
        found.append(model(words, suffixes, lengths).argmax(-1)[is_tag])
        true.append(tags[is_tag])
    model.train()
    ours, gold = torch.cat(found).numpy(), torch.cat(true).numpy()
    return {"accuracy": 100 * float((ours == gold).mean()), "macro F1": 100 * macro_f1(ours, gold)}


# --- translation -------------------------------------------------------------------------------------------


class _Translator(nn.Module):
    def __init__(self, case: str, vocabulary: int, width: int, p: float) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        self.encoder = Recurrent(case, width, width, 2, p)
        self.decoder = Recurrent(case, width, width, 2, p)
        self.mixed = nn.Linear(2 * width, width)
        self.scores = Scores(case, width, vocabulary, p)

    def encode(self, source: Tensor) -> tuple[Tensor, list[Any]]:
        """What was read, 0 behind the end of a sentence, and the states behind it."""
        encoded, states = self.encoder(self.source(source), lengths=(source != PAD).sum(0))
        return encoded, states

    def decode(self, words: Tensor, encoded: Tensor, states: list[Any]) -> tuple[Tensor, list[Any]]:
        """Scores [T, B, V] of the words behind each: attention by dot products (Luong et al., 2015)."""
        hidden, states = self.decoder(self.target(words), states)
        is_behind = (encoded == 0).all(-1).t().unsqueeze(0)  # [1, B, S]
        fits = torch.einsum("tbd,sbd->tbs", hidden, encoded).masked_fill(is_behind, -torch.inf)
        weights = fits.softmax(dim=-1)
        seen = torch.einsum("tbs,sbd->tbd", weights, encoded)
        return self.scores(torch.tanh(self.mixed(torch.cat([hidden, seen], dim=-1)))), states


def translation(case: str, seed: int, epochs: int, width: int, p: float) -> Score:
    """Sentences of an invented grammar into another, with two layers to read and two to write."""
    text = pair_text()
    torch.manual_seed(seed)
    model = _Translator(case, text.vocabulary, width, p)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    random, by_epoch, metrics = np.random.default_rng(seed), [], {}
    for _ in range(epochs):
        for _ in range(len(text.train.pairs) // 64):
            batch = text.train.draw(64, random)
            source, target = (torch.from_numpy(one).t() for one in (batch.source, batch.target))
            optimizer.zero_grad()
            scores, _ = model.decode(target[:-1], *model.encode(source))
            functional.cross_entropy(scores.flatten(0, 1), target[1:].flatten(), ignore_index=PAD).backward()
            nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
            optimizer.step()
        metrics = _translated(model, text.test.pairs)
        by_epoch.append(metrics["exact"])
    return Score(metrics, tuple(by_epoch), _num_weights(model), text.data)


@torch.no_grad()
def _translated(model: _Translator, pairs: Sequence[tuple[Any, Any]]) -> dict[str, float]:
    model.eval()
    longest = max(len(target) for _, target in pairs) + 1
    sources = nn.utils.rnn.pad_sequence([torch.from_numpy(source) for source, _ in pairs], padding_value=PAD)
    encoded, states = model.encode(sources)
    words, said = torch.full((1, len(pairs)), BEGIN), []
    for _ in range(longest):
        scores, states = model.decode(words, encoded, states)
        words = scores.argmax(-1)
        said.append(words[0])
    model.train()
    rows = [row[: row.index(END)] if END in row else row for row in torch.stack(said, dim=1).tolist()]
    true = [target.tolist() for _, target in pairs]
    exact = float(np.mean([row == one for row, one in zip(rows, true, strict=True)]))
    return {"exact": 100 * exact, "BLEU": 100 * bleu(rows, true)}


def bleu(said: Sequence[Sequence[int]], true: Sequence[Sequence[int]], longest: int = 4) -> float:
    """Corpus BLEU with one reference each (Papineni et al., 2002).

    Examples
    --------
    >>> bleu([[1, 2, 3, 4, 5]], [[1, 2, 3, 4, 5]]), bleu([[1, 2]], [[3, 4]])
    (1.0, 0.0)
    """
    logarithms = []
    for size in range(1, longest + 1):
        hits = total = 0
        for ours, reference in zip(said, true, strict=True):
            mine, theirs = (
                Counter(tuple(words[at : at + size]) for at in range(len(words) - size + 1))
                for words in (ours, reference)
            )
            hits += sum((mine & theirs).values())
            total += sum(mine.values())
        if not hits:
            return 0.0
        logarithms.append(math.log(hits / total))
    num_said, num_true = (sum(map(len, sentences)) for sentences in (said, true))
    return min(1.0, math.exp(1 - num_true / max(num_said, 1))) * math.exp(sum(logarithms) / longest)


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


_DROPOUT_PAPER = (("training time, over all tasks", "1.23x to 1.64x, without loss of the metric"),)
_BLOCKS_PAPER = (("weights of fully connected layers", "108x to 116x fewer, negligible loss, 16 bits"),)
TASKS: dict[str, Task] = {
    "word-lm": Task(
        word_lm, "perplexity", CASES, 6, 200, 0.5, checked_case,
        (("Penn Treebank, 650 units, case I", "86.2 validation, 82.7 test"), *_DROPOUT_PAPER),
    ),
    "tagging": Task(tagging, "accuracy", CASES, 8, 100, 0.5, checked_case,
                    (("CoNLL-2003, F1", "about 91"), *_DROPOUT_PAPER)),
    "translation": Task(translation, "exact", CASES, 15, 128, 0.2, checked_case, _DROPOUT_PAPER),
    "mnist": Task(_images("mnist", "perceptron"), "accuracy", _BLOCKS, 10, 512, 0.0, block_of,
                  (("MNIST (Wang et al.)", "99.0 %, 95.6 %"), *_BLOCKS_PAPER)),
    "cifar10": Task(_images("cifar10", "convolutions"), "accuracy", _BLOCKS, 15, 64, 0.0, block_of,
                    (("CIFAR-10 (Wang et al.)", "80.3 %"), *_BLOCKS_PAPER)),
}  # fmt: skip
