"""Train a decoder of the size of GPT-2 small in bfloat16 on random tokens."""

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
    "no-amp": {"amp": None},
    "amp:dtype=float16": {"amp": "float16"},
    "fused-optimizer": {"fused": True},
    "compile": {"compiled": True},
    "activation-checkpointing": {"checkpoint": True},
    "batch-size:factor=2": {"batch_factor": 2},
    "gradient-accumulation:passes=2": {"accumulate": 2},
    "no-foreach-optimizer": {"foreach": False},
    "compile:mode=reduce-overhead": {"compiled": True, "mode": "reduce-overhead"},
    "no-amp+tf32": {"amp": None, "tf32": True},
    "tf32": {"tf32": True},
    "freeze-layers:layer=blocks.[0-3]": {"freeze": 4},
    "pinned-memory": {"pinned": True},
}


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self, vocab: int, width: int, depth: int, heads: int, length: int, checkpoint: bool) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = recompute(block, x, use_reentrant=False) if self.checkpoint else block(x)
        return self.head(self.norm(x))


def build(
    *,
    small: bool = False,
    amp: str | None = "bfloat16",
    tf32: bool | None = None,
    fused: bool | None = None,
    foreach: bool | None = None,
    compiled: bool = False,
    mode: str = "default",
    batch_factor: int = 1,
    checkpoint: bool = False,
    accumulate: int = 1,
    pinned: bool = False,
    freeze: int = 0,
) -> Job:
    if tf32 is not None:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    vocab, width, depth, heads, length, batch = (101, 32, 4, 2, 16, 4) if small else (50304, 768, 8, 12, 512, 8)
    batch *= batch_factor
    model = Decoder(vocab, width, depth, heads, length, checkpoint).to(DEVICE)
    for block in model.blocks[:freeze]:
        block.requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-4, weight_decay=0.1, fused=fused, foreach=foreach)
    scaler = torch.amp.GradScaler(DEVICE, enabled=amp == "float16")
    forward = torch.compile(model, mode=mode) if compiled else model
    text = torch.randint(vocab, (256 * (length + 1),))

    def step() -> None:
        starts = torch.randint(len(text) - length - 1, (batch,)).tolist()
        rows = torch.stack([text[start : start + length + 1] for start in starts])
        rows = (rows.pin_memory() if pinned and DEVICE == "cuda" else rows).to(DEVICE, non_blocking=pinned)
        optimizer.zero_grad()
        for part in rows.chunk(accumulate):
            with torch.autocast(DEVICE, getattr(torch, amp or "bfloat16"), enabled=amp is not None):
                logits = forward(part[:, :-1])
                loss = functional.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten()) / accumulate
            scaler.scale(loss).backward()
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
