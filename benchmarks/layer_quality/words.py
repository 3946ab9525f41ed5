"""Running words, to train on and to test with.

In: a size of the vocabulary, a seed. Out: ``WordText``: real WikiText-2 where ``WINDTUNNEL_DATA`` names a folder that
has it, else invented text that can be learned.

Source: Merity et al., WikiText-2, 2017.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from windtunnel.workloads.texts import NUM_SPECIAL, UNKNOWN, Text, Tokens, lines_of
from windtunnel.workloads.workload import data_file

__all__ = ["WordText", "word_text"]

_WIKITEXT = tuple(f"kernels_hw/text/wikitext2_{part}.txt.gz" for part in ("test", "valid"))
_UNKNOWN_WORD, _END_OF_LINE = "<unk>", "<eos>"


@dataclass(frozen=True)
class WordText:
    """Running words.

    Parameters
    ----------
    data : str
        What they are.
    vocabulary : int
    train, validation, test : int64 [T]
        ``test`` is nothing that ``train`` has seen; words that it never saw are ``UNKNOWN``.
    """

    data: str
    vocabulary: int
    train: Tokens
    validation: Tokens
    test: Tokens


def word_text(vocabulary: int = 10_000, *, seed: int = 0) -> WordText:
    """WikiText-2: its test part trains, halves of its validation part validate and test.

    Its train part is not shipped: numbers are no ones of the data set's usual split.
    """
    train, valid = (data_file(name) for name in _WIKITEXT)
    if train is None or valid is None:
        text = Text.of(vocabulary, seed)
        ends = [len(text.tokens) * share // 10 for share in (8, 9)]
        return WordText(text.origin, vocabulary, *np.split(text.tokens, ends))
    words, others = (_words(path) for path in (train, valid))
    numbers = _numbers(words, vocabulary)
    own, rest = _as_numbers(words, numbers), _as_numbers(others, numbers)
    at = len(rest) // 2
    size = NUM_SPECIAL + len(numbers)
    return WordText(f"WikiText-2, its test part ({len(own):,} words)", size, own, rest[:at], rest[at:])


def _words(path: Path) -> list[str]:
    return [word for line in lines_of(path) if line.strip() for word in (*line.split(), _END_OF_LINE)]


def _numbers(words: Iterable[str], vocabulary: int) -> dict[str, int]:
    """The most frequent words by their rank."""
    counts = Counter(word for word in words if word != _UNKNOWN_WORD)
    return {word: NUM_SPECIAL + rank for rank, (word, _) in enumerate(counts.most_common(vocabulary - NUM_SPECIAL))}


def _as_numbers(words: Iterable[str], numbers: dict[str, int]) -> Tokens:
    return np.array([numbers.get(word, UNKNOWN) for word in words], dtype=np.int64)
