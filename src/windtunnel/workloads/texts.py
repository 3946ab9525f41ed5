"""Sentences and running text for the language workloads.

In: a vocabulary size and a seed; the real files where ``WINDTUNNEL_DATA`` names a folder that has them. Out: numpy
arrays of token numbers, batches of them, and the words that say where they come from. Not here: models, torch.
Real are Multi30k (``text/multi30k/train.{en,de}.gz``) and War and Peace (``text/gutenberg/war_and_peace.txt.gz``);
what is synthesized keeps their lengths and Zipf's law, and has a rule that can be learnt.
"""

from __future__ import annotations

import gzip
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from windtunnel.workloads.workload import data_file

__all__ = [
    "BEGIN",
    "END",
    "MASK",
    "NUM_SPECIAL",
    "PAD",
    "UNKNOWN",
    "PairBatch",
    "Pairs",
    "Text",
    "Tokens",
    "lines_of",
    "story",
    "translations",
    "zipf",
]

PAD, UNKNOWN, BEGIN, END, MASK = range(5)
NUM_SPECIAL = 5

# B sentences, S padded positions, V vocabulary
Tokens = npt.NDArray[np.int64]

_WORD = re.compile(r"\w+|[^\w\s]")
_BUCKET = 8
"""Sentences are padded to a multiple of this, among others of the same bucket."""
_MEAN_LOG_LENGTH, _STD_LOG_LENGTH = 2.53, 0.30
"""English half of Multi30k: log-normal sentence lengths with a mean of 13 words."""


@dataclass(frozen=True)
class PairBatch:
    """Sentences of one bucket.

    Parameters
    ----------
    source : int64 [B, S]
        Words, then padding.
    target : int64 [B, S + 1]
        ``BEGIN``, words, ``END``, then padding.
    num_tokens : int
        Source words and predicted target tokens (words and ``END``), without padding.
    """

    source: Tokens
    target: Tokens
    num_tokens: int


