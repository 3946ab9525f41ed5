"""Faster R-CNN: find the objects in a picture, in two stages.

In: a size. Out: a ``Workload``. ``paper`` is the detector with ResNet-101 on pictures of 600 pixels; ``small`` has a
ResNet-50 of half the width, ``tiny`` one bottleneck per stage. All start from random weights, so batch norms are
trained, where the paper keeps those of a trained network as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windtunnel import registry
from windtunnel.base.extras import require
from windtunnel.workloads.workload import Training, Workload

if TYPE_CHECKING:
    from windtunnel.systems.suite.workloads.detector import FasterRcnn

__all__ = ["faster_rcnn"]

MAX_OBJECTS = 8
TINY_RULES = {
    "anchor_sides": (24.0, 40.0, 64.0),
    "num_anchors_trained": 64,
    "num_regions_trained": 32,
    "num_before_suppression": 200,
    "num_after_suppression": 64,
    "min_side": 4.0,
    "pooled": 6,
}
SMALL_RULES = {
    "anchor_sides": (48.0, 96.0, 160.0),
    "num_regions_trained": 64,
    "num_before_suppression": 2000,
    "num_after_suppression": 300,
    "min_side": 8.0,
}


@dataclass(frozen=True)
class Preset:
    """The backbone, the width of the proposer, the pictures, the training, and what differs from the paper's rules."""

    units: tuple[int, ...]
    channels: int
    proposer_width: int
    height: int
    width: int
    batch_size: int
    num_classes: int
    learning_rate: float
    rules: dict[str, Any]


PRESETS = {
    "tiny": Preset((1, 1, 1, 1), 256, 64, 96, 128, 2, 4, 0.01, TINY_RULES),
    "small": Preset((3, 4, 6, 3), 1024, 256, 224, 304, 1, 20, 0.005, SMALL_RULES),
    "paper": Preset((3, 4, 23, 3), 2048, 512, 600, 800, 1, 20, 0.001, {}),
}


@registry.workload("faster-rcnn", source="Ren, He, Girshick, Sun, NeurIPS 2015", domain="object detection")
def faster_rcnn(*, size: str = "small", batch_size: int | None = None, seed: int = 0) -> Workload:
    """Detect objects with Faster R-CNN: proposals, regions, both losses."""
    require("torch", extra="torch")
    require("pytorchcv", extra="suite")
    import torch

    from windtunnel.systems.suite.workloads.scenes import Scenes
    from windtunnel.workloads.images import check_batch_size

    training = Training.of("faster-rcnn", PRESETS, size, batch_size, seed)
    preset = training.preset
    batch_size = check_batch_size(training.batch_size)
    scenes = Scenes(
        height=preset.height,
        width=preset.width,
        num_classes=preset.num_classes,
        max_objects=MAX_OBJECTS,
        batch_size=batch_size,
        seed=seed,
    )
    model = _detector(preset)
    optimizer = torch.optim.SGD(model.parameters(), lr=preset.learning_rate, momentum=0.9, weight_decay=5e-4)

    def step() -> torch.Tensor:
        batch = scenes.draw()
        optimizer.zero_grad()
        loss: torch.Tensor = model(batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return training.workload((model,), (optimizer,), step, data=scenes.data)


def _detector(preset: Preset) -> FasterRcnn:
    """The first stages of a ResNet look at the picture, the last one at each region."""
    from pytorchcv.models.resnet import ResNet
    from torch import nn

    from windtunnel.systems.suite.workloads.detector import FasterRcnn, Rules

    channels = [preset.channels // 2 ** (3 - stage) for stage in range(4)]
    stages = [[width] * units for width, units in zip(channels, preset.units, strict=True)]
    layers = ResNet(stages, preset.channels // 32, bottleneck=True, conv1_stride=True).features
    backbone = nn.Sequential(layers.init_block, layers.stage1, layers.stage2, layers.stage3)
    widths = (channels[2], preset.proposer_width, channels[3])
    return FasterRcnn(backbone, layers.stage4, widths, preset.num_classes, Rules(**preset.rules))
