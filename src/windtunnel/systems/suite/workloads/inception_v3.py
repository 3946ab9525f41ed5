"""Inception-v3: image classification by units of parallel branches.

In: a size. Out: a ``Workload``. ``paper`` is the published network on 299 x 299 images, without the side classifier;
``small`` the same network on smaller ones; ``tiny`` has one unit of each kind.
"""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel import registry
from windtunnel.base.extras import require
from windtunnel.workloads.workload import Training, Workload

__all__ = ["inception_v3"]

ALL = ((256, 288, 288), (768, 768, 768, 768, 768), (1280, 2048, 2048))
ONE = ((288,), (768, 768), (1280, 2048))


@dataclass(frozen=True)
class Preset:
    """Channels of the units of each stage, inner channels of the units with 7 x 7 branches, and the training."""

    stages: tuple[tuple[int, ...], ...]
    inner: tuple[int, ...]
    pixels: int
    batch_size: int
    num_classes: int
    learning_rate: float


PRESETS = {
    "tiny": Preset(ONE, (128,), 107, 8, 10, 0.07),
    "small": Preset(ALL, (128, 160, 160, 192), 155, 8, 10, 0.045),
    "paper": Preset(ALL, (128, 160, 160, 192), 299, 32, 1000, 0.045),
}


@registry.workload("inception-v3", source="Szegedy et al., CVPR 2016", domain="image classification")
def inception_v3(*, size: str = "small", batch_size: int | None = None, seed: int = 0) -> Workload:
    """Classify images with Inception-v3, by RMSprop with cut gradients and smoothed labels (paper, section 8)."""
    require("torch", extra="torch")
    require("pytorchcv", extra="suite")
    import torch
    from pytorchcv.models.inceptionv3 import InceptionV3

    from windtunnel.systems.suite.workloads.classifier import classifier

    training = Training.of("inception-v3", PRESETS, size, batch_size, seed)
    preset = training.preset
    model = InceptionV3(preset.stages, 192, preset.inner, bn_eps=1e-3, num_classes=preset.num_classes)
    model.features.final_pool = torch.nn.AdaptiveAvgPool2d(1)  # the library's own fits one image size only
    optimizer = torch.optim.RMSprop(model.parameters(), lr=preset.learning_rate, alpha=0.9, eps=1.0)
    return classifier(
        training,
        model,
        optimizer,
        label_smoothing=0.1,
        max_norm=2.0,
    )
