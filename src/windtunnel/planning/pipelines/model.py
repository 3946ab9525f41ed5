"""A plan as a pipeline of samples (room planning): what the devices do while many samples are under way.

In: a ``Plan`` for throughput. Out: a ``Graph`` with one task per sample, stage and direction, its transfers in it, in
the order in which a schedule runs them, to replay. A full pipeline takes the load of its busiest device per sample:
that is what the plan's value says, and the replay shows what filling and draining add. Not here: running it.
"""

# D devices (stages), S samples

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise, permutations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import EdgeKind, Graph, GraphBuilder, Kind, Phase, ResourceKind
from windtunnel.planning.placement.throughput import Plan, sync_ns

__all__ = ["Schedule", "pipelined", "stage_order"]

Schedule = Literal["1f1b", "gpipe"]
_SCHEDULES = ("1f1b", "gpipe")


def pipelined(
    plan: Plan,
    num_samples: int,
    *,
    schedule: Schedule = "1f1b",
    update_ns: NDArray[np.float64] | None = None,
    latency_ns: int = 0,
) -> Graph:
    """Samples through the stages of a plan, then an update.

    A device starts a sample where all devices that it reads from have done theirs. With ``1f1b`` (PipeDream, section
    3.2) it keeps as many samples under way as there are stages from it on; with ``gpipe`` all go forward first.
    Replicas of a stage take the samples in turn, each as many under way as there are devices from its stage on, shared
    by its replicas; when each has done one backward, they agree on their weights.

    Parameters
    ----------
    plan : Plan
        Contiguous.
    num_samples : int
    schedule : str
        ``1f1b`` or ``gpipe``.
    update_ns : float64 [D], optional
        What each device does after its last sample.
    latency_ns : int
        Of a message between two devices, beside what its transfer takes of either.

    Raises
    ------
    InputError
        There are no samples, or no schedule has that name.
    NotApplicableError
        Devices wait for each other.
    """
    if num_samples < 1:
        raise InputError(f"{num_samples} samples", where="num_samples", fix="one or more")
    if schedule not in _SCHEDULES:
        raise InputError(f"no schedule is called {schedule!r}", where="schedule", fix=" or ".join(_SCHEDULES))
    order, before = stage_order(plan)
    loads = plan.loads
    spent = (loads.compute_ns + loads.sent_ns + loads.received_ns).round().astype(np.int64)
    agreeing = sync_ns(plan.problem, plan.device, plan.kind, plan.replicas) * plan.replicas
    is_training = bool(plan.problem.is_backward.any())
    builder = GraphBuilder()
    stages: dict[int, _Stage] = {}
    for place, device in enumerate(order):
        num_replicas = int(plan.replicas[device])
        ahead = -(-int(plan.replicas[order[place:]].sum()) // num_replicas) if schedule == "1f1b" else num_samples
        stages[device] = _Stage(
            builder, place, f"{plan.problem.types[int(plan.kind[device])].name} {device}", spent[:, device].tolist(),
            round(float(agreeing[device])), None if update_ns is None else round(float(update_ns[device])),
        )  # fmt: skip
        for replica in range(num_replicas):
            mine = range(replica, num_samples, num_replicas)
            turns = [(back, mine[turn]) for back, turn in _turns(len(mine), ahead, is_training=is_training)]
            stages[device].add(turns, f".{replica}" if num_replicas > 1 else "")
        stages[device].wait_for_each_other(num_replicas)
    for device, stage in stages.items():
        for (back, sample), task in stage.tasks.items():
            for other in before[device]:
                ends = (stages[other].tasks[back, sample], task)
                builder.edge(*(ends[::-1] if back else ends), kind=EdgeKind.MESSAGE, lag_ns=latency_ns)
    return builder.build()


@dataclass(frozen=True)
class _Stage:
    """A stage's tasks, as they are added replica by replica."""

    builder: GraphBuilder
    place: int
    name: str
    spent_ns: list[int]  # forward, backward
    agree_ns: int
    update_ns: int | None
    tasks: dict[tuple[bool, int], int] = field(default_factory=dict)
    agreed: dict[int, int] = field(default_factory=dict)

    def add(self, turns: Sequence[tuple[bool, int]], suffix: str) -> None:
        """A replica with what it does in order: (is it backward, which sample)."""
        row = self.builder.resource(f"{self.name}{suffix}", ResourceKind.DEVICE)
        chain = []
        for back, sample in turns:
            self.tasks[back, sample] = self.builder.task(
                f"sample {sample}, stage {self.place}{' backward' if back else ''}", kind=Kind.COMPUTE,
                phase=Phase.BACKWARD if back else Phase.FORWARD, resource=row, duration_ns=self.spent_ns[int(back)],
                iteration=sample,
            )  # fmt: skip
            chain.append(self.tasks[back, sample])
            if back and self.agree_ns:
                self.agreed[sample] = self.builder.task(
                    f"weights of stage {self.place}", kind=Kind.COMM, phase=Phase.UPDATE, resource=row,
                    duration_ns=self.agree_ns, iteration=sample,
                )  # fmt: skip
                chain.append(self.agreed[sample])
        if self.update_ns is not None:
            chain.append(
                self.builder.task(f"update of stage {self.place}", kind=Kind.COMPUTE, phase=Phase.UPDATE, resource=row,
                                  duration_ns=self.update_ns, iteration=turns[-1][1] if turns else 0)
            )  # fmt: skip
        for one, other in pairwise(chain):
            self.builder.edge(one, other, kind=EdgeKind.CONTROL)  # a program, whatever it runs on

    def wait_for_each_other(self, num_replicas: int) -> None:
        """Replicas agree on their weights once each has done one sample backward."""
        for first in range(0, max(self.agreed, default=-1) + 1, num_replicas):
            together = [sample for sample in range(first, first + num_replicas) if sample in self.agreed]
            for one, other in permutations(together, 2):
                self.builder.edge(self.tasks[True, one], self.agreed[other], kind=EdgeKind.SYNC)


def _turns(num_samples: int, num_ahead: int, *, is_training: bool) -> list[tuple[bool, int]]:
    """What a device does, in order: (is it backward, which sample); ``num_ahead`` samples forward come first."""
    if not is_training:
        return [(False, sample) for sample in range(num_samples)]
    first = min(num_ahead, num_samples)
    turns = [(False, sample) for sample in range(first)]
    for sample in range(num_samples):
        turns.append((True, sample))
        if sample + first < num_samples:
            turns.append((False, sample + first))
    return turns


def stage_order(plan: Plan) -> tuple[list[int], list[set[int]]]:
    """Devices after all that they read from in the forward pass, and those.

    Raises
    ------
    NotApplicableError
        Some wait for each other.
    """
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
