"""Training by real processes on this host, throttled to the speeds and links of a fleet.

In: a job by name, a fleet, a strategy by name. Out: a ``Run``, as from virtual time. Links are token buckets in user
space, or are shaped by the kernel. Snapshots of the weights are evaluated after the run, so that evaluation takes no
time from training. Not here: the processes (``node``).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from windtunnel import registry
from windtunnel.errors import FlightError
from windtunnel.hardware.host import usable_cores
from windtunnel.measure.links import USER_SPACE
from windtunnel.measure.spaces import SHAPED, ShapedWires, shape_wires
from windtunnel.measure.turns import elapsed_ns, quiet
from windtunnel.measure.workers import Workers
from windtunnel.systems.uneven.endpoint import check_policy, goes_on
from windtunnel.systems.uneven.fleet import Fleet
from windtunnel.systems.uneven.goal import Goal, Point, Run
from windtunnel.systems.uneven.job import FlatModel, TrainJob
from windtunnel.systems.uneven.jobs import train_job
from windtunnel.systems.uneven.node import NodeOrders, NodeReport

__all__ = ["check_room", "links_of", "train_really"]

_HEADROOM_NS = 500_000_000
_MAX_LATE = 0.02
_MAX_BUSY = 0.8
_NUM_TIMED = 8
_PATIENCE_S = 120.0


def train_really(
    job: str,
    fleet: Fleet,
    strategy: str,
    numbers: Mapping[str, Any],
    goal: Goal,
    *,
    seed: int = 0,
    is_in_kernel: bool = False,
    heard: Callable[[str], None] | None = None,
) -> Run:
    """Train for ``goal.duration_ns`` with one process per node; reaching the goal's loss does not end the run.

    Parameters
    ----------
    job : str
        As ``train_job`` reads it.
    numbers : mapping
        Parameters of the strategy, by name.
    is_in_kernel : bool
        Give each node its own network namespace, whose wires the kernel shapes, including packet headers.

    Raises
    ------
    InputError
        The fleet lacks a server or a route, or the kernel cannot shape its wires here.
    FlightError
        This host is too small for the steps of the fleet, a process died, nodes begin with different weights, or a
        gradient is not finite.
    """
    policy = registry.get("strategy", strategy).function(**numbers)
    check_policy(strategy, policy, fleet)
    created = train_job(job)
    check_room(created, fleet)
    cores = usable_cores()
    local = [[cores[rank % len(cores)]] for rank in range(fleet.num_nodes)]
    patience_s = goal.duration_ns / 1e9 + _PATIENCE_S
    with _shape_wires(fleet, is_in_kernel=is_in_kernel) as wires:
        orders = NodeOrders(job, fleet, strategy, dict(numbers), seed, goal.duration_ns, goal.every_ns, wires.addresses)
        with Workers(
            "windtunnel.systems.uneven.node", orders, num_ranks=fleet.num_nodes, title="training", cores=local,
            environment={"OMP_NUM_THREADS": "1", **wires.environment}, patience_s=patience_s, prefixes=wires.prefixes,
        ) as workers:  # fmt: skip
            _check_equal(fleet, [workers.receive(rank) for rank in range(fleet.num_nodes)])
            if heard is not None:
                heard(f"{fleet.num_nodes} processes train for {goal.duration_ns / 1e9:.0f} s")
            zero_ns = time.monotonic_ns() + _HEADROOM_NS
            for rank in range(fleet.num_nodes):
                workers.send(zero_ns, rank)
            may_die = range(fleet.num_workers) if goes_on(policy, fleet) else ()
            with _changing(fleet, wires, zero_ns):
                reports: list[NodeReport] = [item or NodeReport() for item in workers.gather(may_die=may_die)]
    _check_late(fleet, reports)
    return _collect_run(created, fleet, strategy, reports, goal, seed)


def links_of(*, is_in_kernel: bool) -> str:
    """Return a description of what shapes the links of a real run."""
    return SHAPED if is_in_kernel else USER_SPACE


@contextlib.contextmanager
def _shape_wires(fleet: Fleet, *, is_in_kernel: bool) -> Iterator[ShapedWires]:
    """Set up wires that the kernel shapes, or none if messages wait in user space."""
    if not is_in_kernel:
        yield ShapedWires((), (), {}, {})
        return
    rates = [wire.bytes_per_s.value_at(0) for wire in fleet.wires]
    with shape_wires(fleet.num_nodes, fleet.routes, rates) as wires:
        yield wires


@contextlib.contextmanager
def _changing(fleet: Fleet, wires: ShapedWires, zero_ns: int) -> Iterator[None]:
    """Change the rates of shaped wires by their traces in a background thread."""
    changes = sorted(
        (at_ns, number, rate)
        for number in wires.ends
        for at_ns, rate in zip(
            fleet.wires[number].bytes_per_s.times_ns[1:], fleet.wires[number].bytes_per_s.values[1:], strict=True
        )
    )
    is_over = threading.Event()

    def work() -> None:
        for at_ns, number, rate in changes:
            # waits until the change is due, and returns at once when the run is over
            if is_over.wait(max(zero_ns + at_ns - time.monotonic_ns(), 0) / 1e9):
                return
            wires.set_rate(number, rate)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def check_room(job: TrainJob, fleet: Fleet) -> None:
    """Reject a fleet whose steps this host cannot compute in time.

    Raises
    ------
    FlightError
        The host is too small; the message states the time of a step here and the smallest ``step_time`` that works.
    """
    flat = FlatModel(job, 0)
    selected = torch.arange(min(job.batch_size, len(job.inputs)))
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        took_ns = [
            elapsed_ns(lambda: flat.gradient(flat.initial, flat.buffers(), selected, 0)) for _ in range(_NUM_TIMED)
        ]
    finally:
        torch.set_num_threads(num_threads)
    step_ns = quiet(took_ns)
    busy = sum(step_ns / fleet.step_ns * max(worker.speed.values) for worker in fleet.workers)
    room = _MAX_BUSY * len(usable_cores())
    if busy > room:
        needed_ms = fleet.step_ns * busy / room / 1e6
        raise FlightError(
            f"this host is too small: a step takes {step_ns / 1e6:.1f} ms here, and {fleet.num_workers} workers would "
            f"keep {busy:.1f} of {len(usable_cores())} cores busy",
            where=f"step_time of cluster {fleet.name}",
            fix=f"make it {needed_ms:.0f} ms or more, or take fewer workers",
        )


def _check_equal(fleet: Fleet, fingerprints: list[str]) -> None:
    for rank, fingerprint in enumerate(fingerprints):
        if fingerprint != fingerprints[0]:
            raise FlightError(
                f"{fleet.node_name(rank)} begins with other weights than {fleet.node_name(0)}",
                where=f"{fleet.num_nodes} processes that made the model with the same seed",
                fix="draw first weights by torch alone, whose seed is set before the model is made",
            )


def _check_late(fleet: Fleet, reports: list[NodeReport]) -> None:
    for rank, report in enumerate(reports):
        if report.steps and report.num_late > _MAX_LATE * len(report.steps) + 1:
            needed_ms, target_ms = np.quantile(report.computed_ns, 0.98) / 1e6, fleet.step_end_ns(rank, 0) / 1e6
            raise FlightError(
                f"this host is too busy: {report.num_late} of {len(report.steps)} steps of "
                f"{fleet.node_name(rank)} were late "
                f"({needed_ms:.0f} ms until it is computed, {target_ms:.0f} ms a step)",
                where=f"step_time of cluster {fleet.name}",
                fix="let nothing else run, or give it a longer step_time",
            )


def _collect_run(job: TrainJob, fleet: Fleet, strategy: str, reports: list[NodeReport], goal: Goal, seed: int) -> Run:
    flat = FlatModel(job, seed)
    missing = {rank: at_ns for report in reports for rank, at_ns in report.lost_workers.items()}
    workers = reports[: fleet.num_workers]
    points, weights = [], flat.initial
    for index in range(min(len(report.looks) for rank, report in enumerate(reports) if rank not in missing)):
        alive = [worker for worker in workers if index < len(worker.looks)]
        judged = [reports[-1]] if reports[-1].serves else alive
        weights = torch.as_tensor(np.mean([item.looks[index][1] for item in judged], axis=0, dtype=np.float64)).float()
        buffers = torch.as_tensor(np.mean([item.looks[index][2] for item in alive], axis=0))
        time_ns = int(np.median([item.looks[index][0] for item in judged]))
        num_steps = sum(worker.looks[min(index, len(worker.looks) - 1)][3] for worker in workers if worker.looks)
        points.append(Point(time_ns, *flat.evaluate(weights, buffers), num_steps))
    steps = sorted((step for report in reports for step in report.steps), key=lambda step: (step[2], step[0]))
    messages = sorted((message for report in reports for message in report.messages), key=lambda row: (row[3], row[0]))
    return Run(
        strategy, tuple(points), goal.duration_ns, np.array(steps, np.int64).reshape(-1, 4),
        np.array(messages, np.int64).reshape(-1, 5), fleet.num_workers, weights.numpy(),
        tuple(dict.fromkeys(text for report in reports for text in report.warnings)),
        tuple((rank, report.under_way) for rank, report in enumerate(reports) if report.under_way is not None),
        tuple(sorted(missing.items())),
    )  # fmt: skip
