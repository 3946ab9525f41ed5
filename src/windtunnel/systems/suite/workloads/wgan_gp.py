"""WGAN-GP: adversarial training with a penalty on the critic's gradient.

In: a size. Out: a ``Workload`` with two models, whose iteration is several steps of the critic (each with a double
backward) and one of the generator; its loss is the critic's. ``paper`` makes 64 x 64 images; ``small`` does with
narrower networks, ``tiny`` makes 32 x 32 images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from windtunnel import registry
from windtunnel.base.extras import require
from windtunnel.workloads.workload import Training, Workload

if TYPE_CHECKING:
    import torch

__all__ = ["wgan_gp"]

PENALTY = 10.0
LATENT = 128


@dataclass(frozen=True)
class Preset:
    """Channels at 4 x 4 pixels and after each doubling, and the training."""

    widths: tuple[int, ...]
    batch_size: int
    num_critic_steps: int
    learning_rate: float


PRESETS = {
    "tiny": Preset((64, 64, 32, 16), 8, 2, 2e-4),
    "small": Preset((128, 128, 64, 32, 16), 8, 5, 1e-4),
    "paper": Preset((512, 512, 256, 128, 64), 64, 5, 1e-4),
}


@registry.workload("wgan-gp", source="Gulrajani et al., NeurIPS 2017", domain="adversarial")
def wgan_gp(*, size: str = "small", batch_size: int | None = None, seed: int = 0) -> Workload:
    """Train a critic and a generator of images by the Wasserstein distance (paper, algorithm 1)."""
    require("torch", extra="torch")
    import torch

    from windtunnel.systems.suite.workloads.wgan_networks import START_PIXELS, critic_network, generator_network
    from windtunnel.workloads.images import image_batches, make_generator

    training = Training.of("wgan-gp", PRESETS, size, batch_size, seed)
    preset = training.preset
    batch_size = training.batch_size
    pixels = START_PIXELS * 2 ** (len(preset.widths) - 1)
    images = image_batches(pixels=pixels, batch_size=batch_size, num_classes=10, seed=seed)
    noise = make_generator(seed + 1)
    generator, critic = generator_network(LATENT, preset.widths), critic_network(preset.widths)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=preset.learning_rate, betas=(0.0, 0.9))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=preset.learning_rate, betas=(0.0, 0.9))

    def fake_pictures() -> torch.Tensor:
        result: torch.Tensor = generator(torch.randn(batch_size, LATENT, generator=noise, device=noise.device))
        return result

    def train_critic() -> torch.Tensor:
        real, _ = images.draw()
        # The critic's loss has no gradient into the generator, whose graph is not recorded here.
        with torch.no_grad():
            fake = fake_pictures()
        mix = torch.rand(batch_size, 1, 1, 1, generator=noise, device=noise.device)
        critic_optimizer.zero_grad()
        loss: torch.Tensor = critic(fake).mean() - critic(real).mean() + _penalty(critic, real.lerp(fake, mix))
        loss.backward()
        critic_optimizer.step()
        return loss.detach()

    def train_generator() -> None:
        generator_optimizer.zero_grad()
        loss = -critic(fake_pictures()).mean()
        # Only the generator's parameters: gradients of the critic would be thrown away by its next zero_grad.
        loss.backward(inputs=list(generator.parameters()))
        generator_optimizer.step()

    def step() -> torch.Tensor:
        losses = [train_critic() for _ in range(preset.num_critic_steps)]
        train_generator()
        return losses[-1]

    optimizers = (generator_optimizer, critic_optimizer)
    return training.workload((generator, critic), optimizers, step, data=images.data)


def _penalty(critic: torch.nn.Module, between: torch.Tensor) -> torch.Tensor:
    """How far the slope of the critic at these images is from 1 (paper, eq. 3)."""
    import torch

    between = between.requires_grad_()
    (slopes,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    penalty: torch.Tensor = PENALTY * (slopes.flatten(1).norm(dim=1) - 1).square().mean()
    return penalty
