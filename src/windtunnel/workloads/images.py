"""Batches of labeled images, real or drawn.

In: how large, how many classes, a seed. Out: ``ImageBatches``, whose ``draw`` gives a fresh batch of images in -1..1
with their classes. Real CIFAR-10 where ``WINDTUNNEL_DATA`` names a folder that has it, else gratings whose color,
angle and frequency belong to the class, so that they can be learned. Not here: boxes (``systems.suite``).
"""

from __future__ import annotations

import lzma
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from windtunnel.errors import InputError
from windtunnel.workloads.workload import data_file

__all__ = ["ImageBatches", "Patterns", "check_batch_size", "image_batches", "make_generator", "read_cifar"]

CIFAR_FILE = "vision/cifar10_train_10000.rgbdelta.xz"
CIFAR_CLASSES, CIFAR_PIXELS = 10, 32
NOISE = 0.25
"""Standard deviation of the noise that lies over every drawn image."""


@dataclass(frozen=True)
class ImageBatches:
    """Where batches come from.

    Parameters
    ----------
    data : str
        What the images are.
    draw : callable
        A fresh batch at each call: images [batch, 3, pixels, pixels] in -1..1, classes [batch] int64.
    """

    data: str
    draw: Callable[[], tuple[torch.Tensor, torch.Tensor]]


def image_batches(*, pixels: int, batch_size: int, num_classes: int, seed: int, is_drawn: bool = False) -> ImageBatches:
    """Batches of square images with ``pixels`` on a side; drawn ones even where there are real ones, if asked for.

    Raises
    ------
    InputError
        The batch size is below 1, or the file of real images is damaged.
    """
    check_batch_size(batch_size)
    path = None if is_drawn else data_file(CIFAR_FILE)
    if path is not None and num_classes >= CIFAR_CLASSES:
        return _photographs(path, pixels, batch_size, seed)
    return _gratings(pixels, batch_size, num_classes, seed)


def check_batch_size(batch_size: int) -> int:
    """That batch size.

    Raises
    ------
    InputError
        It is below 1.
    """
    if batch_size < 1:
        raise InputError(
            f"a batch of {batch_size} images cannot be trained on", where="batch_size", fix="take 1 or more"
        )
    return batch_size


def make_generator(seed: int) -> torch.Generator:
    """A source of random numbers of its own, on the device on which new tensors are made."""
    return torch.Generator(device=torch.get_default_device()).manual_seed(seed)


def _photographs(path: Path, pixels: int, batch_size: int, seed: int) -> ImageBatches:
    images_NCHW, labels_N = read_cifar(path)
    generator = make_generator(seed)

    def draw() -> tuple[torch.Tensor, torch.Tensor]:
        selected = torch.randint(0, len(labels_N), (batch_size,), generator=generator, device=generator.device)
        images = images_NCHW[selected].float().div(127.5).sub(1.0)
        if pixels != CIFAR_PIXELS:
            images = functional.interpolate(images, size=(pixels, pixels), mode="bilinear", antialias=False)
        return images, labels_N[selected]

    scaled = "" if pixels == CIFAR_PIXELS else f", scaled to {pixels} x {pixels}"
    return ImageBatches(f"CIFAR-10 ({len(labels_N):,} images{scaled})", draw)


def read_cifar(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """All images of a file as uint8 [N, 3, 32, 32], and their classes as int64 [N].

    Raises
    ------
    InputError
        The file is damaged, or has no labels beside it.
    """
    return torch.tensor(_decode_images(path)), torch.tensor(_labels(path), dtype=torch.int64)


def _decode_images(path: Path) -> np.ndarray:
    """Undo the differences between channels, columns and rows in which the file stores its bytes [N, 3, 32, 32]."""
    try:
        stored = np.frombuffer(lzma.decompress(path.read_bytes()), np.uint8).reshape(-1, 3, CIFAR_PIXELS, CIFAR_PIXELS)
    except (lzma.LZMAError, EOFError, ValueError) as error:
        raise InputError(f"the images cannot be read: {error}", where=str(path), fix="copy the file anew") from error
    images = np.cumsum(np.cumsum(stored, axis=2, dtype=np.uint8), axis=3, dtype=np.uint8)
    images[:, 0] += images[:, 1]
    images[:, 2] += images[:, 1]
    return images


def _labels(path: Path) -> np.ndarray:
    beside = path.with_name(path.name.replace(".rgbdelta.xz", "_labels.npy"))
    if not beside.exists():
        raise InputError(
            "the images have no labels", where=str(beside), fix="put the file of labels next to the images"
        )
    return np.asarray(np.load(beside))


class Patterns:
    """Each class has a grating of its own: a color, an angle and a frequency in cycles per image height."""

    def __init__(self, num_classes: int, generator: torch.Generator) -> None:
        def uniform(*shape: int) -> torch.Tensor:
            return torch.rand(shape, generator=generator, device=generator.device)

        self.colors_K3 = uniform(num_classes, 3) - 0.5
        self.angles_K = uniform(num_classes) * math.pi
        self.cycles_K = uniform(num_classes) * 8 + 4

    def paint(self, classes_B: torch.Tensor, phases_B: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """Whole images [B, 3, height, width] of the patterns of those classes."""
        down = torch.arange(height, device=classes_B.device).view(1, -1, 1) / height
        right = torch.arange(width, device=classes_B.device).view(1, 1, -1) / height
        angles, cycles = self.angles_K[classes_B].view(-1, 1, 1), self.cycles_K[classes_B].view(-1, 1, 1)
        turns = cycles * (right * angles.cos() + down * angles.sin()) + phases_B.view(-1, 1, 1)
        waves = (2 * math.pi * turns).sin().unsqueeze(1)  # [B, 1, height, width]
        return self.colors_K3[classes_B].view(-1, 3, 1, 1) + 0.4 * waves


def _gratings(pixels: int, batch_size: int, num_classes: int, seed: int) -> ImageBatches:
    generator = make_generator(seed)
    patterns = Patterns(num_classes, generator)

    def draw() -> tuple[torch.Tensor, torch.Tensor]:
        source: Any = {"generator": generator, "device": generator.device}
        classes = torch.randint(0, num_classes, (batch_size,), **source)
        images = patterns.paint(classes, torch.rand(batch_size, **source), pixels, pixels)
        noise = torch.randn(images.shape, **source)
        return (images + NOISE * noise).clamp(-1, 1), classes

    return ImageBatches(f"synthetic: {num_classes} classes of {pixels} x {pixels} gratings, all equally frequent", draw)
