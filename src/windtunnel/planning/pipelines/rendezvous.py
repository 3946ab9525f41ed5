"""A plan as ``torch.distributed.pipelining`` runs it (room planning): messages that both sides wait for.

In: a ``Plan`` whose stages form a chain. Out: a ``Graph`` with one task per sample, stage and direction, and one per
message, to replay. A message begins when one side has sent and the other asks for it; what a schedule waits for
together, and when, is as in torch's code. A value for a later stage goes through those between. Not here: running it.

Source: PyTorch 2.13, torch/distributed/pipelining/schedules.py, ScheduleGPipe and Schedule1F1B.
"""

# P places in the chain, S samples

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError
from windtunnel.graph import EdgeKind, Graph, GraphBuilder, Kind, Phase, ResourceKind
from windtunnel.planning.pipelines.model import Schedule, stage_order
from windtunnel.planning.placement.throughput import Plan

__all__ = ["receivers", "rendezvous_pipeline"]


class _Message(NamedTuple):
    """What goes over a boundary (that behind stage ``boundary``) for one sample."""

    is_backward: bool
    sample: int
    boundary: int


@dataclass
class _Line:
    """The graph that is being built, and what its next task has to wait for at each place."""

    builder: GraphBuilder
    compute_ns: NDArray[np.int64]  # [2, P]
    message_ns: NDArray[np.int64]  # [P - 1]
    devices: list[int]
    links: dict[tuple[bool, int], int]
    messages: dict[_Message, int] = field(default_factory=dict)
    frontier: dict[int, list[int]] = field(default_factory=dict)

    def compute(self, place: int, sample: int, *, is_backward: bool) -> None:
        """Forward or backward, behind all that was waited for."""
        name = f"sample {sample}, stage {place}{' backward' if is_backward else ''}"
        self._then(place, self.builder.task(
            name, kind=Kind.COMPUTE, phase=Phase.BACKWARD if is_backward else Phase.FORWARD,
            resource=self.devices[place], duration_ns=int(self.compute_ns[int(is_backward), place]), iteration=sample,
        ))  # fmt: skip

    def update(self, place: int, duration_ns: float, sample: int) -> None:
        """The optimizer."""
        self._then(place, self.builder.task(
            f"update of stage {place}", kind=Kind.COMPUTE, phase=Phase.UPDATE, resource=self.devices[place],
            duration_ns=round(duration_ns), iteration=sample,
        ))  # fmt: skip

    def _then(self, place: int, task: int) -> None:
        for before in self.frontier.get(place, ()):
            self.builder.edge(before, task, kind=EdgeKind.CONTROL)
        self.frontier[place] = [task]

    def post(self, place: int, messages: Iterable[_Message]) -> list[_Message]:
        """Send or ask for; returns those that exist at this end of the chain."""
        posted = [one for one in messages if 0 <= one.boundary < len(self.message_ns)]
        for one in posted:
            if one not in self.messages:
                self.messages[one] = self.builder.task(
                    f"sample {one.sample} {'back over' if one.is_backward else 'over'} {one.boundary}",
                    kind=Kind.COMM, resource=self.links[one.is_backward, one.boundary],
                    duration_ns=int(self.message_ns[one.boundary]), iteration=one.sample,
                )  # fmt: skip
            for before in self.frontier.get(place, ()):
                self.builder.edge(before, self.messages[one], kind=EdgeKind.MESSAGE)
        return posted

    def wait(self, place: int, messages: Iterable[_Message]) -> None:
        """What comes next comes behind them."""
        self.frontier.setdefault(place, []).extend(self.messages[one] for one in messages)


