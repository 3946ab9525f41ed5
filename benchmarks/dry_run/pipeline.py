"""Two stages, four parts of a batch."""

import torch
from torch import distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from benchmarks.dry_run.blocks import BATCH, LENGTH, WIDTH, begin, blocks

device = begin()
rank, last = dist.get_rank(), dist.get_world_size() - 1
model = blocks(device)
stage = PipelineStage(model, rank, last + 1, device)
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda out, target: (out - target).pow(2).mean())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = torch.randn(4 * BATCH, LENGTH, WIDTH, device=device)
for _ in range(8):
    optimizer.zero_grad()
    schedule.step(*([batch] if rank == 0 else []), **({"target": batch} if rank == last else {}))
    optimizer.step()
