"""Train a residual network on random images from a DataLoader, reading the loss in every step."""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, RandomSampler

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
synchronize = torch.cuda.synchronize if DEVICE == "cuda" else lambda: None


class Job(NamedTuple):
    """One training iteration to call, how many samples it takes, and what to call at the end."""

    step: Callable[[], None]
    batch_size: int
    close: Callable[[], None]


CHANGES: dict[str, dict[str, Any]] = {
    "amp": {"amp": "bfloat16"},
    "channels-last": {"channels_last": True},
    "no-sync": {"read_loss": False},
    "amp+channels-last": {"amp": "bfloat16", "channels_last": True},
    "amp:dtype=float16": {"amp": "float16"},
    "compile": {"compiled": True},
    "fused-optimizer": {"fused": True},
    "no-tf32": {"tf32": False},
    "tf32": {"tf32": True},
    "batch-size:factor=2": {"batch_factor": 2},
    "pinned-memory": {"pinned": True},
    "loader-workers:num_workers=1": {"workers": 1},
    "group-norm": {"group_norm": True},
    "no-foreach-optimizer": {"foreach": False},
}


class Images(Dataset):
    def __init__(self, side: int) -> None:
        self.pixels = torch.randint(256, (256, 3, side, side), dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return self.pixels[number].flip(-1) if number % 2 else self.pixels[number], number % 100


class Residual(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = norm(width), norm(width)
        self.shortcut = nn.Conv2d(inputs, width, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.conv2(functional.relu(self.norm1(self.conv1(x))))
        return functional.relu(self.norm2(inner) + self.shortcut(x))


def build(
    *,
    small: bool = False,
    amp: str | None = None,
    tf32: bool | None = None,
    channels_last: bool = False,
    compiled: bool = False,
    mode: str = "default",
    fused: bool | None = None,
    foreach: bool | None = None,
    batch_factor: int = 1,
    pinned: bool = False,
    workers: int = 4,
    read_loss: bool = True,
    group_norm: bool = False,
) -> Job:
    if tf32 is not None:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    width, side, batch = (8, 16, 4 * batch_factor) if small else (64, 112, 64 * batch_factor)
    norm = (lambda channels: nn.GroupNorm(8, channels)) if group_norm else nn.BatchNorm2d
    layers: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, 3), norm(width), nn.ReLU()]
    for inputs, outputs, stride in ((1, 1, 1), (1, 2, 2), (2, 2, 1), (2, 4, 2), (4, 4, 1), (4, 8, 2), (8, 8, 1)):
        layers.append(Residual(inputs * width, outputs * width, stride, norm))
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 100)]
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = nn.Sequential(*layers).to(DEVICE, memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, 0.9, weight_decay=1e-4, fused=fused, foreach=foreach)
    scaler = torch.amp.GradScaler(DEVICE, enabled=amp == "float16")
    forward = torch.compile(model, mode=mode) if compiled else model
    images = Images(side)
    sampler = RandomSampler(images, replacement=True, num_samples=10**7)
    loader = DataLoader(images, batch, sampler=sampler, num_workers=workers, pin_memory=pinned, drop_last=True)
    batches, losses = iter(loader), []

    def step() -> None:
        pixels, labels = next(batches)
        pixels = pixels.to(DEVICE, memory_format=layout, non_blocking=pinned)
        labels = labels.to(DEVICE, non_blocking=pinned)
        pixels = pixels.float().div_(255).sub_(0.5)
        optimizer.zero_grad()
        with torch.autocast(DEVICE, getattr(torch, amp or "bfloat16"), enabled=amp is not None):
            loss = functional.cross_entropy(forward(pixels), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item() if read_loss else 0.0)

    return Job(step, batch, getattr(batches, "_shutdown_workers", lambda: None))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--change", choices=CHANGES)
    options = parser.parse_args()
    job = build(small=options.small, **CHANGES.get(options.change, {}))
    for step in range(options.steps):
        if step == options.steps // 2:
            synchronize()
            start_s = time.perf_counter()
        job.step()
    synchronize()
    num_steps = options.steps - options.steps // 2
    print(json.dumps({"ms_per_step": 1e3 * (time.perf_counter() - start_s) / num_steps, "steps": options.steps}))
    job.close()
