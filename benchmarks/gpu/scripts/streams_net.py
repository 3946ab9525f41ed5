"""Train a convolutional network whose inputs are prefetched on a stream of their own, selecting hard samples."""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
synchronize = torch.cuda.synchronize if DEVICE == "cuda" else lambda: None


class Job(NamedTuple):
    """One training iteration to call, how many samples it takes, and what to call at the end."""

    step: Callable[[], None]
    batch_size: int
    close: Callable[[], None]


CHANGES: dict[str, dict[str, Any]] = {
    "no-sync": {"select": False},
    "no-prefetch": {"prefetched": False},
    "no-pinned-memory": {"pinned": False},
    "amp": {"amp": "bfloat16"},
    "channels-last": {"channels_last": True},
    "no-sync+no-prefetch": {"select": False, "prefetched": False},
    "fused-optimizer": {"fused": True},
    "batch-size:factor=2": {"batch_factor": 2},
    "tf32": {"tf32": True},
}


class Prefetcher:
    """Copies the next batch while the current one is computed."""

    def __init__(self, inputs: torch.Tensor, labels: torch.Tensor, batch: int, prefetched: bool) -> None:
        self.inputs, self.labels, self.batch, self.start = inputs, labels, batch, 0
        self.stream = torch.cuda.Stream() if DEVICE == "cuda" and prefetched else None
        self.load()

    def load(self) -> None:
        self.start = (self.start + self.batch) % (len(self.inputs) - self.batch)
        rows = slice(self.start, self.start + self.batch)
        with torch.cuda.stream(self.stream):  # the current one where there is none
            self.next = self.inputs[rows].to(DEVICE, non_blocking=True), self.labels[rows].to(DEVICE, non_blocking=True)

    def __next__(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            for tensor in self.next:
                tensor.record_stream(torch.cuda.current_stream())
        ready = self.next
        self.load()
        return ready


def build(
    *,
    small: bool = False,
    amp: str | None = None,
    tf32: bool | None = None,
    channels_last: bool = False,
    fused: bool | None = None,
    batch_factor: int = 1,
    pinned: bool = True,
    prefetched: bool = True,
    select: bool = True,
) -> Job:
    if tf32 is not None:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    width, side, batch = (4, 8, 4 * batch_factor) if small else (64, 96, 128 * batch_factor)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, width), (width, 2 * width), (2 * width, 4 * width), (4 * width, 4 * width)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.SiLU()]
        layers += [nn.Conv2d(outputs, outputs, 3, padding=1), nn.SiLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10)]
    model = nn.Sequential(*layers).to(DEVICE, memory_format=layout)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused)
    images, labels = torch.randn(4 * batch, 3, side, side), torch.randint(10, (4 * batch,))
    if pinned and DEVICE == "cuda":
        images, labels = images.pin_memory(), labels.pin_memory()
    batches = Prefetcher(images, labels, batch, prefetched)

    def step() -> None:
        x, y = next(batches)
        optimizer.zero_grad()
        with torch.autocast(DEVICE, getattr(torch, amp or "bfloat16"), enabled=amp is not None):
            losses = functional.cross_entropy(model(x.to(memory_format=layout)), y, reduction="none")
        if select:
            hard = (losses > losses.mean()).nonzero().flatten()
            losses = losses[hard] if hard.numel() > batch // 8 else losses
        losses.mean().backward()
        if select and not losses.sum().isfinite().item():
            raise RuntimeError("the loss is not finite")
        optimizer.step()

    return Job(step, batch, lambda: None)


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
