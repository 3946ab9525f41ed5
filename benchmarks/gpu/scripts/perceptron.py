"""Train six small layers that wait for the host, with SGD."""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
synchronize = torch.cuda.synchronize if DEVICE == "cuda" else lambda: None


class Job(NamedTuple):
    """One training iteration to call, how many samples it takes, and what to call at the end."""

    step: Callable[[], None]
    batch_size: int
    close: Callable[[], None]


CHANGES: dict[str, dict[str, Any]] = {
    "cuda-graphs": {"graphed": True},
    "compile": {"compiled": True},
    "compile:mode=reduce-overhead": {"compiled": True, "mode": "reduce-overhead"},
    "amp": {"amp": "bfloat16"},
    "tf32": {"tf32": True},
    "fused-optimizer": {"fused": True},
    "no-foreach-optimizer": {"foreach": False},
    "batch-size:factor=2": {"batch_factor": 2},
    "freeze-layers:layer=[0-5]": {"freeze": 3},
    "gradient-accumulation:passes=2": {"accumulate": 2},
}


def build(
    *,
    small: bool = False,
    amp: str | None = None,
    tf32: bool | None = None,
    fused: bool | None = None,
    foreach: bool | None = None,
    compiled: bool = False,
    mode: str = "default",
    batch_factor: int = 1,
    accumulate: int = 1,
    freeze: int = 0,
    graphed: bool = False,
) -> Job:
    if tf32 is not None:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    width, batch = (16, 8 * batch_factor) if small else (512, 256 * batch_factor)
    layers = [layer for _ in range(6) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(width, 10)).to(DEVICE)
    model[: 2 * freeze].requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.01, momentum=0.9, fused=fused, foreach=foreach)
    inputs, labels = torch.randn(64 * batch, width), torch.randint(10, (64 * batch,))
    forward = torch.compile(model, mode=mode) if compiled else model
    if graphed and DEVICE == "cuda":
        forward = torch.cuda.make_graphed_callables(model, (torch.randn(batch, width, device=DEVICE),))

    def step() -> None:
        start = int(torch.randint(63 * batch, ()))
        x, y = inputs[start : start + batch].to(DEVICE), labels[start : start + batch].to(DEVICE)
        optimizer.zero_grad()
        for part_x, part_y in zip(x.chunk(accumulate), y.chunk(accumulate), strict=True):
            with torch.autocast(DEVICE, getattr(torch, amp or "bfloat16"), enabled=amp is not None):
                loss = functional.cross_entropy(forward(part_x), part_y) / accumulate
            loss.backward()
        optimizer.step()

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
