"""What the scripts of this folder train, on synthetic data, on whatever device there is."""

import os

import torch
import torch.distributed as dist
from torch import nn

WIDTH, NUM_BLOCKS, BATCH, LENGTH = 128, 3, 4, 32


class Block(nn.Module):
    """Attention and a perceptron."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer."""
        heads = [part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.mix(self.first(x)).chunk(3, -1)]
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


def begin() -> torch.device:
    """Join the job."""
    has_device = torch.cuda.is_available()
    dist.init_process_group("nccl" if has_device else "gloo")
    torch.manual_seed(0)
    return torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_device else torch.device("cpu")


def blocks(device: torch.device) -> nn.Sequential:
    """The model."""
    return nn.Sequential(*[Block() for _ in range(NUM_BLOCKS)]).to(device)


def train(
    model: nn.Module, device: torch.device, *, clips: bool = False, steps: int = 8, foreach: bool | None = None
) -> None:
    """A plain loop."""
    optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randn(BATCH, LENGTH, WIDTH, device=device)
        loss = model(x).pow(2).mean()
        loss.backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"{loss.item():.3f}")
