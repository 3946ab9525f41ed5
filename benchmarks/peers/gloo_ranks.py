"""One rank of a small training job over gloo that records itself, for ``clock_alignment``.

In: a place among the ranks; ``place.config`` is the folder for the traces and how many seconds to train. Out: a Kineto
trace per rank, as the profiler writes it.
"""

import datetime
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from windtunnel.measure.workers import Place

PATIENCE_S = 120


def main(place: Place) -> None:
    """Train until the time is over; all ranks do as many steps as the first."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{place.rendezvous}",
        rank=place.rank,
        world_size=place.num_ranks,
        timeout=datetime.timedelta(seconds=PATIENCE_S),
    )
    layers = [layer for _ in range(3) for layer in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(64 * (1 + place.rank), 256)  # the ranks do not come together
    goes_on = torch.ones(1)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()

    for _ in range(5):
        step()
    end_s = time.monotonic() + place.config["seconds"]
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        number = 0
        while goes_on.item():
            with record_function(f"ProfilerStep#{number}"):
                step()
            goes_on.fill_(float(time.monotonic() < end_s))
            dist.broadcast(goes_on, 0)
            time.sleep(0.02)  # a trace of many seconds, not of many gigabytes
            number += 1
    recorded.export_chrome_trace(str(Path(place.config["folder"]) / f"rank{place.rank}.json"))
    dist.barrier()
    dist.destroy_process_group()
    place.tell(number)