@dataclass
class Pairs:
    """Aligned sentences in buckets of like length.

    Parameters
    ----------
    pairs : list of (source words, target words)
    origin : str
        What they are.
    """

    pairs: list[tuple[Tokens, Tokens]]
    origin: str
    _buckets: list[tuple[int, Tokens]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        longest = np.array([max(len(source), len(target) + 1) for source, target in self.pairs])
        bounds = -(-longest // _BUCKET) * _BUCKET
        self._buckets = [(int(bound), np.flatnonzero(bounds == bound)) for bound in np.unique(bounds)]

    def draw(self, batch_size: int, random: np.random.Generator) -> PairBatch:
        """A fresh batch from one bucket, which is chosen as often as it has sentences."""
        shares = np.array([len(members) for _, members in self._buckets], dtype=float)
        length, members = self._buckets[random.choice(len(shares), p=shares / shares.sum())]
        return pad_pairs([self.pairs[row] for row in random.choice(members, batch_size)], length)


def pad_pairs(pairs: list[tuple[Tokens, Tokens]], length: int) -> PairBatch:
    """Lay pairs into rectangles of ``length`` source and ``length + 1`` target positions."""
    sources = np.full((len(pairs), length), PAD)
    targets = np.full((len(pairs), length + 1), PAD)
    for row, (source, target) in enumerate(pairs):
        sources[row, : len(source)] = source
        targets[row, : len(target) + 2] = [BEGIN, *target, END]
    return PairBatch(sources, targets, sum(len(source) + len(target) + 1 for source, target in pairs))


def translations(vocabulary: int, seed: int, *, max_length: int = 40, num_pairs: int = 29_000) -> Pairs:
    """Multi30k from English to German where it is present, else as many sentences of an invented language pair.

    The invented target has one word for each source word, in reversed order.
    """
    english, german = (data_file(f"text/multi30k/train.{language}.gz") for language in ("en", "de"))
    if english is None or german is None:
        return _invent_pairs(vocabulary, seed, max_length, num_pairs)
    both = [
        _number_words([_WORD.findall(line.lower()) for line in lines_of(path)], vocabulary)
        for path in (english, german)
    ]
    kept = [pair for pair in zip(*both, strict=True) if all(0 < len(side) <= max_length for side in pair)]
    return Pairs(kept, "Multi30k, English to German")


def _invent_pairs(vocabulary: int, seed: int, max_length: int, num_pairs: int) -> Pairs:
    random = np.random.default_rng(seed)
    lengths = np.exp(random.normal(_MEAN_LOG_LENGTH, _STD_LOG_LENGTH, num_pairs)).round().clip(3, max_length)
    ends = lengths.astype(int).cumsum()
    meaning = NUM_SPECIAL + random.permutation(vocabulary - NUM_SPECIAL)
    words = zipf(vocabulary - NUM_SPECIAL, int(ends[-1]), random)
    sentences = np.split(words, ends[:-1])
    pairs = [(sentence + NUM_SPECIAL, meaning[sentence[::-1]]) for sentence in sentences]
    return Pairs(pairs, "synthetic: Zipf sentences of Multi30k's lengths, translated word by word and reversed")


@dataclass(frozen=True)
class Text:
    """Running text.

    Parameters
    ----------
    tokens : int64 [T]
    origin : str
        What it is.
    """

    tokens: Tokens
    origin: str

    @classmethod
    def of(cls, vocabulary: int, seed: int) -> Text:
        """War and Peace where it is present, else a chain in which a word calls for one of four successors."""
        path = data_file("text/gutenberg/war_and_peace.txt.gz")
        if path is None:
            return cls(_invent_text(vocabulary, seed), "synthetic: a Markov chain over Zipf words")
        (tokens,) = _number_words([_WORD.findall(" ".join(story(path)).lower())], vocabulary)
        return cls(tokens, "War and Peace (Project Gutenberg), words")

    def draw(self, batch_size: int, length: int, random: np.random.Generator) -> Tokens:
        """Windows of that length from anywhere: int64 [B, length]."""
        starts = random.integers(0, len(self.tokens) - length + 1, batch_size)
        windows: Tokens = self.tokens[starts[:, None] + np.arange(length)]
        return windows


def _invent_text(vocabulary: int, seed: int, num_chains: int = 256, length: int = 2048) -> Tokens:
    random = np.random.default_rng(seed)
    num_words = vocabulary - NUM_SPECIAL
    successors = zipf(num_words, (num_words, 4), random)
    chains = np.empty((num_chains, length), dtype=np.int64)
    chains[:, 0] = zipf(num_words, num_chains, random)
    for index in range(1, length):
        called = successors[chains[:, index - 1], random.integers(0, 4, num_chains)]
        chains[:, index] = np.where(random.random(num_chains) < 0.7, called, zipf(num_words, num_chains, random))
    chains += NUM_SPECIAL
    return chains.ravel()


def zipf(num_words: int, shape: int | tuple[int, ...], random: np.random.Generator) -> Tokens:
    """Ranks from 0, the word of rank r with a probability in proportion to 1 / (r + 2.7) (Zipf and Mandelbrot)."""
    cumulated = np.cumsum(1.0 / (np.arange(num_words) + 2.7))
    ranks: Tokens = np.searchsorted(cumulated, random.random(shape) * cumulated[-1]).astype(np.int64)
    return ranks


def _number_words(sentences: list[list[str]], vocabulary: int) -> list[Tokens]:
    """Words as their rank by frequency, the rare ones as ``UNKNOWN``."""
    counts = Counter(word for sentence in sentences for word in sentence)
    frequent = counts.most_common(vocabulary - NUM_SPECIAL)
    numbers = {word: NUM_SPECIAL + rank for rank, (word, _) in enumerate(frequent)}
    return [np.array([numbers.get(word, UNKNOWN) for word in sentence], dtype=np.int64) for sentence in sentences]


def lines_of(path: Path) -> list[str]:
    """Lines of a packed file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def story(path: Path) -> list[str]:
    """The lines between Gutenberg's header and its licence."""
    lines = lines_of(path)
    marks = [row for row, line in enumerate(lines) if line.startswith("*** ")]
    return lines[marks[0] + 1 : marks[1]] if len(marks) >= 2 else lines
