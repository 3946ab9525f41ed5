"""Finite sets of labeled images, to train on and to test with.

In: a name, a seed. Out: an ``ImageSet``. Real CIFAR-10 and MNIST where ``WINDTUNNEL_DATA`` names a folder that has
them, else drawn gratings of ten classes that can be learned. Not here: batches without end (``images.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from windtunnel.errors import InputError
from windtunnel.workloads.workload import data_file

if TYPE_CHECKING:
    import torch

__all__ = ["ImageSet", "image_set"]

_CIFAR, _CIFAR_TEST = (f"vision/cifar10_{part}.rgbdelta.xz" for part in ("train_10000", "test_2000"))
_CIFAR_PIXELS, _CLASSES = 32, 10
_MNIST, _MNIST_PIXELS, _MNIST_TEST = "vision/mnist_t10k.npz", 28, 2000
_DRAWN_TRAIN, _DRAWN_TEST = 4000, 1000


@dataclass(frozen=True)
class ImageSet:
    """Images with their classes.

    Parameters
    ----------
    data : str
        What they are.
    inputs, test_inputs : float32 tensor [samples, channels, pixels, pixels]
        In -1..1.
    targets, test_targets : int64 tensor [samples]
    """

    data: str
    inputs: torch.Tensor
    targets: torch.Tensor
    test_inputs: torch.Tensor
    test_targets: torch.Tensor


def image_set(name: str, *, seed: int = 0) -> ImageSet:
    """``cifar10``, ``mnist`` or ``gratings``; the first two are gratings of their size where the data is absent.

    Raises
    ------
    InputError
        There is no such set, or its file is damaged.
    """
    if name == "cifar10":
        train, test = data_file(_CIFAR), data_file(_CIFAR_TEST)
        return _cifar(train, test) if train and test else _gratings(_CIFAR_PIXELS, 3, seed)
    if name == "mnist":
        path = data_file(_MNIST)
        return _mnist(path) if path else _gratings(_MNIST_PIXELS, 1, seed)
    if name == "gratings":
        return _gratings(_CIFAR_PIXELS, 3, seed)
    raise InputError(f"no set of images is called {name!r}", where="data", fix="known: cifar10, mnist, gratings")


def _cifar(train: Path, test: Path) -> ImageSet:
    from windtunnel.workloads.images import read_cifar

    (inputs, targets), (test_inputs, test_targets) = read_cifar(train), read_cifar(test)
    words = f"CIFAR-10 ({len(targets):,} images, {len(test_targets):,} to test)"
    return ImageSet(words, _scale_pixels(inputs), targets, _scale_pixels(test_inputs), test_targets)


def _mnist(path: Path) -> ImageSet:
    import torch

    try:
        with np.load(path) as stored:
            images, labels = torch.tensor(stored["x"]).unsqueeze(1), torch.tensor(stored["y"], dtype=torch.int64)
    except (OSError, KeyError, ValueError) as error:
        raise InputError(f"the images cannot be read: {error}", where=str(path), fix="copy the file anew") from error
    index = len(labels) - _MNIST_TEST
    words = f"MNIST ({index:,} images, {_MNIST_TEST:,} to test)"
    return ImageSet(words, _scale_pixels(images[:index]), labels[:index], _scale_pixels(images[index:]), labels[index:])


def _gratings(pixels: int, channels: int, seed: int) -> ImageSet:
    from windtunnel.workloads.images import image_batches

    num = _DRAWN_TRAIN + _DRAWN_TEST
    batches = image_batches(pixels=pixels, batch_size=num, num_classes=_CLASSES, seed=seed, is_drawn=True)
    images, labels = batches.draw()
    images = images[:, :channels] if channels == 3 else images.mean(1, keepdim=True)
    index = _DRAWN_TRAIN
    return ImageSet(batches.data, images[:index], labels[:index], images[index:], labels[index:])


def _scale_pixels(images: torch.Tensor) -> torch.Tensor:
    return images.float().div(127.5).sub(1.0)
