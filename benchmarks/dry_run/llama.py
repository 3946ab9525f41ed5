"""Llama 3 of 8 billion parameters: blocks split over 8 ranks, and all of it in shards over the rest."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

LAYERS, WIDTH, HEADS, KV_HEADS, INNER, WORDS = 32, 4096, 32, 8, 14336, 128_256
BATCH, LENGTH, TENSOR_RANKS = 1, 8192, 8
HEAD_WIDTH = WIDTH // HEADS


class Block(nn.Module):
    """Attention with few keys, and a gated perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.query, self.out = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.key, self.value = (nn.Linear(WIDTH, KV_HEADS * HEAD_WIDTH, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer."""
        h = self.first(x)
        parts = (one(h).unflatten(-1, (-1, HEAD_WIDTH)).transpose(1, 2) for one in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        h = self.second(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """Words in, words out."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, WIDTH), nn.RMSNorm(WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """What comes next."""
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main() -> None:
    """A plain loop."""
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    shape = (dist.get_world_size() // TENSOR_RANKS, TENSOR_RANKS)
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("shard", "tensor"))
    with torch.device("meta"):
        model = Llama()
    columns, rows = ("query", "key", "value", "gate", "up"), ("out", "down")
    plan = {name: ColwiseParallel() for name in columns} | {name: RowwiseParallel() for name in rows}
    sharding = {"mesh": mesh["shard"], "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)}
    for block in model.blocks:
        parallelize_module(block, mesh["tensor"], plan)
        fully_shard(block, **sharding)
    fully_shard(model, **sharding)
    model.to_empty(device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(5):
        tokens = torch.randint(WORDS, (BATCH, LENGTH + 1), device=device)
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


main()
