"""Denoising diffusion: a U-Net learns the noise in images.

In: a size. Out: a ``Workload`` of the simplified objective. ``paper`` is the CIFAR-10 network on 32 x 32 images, by
Adam with cut gradients; the running average of its weights, which only sampling needs, is left out. ``small`` is
narrower, ``tiny`` has two resolutions.
"""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel import registry
from windtunnel.base.extras import require
from windtunnel.workloads.workload import Training, Workload

__all__ = ["diffusion_unet"]

NUM_TIMES = 1000
FIRST_BETA, LAST_BETA = 1e-4, 0.02


@dataclass(frozen=True)
class Preset:
    """Channels at each resolution, residual blocks per resolution, where attention is, and the training."""

    widths: tuple[int, ...]
    blocks: int
    attention_level: int
    dropout: float
    pixels: int
    batch_size: int
    learning_rate: float


PRESETS = {
    "tiny": Preset((32, 64), 1, 1, 0.0, 16, 16, 2e-3),
    "small": Preset((64, 128, 128), 2, 1, 0.1, 32, 8, 2e-4),
    "paper": Preset((128, 256, 256, 256), 2, 1, 0.1, 32, 128, 2e-4),
}


@registry.workload("diffusion-unet", source="Ho, Jain, Abbeel, NeurIPS 2020", domain="diffusion")
def diffusion_unet(*, size: str = "small", batch_size: int | None = None, seed: int = 0) -> Workload:
    """Find the noise in images at random times of a diffusion (paper, algorithm 1)."""
    require("torch", extra="torch")
    import torch
    from torch.nn import functional

    from windtunnel.systems.suite.workloads.unet import UNet
    from windtunnel.workloads.images import image_batches, make_generator

    training = Training.of("diffusion-unet", PRESETS, size, batch_size, seed)
    preset = training.preset
    batch_size = training.batch_size
    images = image_batches(pixels=preset.pixels, batch_size=batch_size, num_classes=10, seed=seed)
    generator = make_generator(seed + 1)
    model = UNet(preset.widths, preset.blocks, preset.attention_level, preset.dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=preset.learning_rate)
    kept_T = (1 - torch.linspace(FIRST_BETA, LAST_BETA, NUM_TIMES)).cumprod(0)  # share of the image's variance left

    def step() -> torch.Tensor:
        clean, _ = images.draw()
        times = torch.randint(0, NUM_TIMES, (batch_size,), generator=generator, device=generator.device)
        noise = torch.randn(clean.shape, generator=generator, device=generator.device)
        kept = kept_T[times].view(-1, 1, 1, 1)
        noisy = kept.sqrt() * clean + (1 - kept).sqrt() * noise  # paper, eq. 4
        optimizer.zero_grad()
        loss = functional.mse_loss(model(noisy, times), noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return training.workload((model,), (optimizer,), step, data=images.data)
