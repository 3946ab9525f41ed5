"""A data set of compressed batches on a disk, with the preprocessing of real images.

In: a workload that draws batches. Out: files of one batch each, and batches made of them: read, decompressed, and,
where they are images, cut out at random places, mirrored and scaled. Not here: who reads when (``rank``).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from windtunnel.errors import InputError
from windtunnel.measure.disks import read_at
from windtunnel.measure.links import Bucket

if TYPE_CHECKING:
    import torch

    from windtunnel.workloads.workload import Workload

__all__ = ["BatchFiles", "batch_of", "write_batches"]

_MARGIN = 4  # pixels that are cut off
_PIXELS = 4  # dimensions of images


def write_batches(workload: Workload, folder: Path, num_files: int) -> list[Path]:
    """Write batches of the workload, compressed; images as bytes, with a margin.

    Raises
    ------
    InputError
        The workload does not say how a batch is drawn.
    """
    if workload.supervised is None:
        raise InputError(
            f"{workload.name} does not say what a batch is", where=workload.name,
            fix="take a workload that is a model and a loss, such as mlp, relu-network, resnet50 or decoder-lm",
        )  # fmt: skip
    paths = []
    for number in range(num_files):
        inputs, target = workload.supervised.draw()
        arrays: dict[str, Any] = {
            f"input{index}": _encode_images(tensor.cpu().numpy()) for index, tensor in enumerate(inputs)
        }
        path = folder / f"batch{number:06d}.npz"
        np.savez_compressed(path, target=target.cpu().numpy(), **arrays)
        paths.append(path)
    return paths


def _is_image(array: np.ndarray[Any, Any]) -> bool:
    return array.ndim == _PIXELS and (array.dtype == np.uint8 or np.issubdtype(array.dtype, np.floating))


def _encode_images(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if not _is_image(array):
        return array
    wide = np.pad(array, ((0, 0), (0, 0), (_MARGIN, _MARGIN), (_MARGIN, _MARGIN)), mode="reflect")
    stored: np.ndarray[Any, Any] = np.clip(wide * 127.5 + 127.5, 0, 255).astype(np.uint8)
    return stored


def batch_of(data: bytes, random: np.random.Generator) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Decode a file into inputs and target: decompress, crop and mirror images, scale them to -1..1."""
    import torch

    with np.load(io.BytesIO(data)) as stored:
        names = [name for name in stored.files if name != "target"]
        inputs = tuple(torch.from_numpy(_augment_images(stored[name], random)) for name in names)
        return inputs, torch.from_numpy(stored["target"])


def _augment_images(array: np.ndarray[Any, Any], random: np.random.Generator) -> np.ndarray[Any, Any]:
    if not _is_image(array):
        return array
    height, width = (size - 2 * _MARGIN for size in array.shape[2:])
    used = np.empty((*array.shape[:2], height, width), np.float32)
    indices = random.integers(0, 2 * _MARGIN + 1, (len(array), 2))
    is_mirrored = random.random(len(array)) < 0.5
    for row, (top, left) in enumerate(indices):
        cut = array[row, :, top : top + height, left : left + width]
        used[row] = cut[:, :, ::-1] if is_mirrored[row] else cut
    return used / np.float32(127.5) - np.float32(1)


class BatchFiles:
    """The files of one rank in an endless random order, as a data set for ``torch.utils.data.DataLoader``.

    Parameters
    ----------
    paths : sequence of Path
    seed : int
    rate : callable
        Bytes per second at which files are read now; 0 for as fast as they come.
    """

    def __init__(self, paths: Sequence[Path], seed: int, rate: Callable[[], float]) -> None:
        self._paths, self._random, self._rate = paths, np.random.default_rng(seed), rate
        self._bucket = Bucket(1.0)

    def __iter__(self) -> Iterator[tuple[tuple[torch.Tensor, ...], torch.Tensor]]:
        while True:
            for path in self._paths:
                yield batch_of(self._read_at_rate(path), self._random)

    def _read_at_rate(self, path: Path) -> bytes:
        rate = self._rate()
        if not rate:
            return path.read_bytes()
        if rate != self._bucket.bandwidth_bytes_per_s:
            self._bucket = Bucket(rate)
        return read_at(path, self._bucket)