def rendezvous_pipeline(
    plan: Plan,
    num_samples: int,
    *,
    schedule: Schedule = "1f1b",
    update_ns: NDArray[np.float64] | None = None,
    latency_ns: int = 0,
    overhead_ns: float = 0.0,
) -> Graph:
    """Samples through the stages of a plan, then an update.

    Parameters
    ----------
    plan : Plan
        Contiguous, of a training, without replicas; ``cost_ns`` of its problem is what a message of that output takes.
    num_samples : int
        As many as stages or more.
    schedule : str
        ``1f1b`` or ``gpipe``.
    update_ns : float64 [D], optional
        What each device does after its last sample.
    latency_ns : int
        Of every value that is sent.
    overhead_ns : float
        What each stage takes per sample beside its layers, half of it forward.

    Raises
    ------
    InputError
        There are fewer samples than stages.
    NotApplicableError
        Devices wait for each other.
    """
    order, _ = stage_order(plan)
    if num_samples < len(order):
        raise InputError(f"{num_samples} samples for {len(order)} stages", where="num_samples", fix="as many, or more")
    builder = GraphBuilder()
    devices = [builder.resource(f"{plan.problem.types[int(plan.kind[at])].name} {at}", ResourceKind.DEVICE)
               for at in order]  # fmt: skip
    boundaries = range(len(order) - 1)
    links = {
        (back, at): builder.resource(f"link {at}{' back' if back else ''}", ResourceKind.LINK)
        for back in (False, True) for at in boundaries
    }  # fmt: skip
    message_ns = _crossing_ns(plan, order, latency_ns).round().astype(np.int64)
    compute_ns = (plan.loads.compute_ns[:, order] + overhead_ns / 2).round().astype(np.int64)
    line = _Line(builder, compute_ns, message_ns, devices, links)
    run = _one_forward_one_backward if schedule == "1f1b" else _all_forward_all_backward
    for place, device in enumerate(order):
        run(line, place, len(order), num_samples)
        if update_ns is not None:
            line.update(place, float(update_ns[device]), num_samples - 1)
    return builder.build()


def receivers(graph: Graph) -> NDArray[np.int64]:
    """The place in the chain of whoever computes a task, or receives a message [T]."""
    kinds = np.asarray(graph.resources["kind"])
    num = int((kinds == int(ResourceKind.DEVICE)).sum())
    # devices come first, then links in the order of their boundaries: forward to the place behind, backward before
    of_row = np.concatenate([np.arange(num), np.arange(1, num), np.arange(num - 1)])
    found: NDArray[np.int64] = of_row[np.asarray(graph.tasks["resource"])]
    return found


def _crossing_ns(plan: Plan, order: list[int], latency_ns: int) -> NDArray[np.float64]:
    """What the values that cross each boundary take, every value once, each a message of its own [P - 1]."""
    problem = plan.problem
    place = np.argsort(order)[plan.device]
    last = place.copy()
    rows = ~problem.is_backward[problem.src] & ~problem.is_backward[problem.dst]
    np.maximum.at(last, problem.src[rows], place[problem.dst[rows]])
    sent_ns = problem.cost_ns + latency_ns
    return np.array([sent_ns[(place <= at) & (last > at)].sum() for at in range(len(order) - 1)])


def _ends(place: int, sample: int) -> tuple[list[_Message], ...]:
    """What is received and sent forward, received and sent backward."""
    before, behind = place - 1, place
    ways = ((False, before), (False, behind), (True, behind), (True, before))
    return tuple([_Message(back, sample, boundary)] for back, boundary in ways)


def _all_forward_all_backward(line: _Line, place: int, _num_places: int, num_samples: int) -> None:
    """GPipe: sends are waited for at the end of each half."""
    for is_backward in (False, True):
        sent: list[_Message] = []
        for sample in range(num_samples):
            into, out = _ends(place, sample)[2 * is_backward :][:2]
            line.wait(place, line.post(place, into))
            line.compute(place, sample, is_backward=is_backward)
            sent += line.post(place, out)
        line.wait(place, sent)


def _one_forward_one_backward(line: _Line, place: int, num_places: int, num_samples: int) -> None:
    """1F1B: what is sent forward is waited for with what comes backward, and the other way round."""
    num_ahead = min(num_samples, num_places - place)
    sent: list[_Message] = []
    for sample in range(num_ahead):
        received, out, _, _ = _ends(place, sample)
        line.wait(place, line.post(place, received))
        line.compute(place, sample, is_backward=False)
        line.wait(place, sent)
        sent = out if sample == num_ahead - 1 else line.post(place, out)
    sent_back: list[_Message] = []
    for sample in range(num_samples):
        _, _, gradients, back = _ends(place, sample)
        line.wait(place, line.post(place, [*sent, *gradients]))
        line.compute(place, sample, is_backward=True)
        line.wait(place, sent_back)
        following, sent = sample + num_ahead, []
        sent_back = line.post(place, back)
        if following < num_samples:
            received, out, _, _ = _ends(place, following)
            line.wait(place, [*sent_back, *line.post(place, received)])
            line.compute(place, following, is_backward=False)
            sent, sent_back = out, []
    line.wait(place, sent_back)
