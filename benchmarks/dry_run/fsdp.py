"""Parameters, gradients and state in shards."""

from torch.distributed.fsdp import fully_shard

from benchmarks.dry_run.blocks import begin, blocks, train

device = begin()
model = blocks(device)
for block in model:
    fully_shard(block)
fully_shard(model)
train(model, device, clips=True)
