"""Adapt a frozen transformer by low-rank layers in float16, recomputing blocks and accumulating four passes."""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint as recompute

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
synchronize = torch.cuda.synchronize if DEVICE == "cuda" else lambda: None


class Job(NamedTuple):
    """One training iteration to call, how many samples it takes, and what to call at the end."""

    step: Callable[[], None]
    batch_size: int
    close: Callable[[], None]


CHANGES: dict[str, dict[str, Any]] = {
    "no-activation-checkpointing": {"checkpoint": False},
    "amp": {"amp": "bfloat16"},
    "no-amp": {"amp": None},
    "no-gradient-accumulation": {"accumulate": 1},
    "gradient-accumulation:passes=2": {"accumulate": 2},
    "no-freeze-layers": {"frozen": False},
    "fused-optimizer": {"fused": True},
    "batch-size:factor=2": {"batch_factor": 2},
    "no-amp+tf32": {"amp": None, "tf32": True},
}


class LowRank(nn.Module):
    def __init__(self, inputs: int, outputs: int, rank: int, frozen: bool) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(not frozen)
        self.down, self.up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + 2.0 * self.up(self.down(x))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, rank: int, frozen: bool) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = LowRank(width, 3 * width, rank, frozen), LowRank(width, width, rank, frozen)
        self.up, self.down = LowRank(width, 4 * width, rank, frozen), LowRank(4 * width, width, rank, frozen)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


def build(
    *,
    small: bool = False,
    amp: str | None = "float16",
    tf32: bool | None = None,
    checkpoint: bool = True,
    accumulate: int = 4,
    frozen: bool = True,
    fused: bool | None = None,
    batch_factor: int = 1,
) -> Job:
    if tf32 is not None:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    width, depth, heads, length, batch = (32, 2, 2, 8, 4) if small else (1024, 4, 16, 256, 32)
    batch *= batch_factor
    blocks = nn.ModuleList(Block(width, heads, 8, frozen) for _ in range(depth)).to(DEVICE)
    head = nn.Linear(width, 16).to(DEVICE)
    trained = [parameter for parameter in [*blocks.parameters(), *head.parameters()] if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=fused)
    scaler = torch.amp.GradScaler(DEVICE, enabled=amp == "float16")
    features, labels = torch.randn(4 * batch, length, width), torch.randint(16, (4 * batch,))

    def step() -> None:
        rows = torch.randint(len(labels), (batch,))
        x, y = features[rows].to(DEVICE), labels[rows].to(DEVICE)
        for part_x, part_y in zip(x.chunk(accumulate), y.chunk(accumulate), strict=True):
            with torch.autocast(DEVICE, getattr(torch, amp or "bfloat16"), enabled=amp is not None):
                for block in blocks:
                    part_x = recompute(block, part_x, use_reentrant=False) if checkpoint else block(part_x)
                loss = functional.cross_entropy(head(part_x.mean(dim=1)), part_y) / accumulate
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

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
