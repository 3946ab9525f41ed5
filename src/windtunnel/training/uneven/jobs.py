"""What can be trained under any strategy (room training): small networks on images, or a function of one's own.

In: a text such as ``lenet:norm=batch`` or ``my_job.py:make``. Out: a ``TrainJob``. The network of ``lenet`` is GN-LeNet
of Hsieh et al., The Non-IID Data Quagmire, ICML 2020. Not here: strategies.
"""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from windtunnel.errors import InputError
from windtunnel.training.uneven.job import TrainJob
from windtunnel.workloads.image_sets import ImageSet, image_set

__all__ = ["JOBS", "train_job"]

_NORMS: dict[str, Callable[[int], nn.Module]] = {
    "group": lambda channels: nn.GroupNorm(2, channels),
    "batch": nn.BatchNorm2d,
    "none": lambda _: nn.Identity(),
}


def train_job(text: str) -> TrainJob:
    """A job by its name with parameters, or by a file and a function in it that returns one.

    Raises
    ------
    InputError
        There is no such job, function or parameter.
    """
    name, _, rest = text.partition(":")
    if name.endswith(".py"):
        return _own(Path(name), rest or "make")
    if name not in JOBS:
        raise InputError(
            f"no job is called {name!r}", where=text, fix=f"known: {', '.join(JOBS)}; or a file: my_job.py:make"
        )
    given = dict(one.partition("=")[::2] for one in rest.split(",") if one)
    known = inspect.signature(JOBS[name]).parameters
    try:
        return JOBS[name](**{key: type(known[key].default)(value) for key, value in given.items()})
    except KeyError as error:
        raise InputError(f"{name} has no parameter {error}", where=text, fix=f"it has {', '.join(known)}") from error
    except ValueError as error:
        raise InputError(f"a value of {name} cannot be read: {error}", where=text, fix="give a number") from error


def mlp(data: str = "mnist", hidden: int = 64, lr: float = 0.05, batch: int = 32) -> TrainJob:
    """A perceptron with one hidden layer."""
    images = image_set(data)
    num_inputs = images.inputs[0].numel()

    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(num_inputs, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    return _classified(f"mlp on {images.data}", model, images, lambda ps: torch.optim.SGD(ps, lr=lr), batch)


def lenet(
    data: str = "cifar10", norm: str = "group", lr: float = 0.002, momentum: float = 0.9, batch: int = 20,
    shrink: int = 1,
) -> TrainJob:  # fmt: skip
    """Three convolutions and a linear layer, with group, batch or no normalization.

    Squares of ``shrink`` pixels become one, for quicker steps.
    """
    if norm not in _NORMS:
        raise InputError(f"no normalization is called {norm!r}", where="norm", fix=f"known: {', '.join(_NORMS)}")
    images = image_set(data)
    if not 1 <= shrink <= images.inputs.shape[-1] // 8:
        raise InputError(f"squares of {shrink} pixels leave no image", where="shrink", fix="1 or 2 is usual")
    if shrink > 1:
        smaller = functional.avg_pool2d(images.inputs, shrink), functional.avg_pool2d(images.test_inputs, shrink)
        images = replace(images, data=f"{images.data}, 1/{shrink}", inputs=smaller[0], test_inputs=smaller[1])

    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=5e-4)

    channels, pixels = images.inputs.shape[1:3]
    return _classified(
        f"lenet ({norm}) on {images.data}", lambda: lenet_network(channels, pixels, _NORMS[norm]), images, optimizer,
        batch,
    )  # fmt: skip


def lenet_network(channels: int, pixels: int, norm: Callable[[int], nn.Module]) -> nn.Module:
    """GN-LeNet, or the same with another normalization."""

    def block(before: int, after: int, pool: nn.Module, *, pools_first: bool) -> list[nn.Module]:
        layers = [norm(after), nn.ReLU()]
        pooled = [pool, *layers] if pools_first else [*layers, pool]
        return [nn.Conv2d(before, after, 5, padding=2), *pooled]

    def halved(size: int) -> int:
        return (size - 3 + 1) // 2 + 1  # a window of 3, every 2, rounded up

    left = halved(halved(halved(pixels)))
    return nn.Sequential(
        *block(channels, 32, nn.MaxPool2d(3, 2, ceil_mode=True), pools_first=True),
        *block(32, 32, nn.AvgPool2d(3, 2, ceil_mode=True), pools_first=False),
        *block(32, 64, nn.AvgPool2d(3, 2, ceil_mode=True), pools_first=False),
        nn.Flatten(),
        nn.Linear(64 * left * left, 10),
    )


def _classified(
    name: str,
    model: Callable[[], nn.Module],
    images: ImageSet,
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    batch_size: int,
) -> TrainJob:
    return TrainJob(
        name, model, functional.cross_entropy, images.inputs, images.targets, images.test_inputs, images.test_targets,
        optimizer, batch_size,
    )  # fmt: skip


def _own(path: Path, function: str) -> TrainJob:
    """The job that a function of a user's file returns."""
    if not path.is_file():
        raise InputError("there is no such file", where=str(path), fix="give file.py:function")
    made = runpy.run_path(str(path)).get(function)
    if not callable(made):
        raise InputError(f"the file has no function {function!r}", where=str(path), fix="give file.py:function")
    job = made()
    if not isinstance(job, TrainJob):
        raise InputError(
            f"{function} returned a {type(job).__name__}",
            where=str(path),
            fix="return a windtunnel.training.uneven.job.TrainJob",
        )
    return job


JOBS: dict[str, Callable[..., TrainJob]] = {"mlp": mlp, "lenet": lenet}
