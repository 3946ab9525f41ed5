"""Finite sets of text, to train on and to test with.

In: sizes, a seed. Out: running words (``WordText``), sentences with a tag for each word (``TaggedText``), pairs of
sentences of two grammars (``PairText``). Real WikiText-2 and English Web Treebank where ``WINDTUNNEL_DATA`` names a
folder that has them, else invented text that can be learned; the grammars are always invented. Not here: text without
end (``texts``), networks.

Source: Merity et al., WikiText-2, 2017; Silveira et al., English Web Treebank, 2014.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from windtunnel.workloads.texts import NUM_SPECIAL, UNKNOWN, Pairs, Text, Tokens, lines_of, zipf
from windtunnel.workloads.workload import data_file

__all__ = ["Grammar", "PairText", "TaggedText", "WordText", "pair_text", "tagged_text", "word_text"]

_WIKITEXT = tuple(f"kernels_hw/text/wikitext2_{part}.txt.gz" for part in ("test", "valid"))
_TREEBANK = tuple(f"kernels_hw/text/ud_ewt_{part}.tsv.gz" for part in ("dev", "test"))
_UNKNOWN_WORD, _END_OF_LINE = "<unk>", "<eos>"
_SUFFIX = 3
_NUM_INVENTED = 2000


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


# --- tags ------------------------------------------------------------------------------------------------

Tagged = tuple[Tokens, Tokens, Tokens]


@dataclass(frozen=True)
class TaggedText:
    """Sentences with a tag for each word.

    Parameters
    ----------
    data : str
        What they are.
    num_words, num_suffixes : int
        Numbers that words and their last letters have, less than.
    tags : tuple of str
    train, test : list of (words, suffixes, tags), int64 [T] each
    """

    data: str
    num_words: int
    num_suffixes: int
    tags: tuple[str, ...]
    train: list[Tagged]
    test: list[Tagged]


def tagged_text(vocabulary: int = 5000, *, seed: int = 0) -> TaggedText:
    """English Web Treebank: its dev part trains, its test part tests; 17 universal tags."""
    train, test = (data_file(name) for name in _TREEBANK)
    if train is None or test is None:
        sentences = _invented_tags(seed)
        at = len(sentences) * 4 // 5
        return _tagged("synthetic: a Markov chain of tags, words of which end alike", vocabulary, sentences, at)
    read, others = (_sentences(path) for path in (train, test))
    return _tagged("English Web Treebank, its dev part", vocabulary, read + others, len(read))


def _sentences(path: Path) -> list[list[tuple[str, str]]]:
    """Words with tags, a blank line between sentences."""
    found: list[list[tuple[str, str]]] = [[]]
    for line in lines_of(path):
        word, _, tag = line.partition("\t")
        if tag:
            found[-1].append((word.lower(), tag))
        elif found[-1]:
            found.append([])
    return [sentence for sentence in found if sentence]


def _tagged(data: str, vocabulary: int, sentences: list[list[tuple[str, str]]], at: int) -> TaggedText:
    words = _numbers((word for one in sentences[:at] for word, _ in one), vocabulary)
    suffixes = _numbers((word[-_SUFFIX:] for one in sentences[:at] for word, _ in one), vocabulary)
    tags = tuple(sorted({tag for one in sentences for _, tag in one}))
    rank = {tag: place for place, tag in enumerate(tags)}

    def numbered(sentence: list[tuple[str, str]]) -> Tagged:
        return (
            _as_numbers((word for word, _ in sentence), words),
            _as_numbers((word[-_SUFFIX:] for word, _ in sentence), suffixes),
            np.array([rank[tag] for _, tag in sentence], dtype=np.int64),
        )

    made = [numbered(sentence) for sentence in sentences]
    return TaggedText(data, NUM_SPECIAL + len(words), NUM_SPECIAL + len(suffixes), tags, made[:at], made[at:])


def _invented_tags(seed: int, num_tags: int = 8) -> list[list[tuple[str, str]]]:
    """A word tells its tag half of the time; the tag before it tells the rest."""
    random = np.random.default_rng(seed)
    follows = random.permutation(num_tags)
    found = []
    for _ in range(_NUM_INVENTED):
        tag, sentence = int(random.integers(num_tags)), []
        for word in zipf(500, int(random.integers(4, 20)), random).tolist():
            ending = f"t{tag:02d}" if random.random() < 0.5 else "any"
            sentence.append((f"w{word}{ending}", f"TAG{tag}"))
            tag = int(follows[tag])
        found.append(sentence)
    return found


# --- two grammars ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairText:
    """Sentences of one grammar and the same in another.

    Parameters
    ----------
    data : str
        What they are.
    vocabulary : int
        Of both languages.
    train, test : Pairs
        No sentence of ``test`` is in ``train``.
    """

    data: str
    vocabulary: int
    train: Pairs
    test: Pairs


@dataclass(frozen=True)
class Grammar:
    """Words by kind; numbers of both languages begin behind the special ones."""

    num_nouns: int = 24
    num_verbs: int = 12
    num_adjectives: int = 12

    @property
    def vocabulary(self) -> int:
        """Numbers of the language that has more: two articles for each gender, and a marked object."""
        return NUM_SPECIAL + 2 * self.num_nouns + self.num_verbs + 2 * self.num_adjectives + 6

    def phrase(self, random: np.random.Generator) -> tuple[int, int, list[int]]:
        """An article, a noun and up to two adjectives."""
        adjectives = random.integers(0, self.num_adjectives, int(random.integers(0, 3))).tolist()
        return int(random.integers(2)), int(random.integers(self.num_nouns)), adjectives

    def both(self, random: np.random.Generator) -> tuple[list[int], list[int]]:
        """A sentence, subject verb object, and its translation, subject object verb.

        There, adjectives stand behind the noun and, as the article, have its gender; a noun that is an object has an
        ending.
        """
        subject, thing = self.phrase(random), self.phrase(random)
        verb = int(random.integers(self.num_verbs))
        nouns = NUM_SPECIAL + 6
        verbs = nouns + 2 * self.num_nouns
        adjectives = verbs + self.num_verbs

        def source(article: int, noun: int, others: list[int]) -> list[int]:
            return [NUM_SPECIAL + article, *(adjectives + one for one in others), nouns + noun]

        def target(article: int, noun: int, others: list[int], is_object: bool) -> list[int]:
            gender = noun % 3
            ends = [adjectives + one + self.num_adjectives * (gender == 1) for one in others]
            return [NUM_SPECIAL + article + 2 * gender, nouns + noun + self.num_nouns * is_object, *ends]

        return (
            [*source(*subject), verbs + verb, *source(*thing)],
            [*target(*subject, is_object=False), *target(*thing, is_object=True), verbs + verb],
        )


def pair_text(num_train: int = 4000, num_test: int = 500, *, seed: int = 0) -> PairText:
    """Sentences of one invented grammar with their translations into another."""
    grammar, random = Grammar(), np.random.default_rng(seed)
    found: dict[tuple[int, ...], list[int]] = {}
    while len(found) < num_train + num_test:
        source, target = grammar.both(random)
        found[tuple(source)] = target
    data = "synthetic: an invented grammar into another"
    pairs = [(np.array(source), np.array(target)) for source, target in found.items()]
    return PairText(data, grammar.vocabulary, Pairs(pairs[:num_train], data), Pairs(pairs[num_train:], data))
