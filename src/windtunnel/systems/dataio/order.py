"""Which samples each rank reads in which order, and in how many steps.

In: files, samples per file, ranks, batch size, how to shuffle. Out: numbers of samples. Depends on nothing else: any
number of loader workers reads the same order. Not here: reading.

DLIO gives rank r the range from r * ceil(N / R) of the order; its last rank then has fewer samples than its steps need
where R does not divide N. Here ranges differ by at most one sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError

__all__ = ["Dataset", "all_rank_orders", "epoch_order", "rank_order", "steps_per_epoch"]

Ints = NDArray[np.int64]
_SHUFFLES = ("off", "seed", "random")


@dataclass(frozen=True)
class Dataset:
    """What determines the order.

    Attributes
    ----------
    num_files, samples_per_file : int
        Sample i lies in file i // samples_per_file.
    file_shuffle, sample_shuffle : str
        ``off``, ``seed`` (the same in every run) or ``random`` (``run_seed`` decides).
    seed : int
    seed_changes : bool
        Whether each epoch has another order.
    run_seed : int
        The same for all ranks of a run.
    """

    num_files: int
    samples_per_file: int = 1
    file_shuffle: str = "off"
    sample_shuffle: str = "off"
    seed: int = 123
    seed_changes: bool = True
    run_seed: int = 0

    @property
    def num_samples(self) -> int:
        """Samples of all files."""
        return self.num_files * self.samples_per_file


def steps_per_epoch(dataset: Dataset, batch_size: int, num_ranks: int) -> int:
    """Steps of each rank; the last batch is dropped where it is not full.

    Raises
    ------
    InputError
        There is none: shows the arithmetic.
    """
    steps = dataset.num_samples // (batch_size * num_ranks)
    if not steps:
        raise InputError(
            f"an epoch has no steps: {dataset.num_files} files x {dataset.samples_per_file} samples = "
            f"{dataset.num_samples} samples, fewer than batch {batch_size} x {num_ranks} ranks = "
            f"{batch_size * num_ranks}",
            where="dataset.num_files_train, reader.batch_size",
            fix="generate more files, or use a smaller batch or fewer ranks",
        )
    return steps


def epoch_order(dataset: Dataset, epoch: int) -> Ints:
    """Return the order of all samples in an epoch, a permutation, int64 [N].

    Shuffled files keep the samples of each file together; shuffled samples are mixed over all files.

    Raises
    ------
    InputError
        A shuffle is none.
    """
    per_file = dataset.samples_per_file
    files = np.arange(dataset.num_files, dtype=np.int64)
    if (random := _generator(dataset, dataset.file_shuffle, epoch, 0)) is not None:
        random.shuffle(files)
    order = (files[:, None] * per_file + np.arange(per_file)).ravel()
    if (random := _generator(dataset, dataset.sample_shuffle, epoch, 1)) is not None:
        random.shuffle(order)
    return order


def _generator(dataset: Dataset, shuffle: str, epoch: int, stream: int) -> np.random.Generator | None:
    if shuffle not in _SHUFFLES:
        raise InputError(f"{shuffle!r} is no way to shuffle", where="reader", fix=f"one of {', '.join(_SHUFFLES)}")
    if shuffle == "off":
        return None
    seed = dataset.seed if shuffle == "seed" else dataset.run_seed
    entropy: list[Any] = [seed, stream, epoch if dataset.seed_changes or shuffle == "random" else 0]
    return np.random.default_rng(entropy)


def rank_order(dataset: Dataset, epoch: int, rank: int, num_ranks: int) -> Ints:
    """Return the samples that a rank reads in an epoch: disjoint ranges of the order that leave nothing out."""
    return all_rank_orders(dataset, epoch, num_ranks)[rank]


def all_rank_orders(dataset: Dataset, epoch: int, num_ranks: int) -> list[Ints]:
    """Return the samples of every rank."""
    order, total = epoch_order(dataset, epoch), dataset.num_samples
    bounds = [rank * total // num_ranks for rank in range(num_ranks + 1)]
    return [order[low:high] for low, high in pairwise(bounds)]
