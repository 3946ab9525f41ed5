"""Jobs that can be trained under any strategy: images, a text, or a user function.

In: a name such as ``lenet:norm=batch`` or ``my_job.py:make``. Out: a ``TrainJob``. Not here: the networks, strategies.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from windtunnel.errors import InputError
from windtunnel.sources.job_file import call_user_function, is_job_file
from windtunnel.systems.uneven.job import TrainJob
from windtunnel.systems.uneven.networks import lenet_network, next_word_network, norm_of, resnet_network
from windtunnel.workloads.image_sets import ImageSet, image_set
from windtunnel.workloads.texts import NUM_SPECIAL, Text

__all__ = ["JOBS", "train_job"]


def train_job(text: str) -> TrainJob:
    """Return a job by its name with parameters, or from a function in a file.

    Raises
    ------
    InputError
        There is no such job, function or parameter.
    """
    if is_job_file(text):
        return call_user_function(text, TrainJob)
    name, _, rest = text.partition(":")
    if name not in JOBS:
        raise InputError(
            f"no job is called {name!r}", where=text, fix=f"known: {', '.join(JOBS)}; or a file: my_job.py:make"
        )
    given = dict(part.partition("=")[::2] for part in rest.split(",") if part)
    known = inspect.signature(JOBS[name]).parameters
    try:
        return JOBS[name](**{key: type(known[key].default)(value) for key, value in given.items()})
    except KeyError as error:
        raise InputError(f"{name} has no parameter {error}", where=text, fix=f"it has {', '.join(known)}") from error
    except ValueError as error:
        raise InputError(f"a value of {name} cannot be read: {error}", where=text, fix="give a number") from error


def mlp(data: str = "mnist", hidden: int = 64, lr: float = 0.05, batch: int = 32) -> TrainJob:
    """Return a job with a perceptron of one hidden layer."""
    images = image_set(data)
    num_inputs = images.inputs[0].numel()

    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(num_inputs, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    return _classification_job(f"mlp on {images.data}", model, images, lambda ps: torch.optim.SGD(ps, lr=lr), batch)


def lenet(
    data: str = "cifar10", norm: str = "group", lr: float = 0.002, momentum: float = 0.9, batch: int = 20,
    shrink: int = 1, steps: int = 0,
) -> TrainJob:  # fmt: skip
    """Return a job with three convolutions and a linear layer, with group, batch or no normalization.

    Squares of ``shrink`` pixels become one, for quicker steps. The rate falls to a tenth after half and after three
    quarters of ``steps`` steps of a worker, as published; 0 leaves it.
    """
    created, images = norm_of(norm), image_set(data)
    if not 1 <= shrink <= images.inputs.shape[-1] // 8:
        raise InputError(f"squares of {shrink} pixels leave no image", where="shrink", fix="1 or 2 is usual")
    if shrink > 1:
        smaller = functional.avg_pool2d(images.inputs, shrink), functional.avg_pool2d(images.test_inputs, shrink)
        images = replace(images, data=f"{images.data}, 1/{shrink}", inputs=smaller[0], test_inputs=smaller[1])

    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=5e-4)

    def falling(of: torch.optim.Optimizer) -> torch.optim.lr_scheduler.MultiStepLR:
        return torch.optim.lr_scheduler.MultiStepLR(of, [steps // 2, steps * 3 // 4], gamma=0.1)

    channels, pixels = images.inputs.shape[1:3]
    job = _classification_job(
        f"lenet ({norm}) on {images.data}", lambda: lenet_network(channels, pixels, created), images, optimizer, batch
    )
    return replace(job, schedule=falling) if steps else job


def resnet(
    data: str = "cifar10", depth: int = 8, norm: str = "batch", lr: float = 0.05, momentum: float = 0.9, batch: int = 20
) -> TrainJob:
    """Return a job with a thin residual network of 8, 14, 20 ... layers."""
    images = image_set(data)
    created, channels = norm_of(norm), images.inputs.shape[1]

    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=5e-4)

    resnet_network(channels, depth, created)  # a depth that is none is refused before anything is trained
    name = f"resnet-{depth} ({norm}) on {images.data}"
    return _classification_job(name, lambda: resnet_network(channels, depth, created), images, optimizer, batch)


def text(vocabulary: int = 1000, width: int = 64, length: int = 16, lr: float = 1.0, batch: int = 20) -> TrainJob:
    """Predict the next word of a running text, of which each worker may have other parts.

    Windows go to training and to the test in turn, nine to one. Partitioners by label go by the tenth of the text that
    a window lies in.
    """
    if vocabulary <= NUM_SPECIAL or min(width, length) < 1:
        raise InputError(
            f"no text has {vocabulary} words in windows of {length}, or no network {width} units", where="text",
            fix=f"more than {NUM_SPECIAL} words; 1 or more of the others",
        )  # fmt: skip
    words = Text.of(vocabulary, 0)
    num_windows = (len(words.tokens) - 1) // length
    starts = np.arange(num_windows)[:, None] * length + np.arange(length)
    inputs, targets = (torch.as_tensor(words.tokens[starts + ahead]) for ahead in (0, 1))
    tenth = np.arange(num_windows) * 10 // num_windows
    is_test = torch.arange(num_windows) % 10 == 9
    return TrainJob(
        f"next word of {words.origin}", lambda: next_word_network(vocabulary, width), functional.cross_entropy,
        inputs[~is_test], targets[~is_test], inputs[is_test], targets[is_test],
        lambda ps: torch.optim.SGD(ps, lr=lr), batch, labels=tenth[~is_test.numpy()],
    )  # fmt: skip


def _classification_job(
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


JOBS: dict[str, Callable[..., TrainJob]] = {"mlp": mlp, "lenet": lenet, "resnet": resnet, "text": text}
