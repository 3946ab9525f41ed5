"""Train an encoder in float32 with attention written out, a large vocabulary and one update per parameter."""

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
    "sdpa": {"sdpa": True},
    "tf32": {"tf32": True},
    "amp": {"amp": "bfloat16"},
    "foreach-optimizer": {"foreach": True},
    "fused-optimizer": {"foreach": None, "fused": True},
    "sparse-embedding-gradients": {"sparse": True},
    "amp:dtype=float16": {"amp": "float16"},
    "compile": {"compiled": True},
    "tf32+sdpa": {"tf32": True, "sdpa": True},
    "batch-size:factor=2": {"batch_factor": 2},
    "gradient-accumulation:passes=2": {"accumulate": 2},
}


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            map_(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for map_ in (self.query, self.key, self.value)
        )
        if self.sdpa:
            mixed = functional.scaled_dot_product_attention(q, k, v)
        else:
            scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
            mixed = torch.softmax(scores, dim=-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, sdpa: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, sdpa)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def build(
    *,
    small: bool = False,
    amp: str | None = None,
    tf32: bool | None = None,
    sdpa: bool = False,
    compiled: bool = False,
    mode: str = "default",
    foreach: bool | None = False,
    fused: bool | None = None,
    sparse: bool = False,
    batch_factor: int = 1,
    accumulate: int = 1,
) -> Job:
    if tf32 is not None:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    vocab, width, depth, heads, length, batch = (500, 32, 2, 2, 16, 4) if small else (100_000, 512, 6, 8, 384, 8)
    batch *= batch_factor
    embedding = nn.Embedding(vocab, width, sparse=sparse).to(DEVICE)
    body = nn.Sequential(*(Block(width, heads, sdpa) for _ in range(depth)), nn.LayerNorm(width), nn.Linear(width, 32))
    body = body.to(DEVICE)
    optimizers: list[torch.optim.Optimizer]
    if sparse:
        optimizers = [torch.optim.SparseAdam(embedding.parameters(), lr=1e-4)]
        optimizers += [torch.optim.Adam(body.parameters(), lr=1e-4, foreach=foreach, fused=fused)]
    else:
        parameters = [*embedding.parameters(), *body.parameters()]
        optimizers = [torch.optim.Adam(parameters, lr=1e-4, foreach=foreach, fused=fused)]
    scaler = torch.amp.GradScaler(DEVICE, enabled=amp == "float16")
    forward = torch.compile(body, mode=mode) if compiled else body
    tokens, tags = torch.randint(vocab, (64, length)), torch.randint(32, (64, length))

    def step() -> None:
        rows = torch.randint(64, (batch,))
        x, y = tokens[rows].to(DEVICE), tags[rows].to(DEVICE)
        for optimizer in optimizers:
            optimizer.zero_grad()
        for part_x, part_y in zip(x.chunk(accumulate), y.chunk(accumulate), strict=True):
            with torch.autocast(DEVICE, getattr(torch, amp or "bfloat16"), enabled=amp is not None):
                logits = forward(embedding(part_x))
                loss = functional.cross_entropy(logits.flatten(0, 1), part_y.flatten()) / accumulate
            scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()

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
