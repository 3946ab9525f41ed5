"""Small jobs and fleets for tests of uneven training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from windtunnel import registry
from windtunnel.systems.uneven.fleet import Fleet, read_fleet
from windtunnel.systems.uneven.goal import Goal, Run
from windtunnel.systems.uneven.job import TrainJob
from windtunnel.systems.uneven.model import train_virtually
from windtunnel.systems.uneven.policy import Node, Worker

_FREE = "1000000 TB/s"


def small_job(*, momentum: float = 0.0, batch_size: int = 8, model=None) -> TrainJob:
    """Four classes of points around four centers, for a small perceptron."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(200) % 4
    centers = torch.randn(4, 6, generator=generator)
    inputs = centers[targets] + 0.5 * torch.randn(200, 6, generator=generator)

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))

    return TrainJob(
        "points", model or network, functional.cross_entropy, inputs[:160], targets[:160], inputs[160:], targets[160:],
        lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=momentum), batch_size,
    )  # fmt: skip


def fleet_of(
    folder: Path, speeds: Sequence[float], *, rate: str = "1 MB/s", latency: str = "1 ms", more: str = "",
    server: str = "1 GB/s",
) -> Fleet:  # fmt: skip
    """Workers with cards of one rate, and a server."""
    lines = ['step_time = "10 ms"', more, "[server]", f'up = "{server}"', f'down = "{server}"']
    for speed in speeds:
        lines += ["[[workers]]", f"speed = {speed}", f'up = "{rate}"', f'down = "{rate}"', f'latency = "{latency}"']
    path = folder / "cluster.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return read_fleet(path)


def free_fleet(speeds: Sequence[float], *, has_server: bool = False) -> Fleet:
    """Workers whose messages take no time, with a server or alone."""
    with TemporaryDirectory() as folder:
        fleet = fleet_of(Path(folder), speeds, rate=_FREE, latency="0 us", server=_FREE)
    return fleet if has_server else without_server(fleet)


def without_server(fleet: Fleet) -> Fleet:
    """The same workers alone; sums go around the ring."""
    num = fleet.num_workers
    routes = {pair: route for pair, route in fleet.routes.items() if max(pair) < num}
    return Fleet(
        fleet.name, fleet.workers, fleet.wires, routes, False, fleet.step_ns, fleet.overhead_ns, fleet.partition
    )


def trained(job: TrainJob, fleet: Fleet, strategy: str, duration_s: float = 1.0, seed: int = 0, **numbers) -> Run:
    """A run in virtual time."""
    policy = registry.get("strategy", strategy).function(**numbers)
    goal = Goal(round(duration_s * 1e9), every_ns=round(duration_s * 1e9 / 4))
    return train_virtually(job, fleet, strategy, policy, goal, seed=seed)


def beside_direct(job: TrainJob, case: str, duration_ms: float) -> tuple[float, int]:
    """The largest difference of a weight of any node from its strategy's direct form, over 1 or the largest weight.

    Returns also how many steps were made.
    """
    from tests.systems.uneven.direct import CASES, Plain

    strategy, numbers, direct, its_numbers, speeds = CASES[case]
    policy = registry.get("strategy", strategy).function(**numbers)
    nodes: list[Node] = []

    def worker(node: Node) -> Worker:
        nodes.append(node)
        return policy.worker(node)

    goal = Goal(round(duration_ms * 1e6), every_ns=round(duration_ms * 1e6))
    fleet = free_fleet(speeds, has_server=policy.server is not None)
    run = train_virtually(job, fleet, case, replace(policy, worker=worker), goal)
    plain = Plain(job, speeds)
    direct(plain, duration_ms, **its_numbers)
    expected = [*plain.w, plain.server if policy.server else sum(plain.w) / plain.num]
    found = [*(node.weights for node in nodes), torch.as_tensor(run.weights)]
    largest = max(1.0, *(float(one.abs().max()) for one in expected))
    off = max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))
    return off / largest, len(run.steps)


def serial(job: TrainJob, indices: np.ndarray, num_steps: int, seed: int = 0) -> np.ndarray:
    """Plain training of the module itself, without windtunnel's vectors."""
    from windtunnel.systems.uneven.job import Samples

    torch.manual_seed(seed)
    module = job.model()
    optimizer = job.optimizer(list(module.parameters()))
    samples = Samples(indices, seed, 0)
    for _ in range(num_steps):
        chosen = samples.draw(job.batch_size)
        optimizer.zero_grad()
        job.loss(module(job.inputs[chosen]), job.targets[chosen]).backward()
        optimizer.step()
    return torch.cat([one.detach().reshape(-1) for one in module.parameters()]).numpy()
