"""Train a network of many small layers whose whole step is replayed as one CUDA graph."""

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
    "no-cuda-graphs": {"graphed": ""},
    "cuda-graphs:part=model": {"graphed": "model"},
    "amp": {"amp": "bfloat16"},
    "tf32": {"tf32": True},
    "batch-size:factor=2": {"batch_factor": 2},
    "no-foreach-optimizer": {"foreach": False},
    "fused-optimizer": {"fused": True},
}


class Mixer(nn.Module):
    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.along = nn.Sequential(nn.Linear(length, length), nn.GELU(), nn.Linear(length, length))
        self.across = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.along(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.across(self.norm2(x))


def build(
    *,
    small: bool = False,
    amp: str | None = None,
    tf32: bool | None = None,
    fused: bool | None = None,
    foreach: bool | None = None,
    batch_factor: int = 1,
    graphed: str = "step",
) -> Job:
    if tf32 is not None:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    width, length, depth, batch = (16, 8, 2, 4) if small else (256, 64, 16, 32)
    batch *= batch_factor
    model = nn.Sequential(*(Mixer(width, length) for _ in range(depth)), nn.Linear(width, 10)).to(DEVICE)
    capturable = DEVICE == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=capturable, fused=fused, foreach=foreach)
    features, labels = torch.randn(4 * batch, length, width), torch.randint(10, (4 * batch, length))
    x, y = features[:batch].to(DEVICE), labels[:batch].to(DEVICE)
    forward: Callable[..., torch.Tensor] = model
    if graphed == "model" and capturable:
        forward = torch.cuda.make_graphed_callables(model, (x,))

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, getattr(torch, amp or "bfloat16"), enabled=amp is not None, cache_enabled=False):
            loss = functional.cross_entropy(forward(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()

    run = train
    if graphed == "step" and capturable:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                train()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            train()
        run = graph.replay

    def step() -> None:
        rows = torch.randint(len(labels), (batch,))
        x.copy_(features[rows])
        y.copy_(labels[rows])
        run()

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
