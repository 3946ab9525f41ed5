"""Train a decoder with rotary positions, RMS norms and gated layers under torch.compile, in bfloat16."""

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
    "no-compile": {"compiled": False},
    "compile:mode=reduce-overhead": {"mode": "reduce-overhead"},
    "fused-optimizer": {"fused": True},
    "batch-size:factor=2": {"batch_factor": 2},
    "no-amp": {"amp": None},
    "gradient-accumulation:passes=2": {"accumulate": 2},
}


class Block(nn.Module):
    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate_up, self.down = nn.Linear(width, 6 * width, bias=False), nn.Linear(3 * width, width, bias=False)
        angles = torch.outer(torch.arange(length), 1e4 ** -torch.linspace(0, 1, width // heads // 2))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        left, right = x.float().chunk(2, dim=-1)
        turned = torch.cat([left * self.cos - right * self.sin, left * self.sin + right * self.cos], dim=-1)
        return turned.to(x.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


def build(
    *,
    small: bool = False,
    amp: str | None = "bfloat16",
    fused: bool | None = None,
    compiled: bool = True,
    mode: str = "default",
    batch_factor: int = 1,
    accumulate: int = 1,
) -> Job:
    vocab, width, depth, heads, length, batch = (101, 32, 2, 2, 16, 4) if small else (32000, 768, 6, 12, 512, 8)
    batch *= batch_factor
    blocks = [Block(width, heads, length) for _ in range(depth)]
    head = nn.Linear(width, vocab, bias=False)
    model = nn.Sequential(nn.Embedding(vocab, width), *blocks, nn.RMSNorm(width), head).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=fused)

    def loss_of(tokens: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, getattr(torch, amp or "bfloat16"), enabled=amp is not None):
            logits = model(tokens[:, :-1])
            return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    compute_loss = torch.compile(loss_of, mode=mode) if compiled else loss_of
    text = torch.randint(vocab, (64, length + 1))

    def step() -> None:
        tokens = text[torch.randint(len(text), (batch,))].to(DEVICE)
        optimizer.zero_grad()
        for part in tokens.chunk(accumulate):
            (compute_loss(part) / accumulate).backward()
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
