"""A process of the bar ``coconet_ring``: gloo's own all-reduce, timed on request; no bar itself."""

import numpy as np
import torch
import torch.distributed as dist

from windtunnel.measure.host_state import hold_heap
from windtunnel.measure.turns import elapsed_ns


def values(rank, size):
    """Integers as floats, which every order of adding gives the same sum of."""
    return np.random.default_rng(rank).integers(-1000, 1000, size).astype(np.float32)


def main(place):
    """Answer each number of elements with the time of an all-reduce and whether its sum is right."""
    torch.set_num_threads(1)
    hold_heap()
    place.join()
    place.tell(None)
    arrays = {}
    while True:
        try:
            size = place.order()
        except EOFError:
            return
        if size not in arrays:
            parts = [values(rank, size) for rank in range(place.num_ranks)]
            arrays[size] = parts[place.rank], np.sum(parts, axis=0)
        own, total = arrays[size]
        data = torch.from_numpy(own.copy())
        dist.barrier()
        taken_ns = elapsed_ns(lambda data=data: dist.all_reduce(data))
        place.tell((taken_ns, bool((data.numpy() == total).all())))
