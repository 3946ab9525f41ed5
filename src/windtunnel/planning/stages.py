"""A plan as a pipeline of samples (room planning): what the devices do while many samples are under way.

In: a ``Plan`` for throughput. Out: a ``Graph`` with one task per sample, stage and direction, its transfers in it, on
one resource per device, to replay. A full pipeline takes the load of its busiest device per sample: that is what the
plan's value says, and the replay shows what filling and draining add. Not here: schedules with flushes.
"""

# D devices (stages), S samples

from __future__ import annotations

import numpy as np

from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import EdgeKind, Graph, GraphBuilder, Kind, Phase, ResourceKind
from windtunnel.planning.placement import Plan

__all__ = ["pipelined"]


def pipelined(plan: Plan, num_samples: int) -> Graph:
    """Samples through the stages of a plan; backward work goes before forward work.

    A device starts a sample where all devices that it reads from have done theirs, and keeps as many samples under
    way as there are stages behind it, so that none runs ahead without end (1F1B).

    Parameters
    ----------
    plan : Plan
        Contiguous, without replicas.
    num_samples : int

    Raises
    ------
    InputError
        There are no samples.
    NotApplicableError
        Devices wait for each other, or a stage has replicas.
    """
    if num_samples < 1:
        raise InputError(f"{num_samples} samples", where="num_samples", fix="one or more")
    if (plan.replicas > 1).any():
        raise NotApplicableError("a stage with replicas is no single resource", where=plan.solver)
    order, before = _stage_order(plan)
    loads = plan.loads
    spent = (loads.compute_ns + loads.sent_ns + loads.received_ns).round().astype(np.int64)
    is_training = bool(plan.problem.is_backward.any())
    builder = GraphBuilder()
    rows = [
        builder.resource(f"{plan.problem.types[kind].name} {at}", ResourceKind.DEVICE)
        for at, kind in enumerate(plan.kind.tolist())
    ]
    forward = np.zeros((num_samples, len(rows)), np.int64)
    backward = np.zeros_like(forward)
    depth = len(rows)
    for sample in range(num_samples):
        for place, device in enumerate(order):
            forward[sample, device] = builder.task(
                f"sample {sample}, stage {place}", kind=Kind.COMPUTE, phase=Phase.FORWARD, resource=rows[device],
                duration_ns=int(spent[0, device]), iteration=sample, priority=1,
            )  # fmt: skip
            for other in before[device]:
                builder.edge(forward[sample, other], forward[sample, device], kind=EdgeKind.DATA)
            if sample:
                builder.edge(forward[sample - 1, device], forward[sample, device], kind=EdgeKind.ORDER)
        if not is_training:
            continue
        for place, device in reversed(list(enumerate(order))):
            backward[sample, device] = builder.task(
                f"sample {sample}, stage {place} backward", kind=Kind.COMPUTE, phase=Phase.BACKWARD,
                resource=rows[device], duration_ns=int(spent[1, device]), iteration=sample, priority=0,
            )  # fmt: skip
            builder.edge(forward[sample, device], backward[sample, device], kind=EdgeKind.DATA)
            for other in range(depth):
                if device in before[other]:
                    builder.edge(backward[sample, other], backward[sample, device], kind=EdgeKind.DATA)
    if is_training:
        for place, device in enumerate(order):
            ahead = depth - place
            for sample in range(ahead, num_samples):
                builder.edge(backward[sample - ahead, device], forward[sample, device], kind=EdgeKind.CONTROL)
    return builder.build()


def _stage_order(plan: Plan) -> tuple[list[int], list[set[int]]]:
    """Devices after all that they read from in the forward pass, and those."""
    problem, num = plan.problem, len(plan.kind)
    before: list[set[int]] = [set() for _ in range(num)]
    for src, dst in zip(problem.src.tolist(), problem.dst.tolist(), strict=True):
        a, b = int(plan.device[src]), int(plan.device[dst])
        if a != b and not problem.is_backward[dst]:
            before[b].add(a)
    order: list[int] = []
    waiting = set(range(num))
    while waiting:
        free = sorted(at for at in waiting if not before[at] & waiting)
        if not free:
            raise NotApplicableError(
                "devices of this plan wait for each other, so that no pipeline runs it", where=plan.solver,
                fix="place contiguously: --solver dp",
            )  # fmt: skip
        order += free
        waiting -= set(free)
    return order, before
