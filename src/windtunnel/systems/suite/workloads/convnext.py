"""ConvNeXt: image classification by a convolutional network in today's form.

In: a size. Out: a ``Workload``. ``paper`` is ConvNeXt-T on 224 x 224 images; ``small`` the same network on smaller
ones; ``tiny`` has one or two blocks per stage. The stages are those of the transformers library; they are put together
here because its encoder reads numbers out of tensors while it is built, which no dry run can do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from windtunnel import registry
from windtunnel.base.extras import require
from windtunnel.workloads.workload import Training, Workload

if TYPE_CHECKING:
    import torch

__all__ = ["convnext"]


@dataclass(frozen=True)
class Preset:
    """Channels and blocks of each stage and what the network is trained on."""

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    pixels: int
    batch_size: int
    num_classes: int
    learning_rate: float
    drop_path: float


PRESETS = {
    "tiny": Preset((16, 32, 64, 128), (1, 1, 2, 1), 64, 48, 10, 2e-3, 0.0),
    "small": Preset((96, 192, 384, 768), (3, 3, 9, 3), 96, 8, 10, 3e-4, 0.1),
    "paper": Preset((96, 192, 384, 768), (3, 3, 9, 3), 224, 32, 1000, 4e-3 * 32 / 4096, 0.1),
}


@registry.workload("convnext", source="Liu et al., CVPR 2022", domain="image classification")
def convnext(*, size: str = "small", batch_size: int | None = None, seed: int = 0) -> Workload:
    """Classify images with ConvNeXt, by AdamW with smoothed labels and dropped paths (paper, appendix A.1)."""
    require("torch", extra="torch")
    require("transformers", extra="suite")
    import torch

    from windtunnel.systems.suite.workloads.classifier import classifier

    training = Training.of("convnext", PRESETS, size, batch_size, seed)
    preset = training.preset
    model = _network(preset)
    optimizer = torch.optim.AdamW(model.parameters(), lr=preset.learning_rate, weight_decay=0.05)
    return classifier(
        training,
        model,
        optimizer,
        label_smoothing=0.1,
    )


def _network(preset: Preset) -> torch.nn.Module:
    from torch import nn
    from transformers import ConvNextConfig
    from transformers.models.convnext.modeling_convnext import ConvNextEmbeddings, ConvNextStage

    from windtunnel.systems.suite.workloads.classifier import reset

    config = ConvNextConfig(hidden_sizes=preset.widths, depths=preset.depths)
    widths, depths = preset.widths, preset.depths
    drops = [preset.drop_path * block / (sum(depths) - 1) for block in range(sum(depths))]
    stages = [
        ConvNextStage(
            config,
            in_channels=widths[max(0, stage - 1)],
            out_channels=widths[stage],
            stride=2 if stage else 1,
            depth=depths[stage],
            drop_path_rates=drops[sum(depths[:stage]) :][: depths[stage]],
        )
        for stage in range(len(widths))
    ]
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    head = nn.Sequential(nn.LayerNorm(widths[-1], eps=1e-6), nn.Linear(widths[-1], preset.num_classes))
    return nn.Sequential(ConvNextEmbeddings(config), *stages, pool, head).apply(reset)
