"""Two ranks that average a tensor over gloo."""

from __future__ import annotations

import time


def main(place):
    """Tell the seconds of one all-reduce."""
    import torch
    import torch.distributed as dist

    address, size_bytes = place.config
    meet = f"tcp://{address}:29518"
    dist.init_process_group("gloo", init_method=meet, rank=place.rank, world_size=place.num_ranks)
    values = torch.ones(size_bytes // 4)
    dist.all_reduce(values[:1024])
    dist.barrier()
    begun_s = time.perf_counter()
    dist.all_reduce(values)
    place.tell(time.perf_counter() - begun_s)
    dist.barrier()
    dist.destroy_process_group()
