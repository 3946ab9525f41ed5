"""Gradients averaged in buckets."""

from torch.nn.parallel import DistributedDataParallel

from benchmarks.dry_run.blocks import begin, blocks, train

device = begin()
train(DistributedDataParallel(blocks(device), bucket_cap_mb=1), device)
