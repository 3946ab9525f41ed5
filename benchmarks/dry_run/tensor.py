"""Perceptrons split by columns and rows."""

from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from benchmarks.dry_run.blocks import begin, blocks, train

device = begin()
mesh = init_device_mesh(device.type, (dist.get_world_size(),))
model = blocks(device)
for block in model:
    parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
train(model, device, foreach=False)  # on a GPU, one call would be given sharded and whole parameters, and refuse them
