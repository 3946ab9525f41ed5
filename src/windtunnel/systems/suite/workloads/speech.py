"""Utterances for the speech workload.

In: a vocabulary of letters, lengths and a seed. Out: batches of spectrograms that are made from their own label
sequences: every letter sounds a few frames of its own spectrum, under noise. The letters are those of War and Peace
where ``WINDTUNNEL_DATA`` has it. Not here: models, torch; no recording is shipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from windtunnel.workloads.texts import story, zipf
from windtunnel.workloads.workload import data_file

__all__ = ["FRAMES_PER_S", "LETTERS", "Utterances", "Voice"]

LETTERS = "_ 'abcdefghijklmnopqrstuvwxyz"
"""The 29 labels; the first is the blank of CTC."""

FRAMES_PER_S = 100
"""One spectrum every 10 ms."""

_MIN_FRAMES, _MAX_FRAMES = 5, 9
"""A letter lasts 50 to 90 ms: fourteen letters a second, as in read English."""

# B utterances, F frequencies, T frames, L labels

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Utterances:
    """A batch whose utterances are nearly of one length.

    Parameters
    ----------
    spectra : float32 [B, 1, F, T]
        Zero after each utterance's end.
    labels : int64 [B, L]
        Zero (blank) after each sentence's end.
    num_frames, num_labels : list of int
        Without padding.
    """

    spectra: Floats
    labels: Labels
    num_frames: list[int]
    num_labels: list[int]

    @property
    def duration_s(self) -> float:
        """Seconds of audio without padding."""
        return sum(self.num_frames) / FRAMES_PER_S


@dataclass(frozen=True)
class Voice:
    """Speaks letters.

    Parameters
    ----------
    letters : int64 [num letters]
        A long text, from which sentences are cut.
    spectrum : float32 [29, F]
        How each letter sounds.
    lengths_s : tuple of float
        Utterances are shorter than one of these, chosen by ``shares``.
    shares : tuple of float
        How frequent each is; they sum to one.
    origin : str
        What the batches are.
    """

    letters: Labels
    spectrum: Floats
    lengths_s: tuple[float, ...]
    shares: tuple[float, ...]
    origin: str

    @classmethod
    def of(cls, num_frequencies: int, buckets: dict[float, float], seed: int) -> Voice:
        """A synthetic voice whose utterances have a maximum duration in seconds (keys) with a frequency (values)."""
        random = np.random.default_rng(seed)
        letters, text = _letters(random)
        spectrum = random.standard_normal((len(LETTERS), num_frequencies), dtype=np.float32)
        origin = f"synthetic: spectrograms made from the letters of {text}"
        return cls(letters, spectrum, tuple(buckets), tuple(buckets.values()), origin)

    def draw(self, batch_size: int, random: np.random.Generator) -> Utterances:
        """A fresh batch; all of its utterances fill at least 85 % of the bucket's length."""
        longest = int(FRAMES_PER_S * self.lengths_s[random.choice(len(self.lengths_s), p=self.shares)])
        parts = [self._speak(int(longest * random.uniform(0.85, 1.0)), random) for _ in range(batch_size)]
        num_labels = [len(labels) for labels, _ in parts]
        spectra = np.zeros((batch_size, 1, self.spectrum.shape[1], longest), dtype=np.float32)
        labels = np.zeros((batch_size, longest // _MIN_FRAMES), dtype=np.int64)
        for row, (reported, heard) in enumerate(parts):
            spectra[row, 0, :, : len(heard)] = heard.T
            labels[row, : len(reported)] = reported
        return Utterances(spectra, labels[:, : max(num_labels)], [len(heard) for _, heard in parts], num_labels)

    def _speak(self, num_frames: int, random: np.random.Generator) -> tuple[Labels, Floats]:
        """Labels of one utterance and its spectra [T, F], with T at most ``num_frames``."""
        lasting = random.integers(_MIN_FRAMES, _MAX_FRAMES + 1, num_frames // _MIN_FRAMES)
        lasting = lasting[lasting.cumsum() <= num_frames]
        start = random.integers(0, len(self.letters) - len(lasting))
        labels = self.letters[start : start + len(lasting)]
        clean = np.repeat(self.spectrum[labels], lasting, axis=0)
        return labels, clean + 0.3 * random.standard_normal(clean.shape, dtype=np.float32)


def _letters(random: np.random.Generator, num_words: int = 20_000) -> tuple[Labels, str]:
    """A long text as numbers of ``LETTERS``, and its name."""
    numbers: dict[str, Any] = {letter: number for number, letter in enumerate(LETTERS) if number}
    path = data_file("text/gutenberg/war_and_peace.txt.gz")
    if path is None:
        text, name = " ".join(_words(random)[zipf(2000, num_words, random)]), "invented words"
    else:
        text, name = " ".join(story(path)).lower().replace("’", "'"), "War and Peace"
    spoken = " ".join("".join(letter if letter in numbers else " " for letter in text).split())
    return np.array([numbers[letter] for letter in spoken]), name


def _words(random: np.random.Generator) -> npt.NDArray[np.str_]:
    """Two thousand words of two to eight letters."""
    alphabet = np.array(list(LETTERS[3:]))
    return np.array(["".join(random.choice(alphabet, length)) for length in random.integers(2, 9, 2000)])
