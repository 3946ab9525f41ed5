"""ViT: image classification by a transformer over patches.

In: a size. Out: a ``Workload``. ``paper`` is ViT-B/16; ``small`` the later ViT-Ti/16 on the same images; ``tiny`` has
three layers on 32 x 32 images. The layers are those of the transformers library; they are put together here because its
whole network reads numbers out of tensors while its weights are drawn, which no dry run can do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windtunnel import registry
from windtunnel.base.extras import require
from windtunnel.workloads.workload import Training, Workload

if TYPE_CHECKING:
    import torch

__all__ = ["vit"]


@dataclass(frozen=True)
class Preset:
    """Sizes of one transformer and what it is trained on."""

    width: int
    depth: int
    heads: int
    patch: int
    pixels: int
    batch_size: int
    num_classes: int
    learning_rate: float
    dropout: float


PRESETS = {
    "tiny": Preset(96, 3, 4, 4, 32, 64, 10, 1e-3, 0.0),
    "small": Preset(192, 12, 3, 16, 224, 8, 10, 3e-4, 0.0),
    "paper": Preset(768, 12, 12, 16, 224, 32, 1000, 3e-3 * 32 / 4096, 0.1),
}


@registry.workload("vit", source="Dosovitskiy et al., ICLR 2021", domain="image classification")
def vit(*, size: str = "small", batch_size: int | None = None, seed: int = 0) -> Workload:
    """Classify images with a vision transformer, by Adam with decoupled decay and cut gradients (paper, table 3)."""
    require("torch", extra="torch")
    require("transformers", extra="suite")
    import torch

    from windtunnel.systems.suite.workloads.classifier import classifier

    training = Training.of("vit", PRESETS, size, batch_size, seed)
    preset = training.preset
    model = _network(preset)
    optimizer = torch.optim.AdamW(model.parameters(), lr=preset.learning_rate, weight_decay=0.3)
    return classifier(
        training,
        model,
        optimizer,
        max_norm=1.0,
    )


def _network(preset: Preset) -> torch.nn.Module:
    from torch import nn
    from transformers import ViTConfig
    from transformers.models.vit.modeling_vit import ViTEmbeddings, ViTLayer

    from windtunnel.systems.suite.workloads.classifier import FirstToken, reset

    options: dict[str, Any] = {
        "hidden_size": preset.width,
        "num_attention_heads": preset.heads,
        "intermediate_size": 4 * preset.width,
        "hidden_dropout_prob": preset.dropout,
        "image_size": preset.pixels,
        "patch_size": preset.patch,
        "attn_implementation": "sdpa",
    }
    config = ViTConfig(**options)
    layers = [ViTLayer(config) for _ in range(preset.depth)]
    norm, head = nn.LayerNorm(preset.width, eps=config.layer_norm_eps), nn.Linear(preset.width, preset.num_classes)
    return nn.Sequential(ViTEmbeddings(config), *layers, norm, FirstToken(), head).apply(reset)
