"""A data-parallel job as its users write it, around the model of a workload; bars run it unmodified, in processes.

torchrun --nproc-per-node 2 benchmarks/ddp_job.py mlp
torchrun --nproc-per-node 2 benchmarks/ddp_job.py vit --size=small --batch=2 --adamw --bucket-mb=4
python benchmarks/ddp_job.py mlp --alone
"""

import sys

import torch
from torch.nn.parallel import DistributedDataParallel

from windtunnel import registry

NUM_STEPS = 1_000_000


def main(name: str, *options: str) -> None:
    """Train on batches that rest in memory, until whoever runs this has enough."""
    known = registry.get("workload", name).parameters
    given = dict(option.removeprefix("--").split("=") for option in options if "=" in option)
    parameters = {"size": given.get("size", "tiny")} if "size" in known else {}
    parameters |= {"batch_size": int(given["batch"])} if "batch" in given else {}
    workload = registry.get("workload", name).function(**parameters)
    if workload.supervised is None:
        sys.exit(f"{name} has no one batch and no one loss")
    model, pieces = workload.models[0], workload.supervised
    if "--alone" not in options:
        torch.distributed.init_process_group("gloo")
        caps = {"bucket_cap_mb": float(given["bucket-mb"])} if "bucket-mb" in given else {}
        model = DistributedDataParallel(model, **caps)
    optimizer = (
        torch.optim.AdamW(model.parameters(), lr=1e-4)
        if "--adamw" in options
        else torch.optim.SGD(model.parameters(), lr=1e-3)
    )
    for _ in range(NUM_STEPS):
        inputs, target = pieces.draw()
        optimizer.zero_grad()
        pieces.loss(model(*inputs), target).backward()
        optimizer.step()


if __name__ == "__main__":
    torch.manual_seed(0)
    main(*sys.argv[1:])
