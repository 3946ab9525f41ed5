"""A generative adversarial pair on small images.

In: sizes. Out: a ``Workload`` with two models and two optimizers, whose iteration steps both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel import registry
from windtunnel.base.extras import require
from windtunnel.workloads.workload import Workload

if TYPE_CHECKING:
    import torch

__all__ = ["gan"]


@registry.workload("gan", source="Goodfellow et al., NeurIPS 2014; Radford, Metz, Chintala, ICLR 2016")
def gan(*, batch_size: int = 32, width: int = 16, latent: int = 64, seed: int = 0) -> Workload:
    """Train a critic and a generator of 32 x 32 images in turn."""
    require("torch", extra="torch")
    import torch
    from torch import nn

    torch.manual_seed(seed)
    generator, critic = _generator(latent, width), _critic(width)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    loss_function = nn.BCEWithLogitsLoss()
    images = torch.randn(batch_size, 3, 32, 32)
    is_real, is_made = torch.ones(batch_size, 1), torch.zeros(batch_size, 1)

    def step() -> torch.Tensor:
        created = generator(torch.randn(batch_size, latent, 1, 1, device=images.device))
        critic_optimizer.zero_grad()
        critic_loss = loss_function(critic(images), is_real) + loss_function(critic(created.detach()), is_made)
        critic_loss.backward()
        critic_optimizer.step()
        generator_optimizer.zero_grad()
        loss: torch.Tensor = loss_function(critic(created), is_real)
        loss.backward()
        generator_optimizer.step()
        return loss.detach()

    return Workload("gan", (generator, critic), (critic_optimizer, generator_optimizer), step, batch_size)


def _generator(latent: int, width: int) -> torch.nn.Module:
    from torch import nn

    def grow(inputs: int, outputs: int, stride: int, padding: int) -> list[nn.Module]:
        up = nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False)
        return [up, nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *grow(latent, 4 * width, 1, 0),
        *grow(4 * width, 2 * width, 2, 1),
        *grow(2 * width, width, 2, 1),
        nn.ConvTranspose2d(width, 3, 4, 2, 1),
        nn.Tanh(),
    )


def _critic(width: int) -> torch.nn.Module:
    from torch import nn

    def shrink(inputs: int, outputs: int) -> list[nn.Module]:
        down = nn.Conv2d(inputs, outputs, 4, 2, 1, bias=False)
        return [down, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2)]

    return nn.Sequential(
        *shrink(3, width),
        *shrink(width, 2 * width),
        *shrink(2 * width, 4 * width),
        nn.Conv2d(4 * width, 1, 4),
        nn.Flatten(),
    )
