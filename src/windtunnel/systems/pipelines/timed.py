"""A schedule with times, as a graph: what ranks and links do when.

In: a ``Schedule`` and ``StageTimes``. Out: a ``Graph`` with a task per pass, per message that takes time, and per
update, to replay; stages may be uneven, and messages between two ranks share a link. What a pass keeps for its backward
pass is the output of a task without duration, so that the replay knows the memory of each rank. Not here: how ranks
wait for messages (``messages``), making schedules (``schedules``).
"""

# R ranks, S stages

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.errors import InputError
from windtunnel.graph import EdgeKind, Graph, GraphBuilder, Kind, Phase, ResourceKind
from windtunnel.systems.pipelines.messages import RULES
from windtunnel.systems.pipelines.schedules import Action, Schedule
from windtunnel.systems.pipelines.verify import parts

__all__ = ["Line", "Message", "StageTimes", "build_schedule_graph", "working_ranks"]

_PARTS = {"F": "", "B": " backward", "I": " backward, input", "W": " backward, weights"}


@dataclass(frozen=True, eq=False, kw_only=True)
class StageTimes:
    """Durations (ns) and saved bytes of each stage: a number per stage [S], or one for all.

    Parameters
    ----------
    forward_ns, backward_ns
        Of a pass.
    input_ns, weights_ns : optional
        Of the two parts of a backward pass; by default half of it.
    update_ns : optional
        Update of all weights after each batch.
    agree_ns : optional
        Of replicas on their weights, after each backward pass.
    exchange_ns : optional
        All-reduce of a batch's gradients with the stage's replicas. It begins when all of them have done their
        last backward pass, overlaps passes of other stages, and is waited for at the end of the rank's batch.
    message_ns : optional
        Of what a stage hands on to the next one [S - 1], either way. Where there is none, messages are no tasks.
    latency_ns : int
        Of a message, where messages are no tasks.
    kept_bytes : optional
        What a pass forward keeps for its backward pass.
    kept_for_weights_bytes : optional
        How much of that is kept until the second part of a backward pass; by default all.
    """

    forward_ns: ArrayLike
    backward_ns: ArrayLike = 0
    input_ns: ArrayLike | None = None
    weights_ns: ArrayLike | None = None
    update_ns: ArrayLike | None = None
    agree_ns: ArrayLike = 0
    exchange_ns: ArrayLike | None = None
    message_ns: ArrayLike | None = None
    latency_ns: int = 0
    kept_bytes: ArrayLike = 0
    kept_for_weights_bytes: ArrayLike | None = None


class Message(NamedTuple):
    """A message from the pass of a microbatch at one stage to another stage."""

    src: int
    dst: int
    microbatch: int
    is_backward: bool


def build_schedule_graph(
    schedule: Schedule,
    times: StageTimes,
    *,
    messages: Literal["buffered", "exchanged"] = "buffered",
    reads: Sequence[Collection[int]] | None = None,
    alike: Sequence[Collection[int]] = (),
    names: Sequence[str] | None = None,
    link_of: Callable[[int, int], str] | None = None,
    base_bytes: Sequence[int] = (),
) -> Graph:
    """All passes of a schedule, as tasks.

    Parameters
    ----------
    schedule : Schedule
    times : StageTimes
    messages : str
        ``buffered``: receives are posted ahead and no rank waits for a send; ``exchanged``: all between two rounds,
        as Megatron-LM waits.
    reads : sequence [S] of stages, optional
        Whose outputs each stage reads, if not the one before it.
    alike : sequence of stages
        Those that exchange their gradients with each other; the same stage on several ranks does anyway.
    names : sequence of str [R], optional
        Names of the ranks.
    link_of : callable, optional
        The name of the link from one rank to another; messages on one link take turns. By default each has its own.
    base_bytes : sequence of int [R]
        What each rank holds all the time, such as its weights.

    Raises
    ------
    InputError
        There are not as many times as stages, or one is negative.
    """
    line = Line(schedule, times, reads, names, link_of)
    rule = RULES[messages](schedule)
    for rank in range(schedule.num_ranks):
        rule(line, rank)
    line.finish(alike)
    return line.builder.build(
        {"rank_base_bytes": tuple(int(base_size) for base_size in base_bytes)} if base_bytes else None
    )


def working_ranks(graph: Graph) -> NDArray[np.int64]:
    """Return the rank that computes each task or receives each message, [T]."""
    ranks = np.asarray(graph.tasks["rank"], np.int64)
    if "peer" not in graph.tasks:
        return ranks
    result: NDArray[np.int64] = np.where(graph.tasks["peer"] >= 0, graph.tasks["peer"], ranks)
    return result


class Line:
    """The graph that is being built, and what the next task of each rank has to wait for."""

    def __init__(
        self,
        schedule: Schedule,
        times: StageTimes,
        reads: Sequence[Collection[int]] | None,
        names: Sequence[str] | None,
        link_of: Callable[[int, int], str] | None,
    ) -> None:
        # names end in the subscript of their keys: by stage, by rank, or by (stage, kind of pass, microbatch)
        num = schedule.num_stages
        self.schedule, self.builder = schedule, GraphBuilder()
        self.reads = [{stage - 1} if stage else set() for stage in range(num)] if reads is None else reads
        self._readers = [[other for other in range(num) if stage in self.reads[other]] for stage in range(num)]
        backward = _each(times.backward_ns, num, "backward_ns")
        self._pass_ns = {
            "F": _each(times.forward_ns, num, "forward_ns"),
            "B": backward,
            "I": backward // 2 if times.input_ns is None else _each(times.input_ns, num, "input_ns"),
            "W": backward - backward // 2 if times.weights_ns is None else _each(times.weights_ns, num, "weights_ns"),
        }
        self._update_ns = None if times.update_ns is None else _each(times.update_ns, num, "update_ns")
        self._agree_ns = _each(times.agree_ns, num, "agree_ns")
        self._message_ns = None if times.message_ns is None else _each(times.message_ns, max(num - 1, 0), "message_ns")
        self._latency_ns = times.latency_ns
        kept = _each(times.kept_bytes, num, "kept_bytes")
        least = times.kept_for_weights_bytes
        long = kept if least is None else np.minimum(_each(least, num, "kept_for_weights_bytes"), kept)
        self._kept_bytes = {"I": kept - long, "W": long}  # by the part that frees it
        named = names or [f"rank {rank}" for rank in range(schedule.num_ranks)]
        self._devices = [self.builder.resource(name, ResourceKind.DEVICE) for name in named]
        self._link_of = link_of or (lambda a, b: f"link {a}-{b}")
        self._links: dict[str, int] = {}
        self.tasks: dict[Action, int] = {}
        self._kept: dict[tuple[int, str, int], int] = {}  # by stage, what frees it, microbatch
        self._messages: dict[Message, int] = {}
        # messages whose sender has no task yet; their edges are added when all passes are there
        self._late: list[tuple[Message, Action, Action]] = []
        self._agreed: dict[tuple[int, int], int] = {}
        self._exchange_ns = None if times.exchange_ns is None else _each(times.exchange_ns, num, "exchange_ns")
        # by stage, batch and rank: what it waits for here
        self._exchanges: dict[tuple[int, int, int], tuple[int, list[int]]] = {}
        self._due: list[list[tuple[int, int]]] = [[] for _ in range(schedule.num_ranks)]  # stage, sample
        self._frontier: list[list[int]] = [[] for _ in named]
        self._ends = [_batch_ends(schedule, rank) for rank in range(schedule.num_ranks)]
        self._stage_ends = [_stage_ends(schedule, rank) for rank in range(schedule.num_ranks)]

    def row(self, rank: int) -> list[Action]:
        """Return the actions of a rank, without empty slots."""
        return [action for action in self.schedule.actions[rank] if action is not None]

    def ends_batch(self, rank: int, index: int) -> bool:
        """Whether a batch ends with this action of a rank."""
        return index in self._ends[rank]

    def into(self, action: Action) -> list[Message]:
        """Return the messages that a pass receives from other ranks."""
        stage, kind, index = action
        others = {"F": self.reads[stage], "W": ()}.get(kind, self._readers[stage])
        return [
            Message(other, stage, index, kind != "F") for other in sorted(others) if self._is_apart(stage, other, index)
        ]

    def out(self, action: Action) -> list[Message]:
        """Return the messages that a pass sends to other ranks."""
        stage, kind, index = action
        others = {"F": self._readers[stage], "W": ()}.get(kind, self.reads[stage])
        return [
            Message(stage, other, index, kind != "F") for other in sorted(others) if self._is_apart(stage, other, index)
        ]

    def _is_apart(self, stage: int, other: int, microbatch: int) -> bool:
        return self.schedule.rank(stage, microbatch) != self.schedule.rank(other, microbatch)

    def compute(self, rank: int, action: Action) -> None:
        """A pass, behind all that was waited for."""
        stage, kind, index = action
        self.tasks[action] = self._then(
            rank, f"sample {index}, stage {stage}{_PARTS[kind]}", Phase.FORWARD if kind == "F" else Phase.BACKWARD,
            self._pass_ns[kind][stage], index,
        )  # fmt: skip
        for part in parts(action):
            self._keep_or_free(part, self.tasks[action])
        if kind in "BW" and self._agree_ns[stage]:
            self._agreed[stage, index] = self._then(
                rank, f"weights of stage {stage}", Phase.UPDATE, self._agree_ns[stage], index, kind=Kind.COMM
            )

    def _keep_or_free(self, part: Action, task: int) -> None:
        """Add a task that holds what a forward pass saves, which each part of the backward pass reads."""
        stage, kind, index = part
        for freed_by, kept_bytes in self._kept_bytes.items():
            if kind == "F" and kept_bytes[stage]:
                self._kept[stage, freed_by, index] = self.builder.task(
                    f"kept of sample {index}, stage {stage}", kind=Kind.VIRTUAL, phase=Phase.FORWARD, duration_ns=0,
                    iteration=index, rank=self.schedule.rank(stage, index), output_bytes=int(kept_bytes[stage]),
                )  # fmt: skip
                self.builder.edge(task, self._kept[stage, freed_by, index], kind=EdgeKind.CONTROL, from_start=True)
        if (stage, kind, index) in self._kept:
            self.builder.edge(self._kept[stage, kind, index], task, kind=EdgeKind.DATA)

    def update(self, rank: int, index: int) -> None:
        """The optimizer, where a stage's batch ends with this action of a rank; with others all at the rank's end."""
        if index not in self._stage_ends[rank]:
            return
        stage, _, sample = self.row(rank)[index]
        self._due[rank].append((stage, sample))
        if self._exchange_ns is not None:
            self._exchange(rank, stage, sample)
            if not self.ends_batch(rank, index):
                return
        for stage, sample in self._due[rank]:
            if self._exchange_ns is not None:
                self._frontier[rank].append(self._exchanges[stage, sample // self.schedule.num_microbatches, rank][0])
        for stage, sample in self._due[rank]:
            if self._update_ns is not None:
                self._then(rank, f"update of stage {stage}", Phase.UPDATE, self._update_ns[stage], sample)
        self._due[rank].clear()

    def _exchange(self, rank: int, stage: int, sample: int) -> None:
        """Gradients of a stage begin to go to those that are like it."""
        assert self._exchange_ns is not None
        task = self.builder.task(
            f"gradients of stage {stage}", kind=Kind.COMM, phase=Phase.UPDATE, resource=self._link(f"exchange {rank}"),
            duration_ns=int(self._exchange_ns[stage]), iteration=sample, rank=rank,
        )  # fmt: skip
        for before in self._frontier[rank]:
            self.builder.edge(before, task, kind=EdgeKind.SYNC)
        self._exchanges[stage, sample // self.schedule.num_microbatches, rank] = task, list(self._frontier[rank])

    def _then(
        self,
        rank: int,
        name: str,
        phase: Phase,
        duration_ns: int,
        sample: int,
        kind: Kind = Kind.COMPUTE,
    ) -> int:
        task = self.builder.task(
            name, kind=kind, phase=phase, resource=self._devices[rank], duration_ns=int(duration_ns), iteration=sample,
            rank=rank,
        )  # fmt: skip
        for before in self._frontier[rank]:
            self.builder.edge(before, task, kind=EdgeKind.CONTROL)
        self._frontier[rank] = [task]
        return task

    def expect(self, action: Action) -> None:
        """Make a pass wait for its messages, whenever they arrive."""
        for item in self.into(action):
            sender = Action(item.src, "F" if not item.is_backward else "B", item.microbatch)
            self._late.append((item, sender, action))

    def post(self, rank: int, messages: Sequence[Message]) -> list[Message]:
        """Send or ask for: a message begins when both sides have."""
        for message in messages:
            task = self._message(message)
            for before in self._frontier[rank]:
                self.builder.edge(before, task, kind=EdgeKind.MESSAGE)
        return list(messages)

    def wait(self, rank: int, messages: Sequence[Message]) -> None:
        """Make the next task of a rank wait for messages."""
        self._frontier[rank] += [self._messages[message] for message in messages]

    def _message(self, message: Message) -> int:
        if message not in self._messages:
            sender, receiver = (self.schedule.rank(stage, message.microbatch) for stage in (message.src, message.dst))
            boundary = min(message.src, message.dst)
            duration_ns = 0 if self._message_ns is None else int(self._message_ns[boundary])
            direction = "back over" if message.is_backward else "over"
            self._messages[message] = self.builder.task(
                f"sample {message.microbatch} {direction} {boundary}", kind=Kind.COMM,
                resource=self._link(self._link_of(sender, receiver)), duration_ns=duration_ns,
                iteration=message.microbatch, rank=sender, peer=receiver,
            )  # fmt: skip
        return self._messages[message]

    def _link(self, name: str) -> int:
        if name not in self._links:
            self._links[name] = self.builder.resource(name, ResourceKind.LINK)
        return self._links[name]

    def finish(self, alike: Sequence[Collection[int]] = ()) -> None:
        """Join who sends and who receives, replicas with each other, and who exchanges gradients."""
        group_of = {stage: min(group) for group in alike for stage in group}
        meetings: dict[tuple[int, int], list[tuple[int, list[int]]]] = {}
        for (stage, batch, _), exchange in self._exchanges.items():
            meetings.setdefault((group_of.get(stage, stage), batch), []).append(exchange)
        for together in meetings.values():
            # every participant waits for what the others did before it
            for (task, _), (_, before) in permutations(together, 2):
                for other in before:
                    self.builder.edge(other, task, kind=EdgeKind.SYNC)
        for item, sender, receiver in self._late:
            # where a schedule splits backward passes, the one of the inputs sends
            src = self.tasks[sender if sender in self.tasks else sender._replace(kind="I")]
            if self._message_ns is None:
                self.builder.edge(src, self.tasks[receiver], kind=EdgeKind.MESSAGE, lag_ns=self._latency_ns)
                continue
            task = self._message(item)
            self.builder.edge(src, task, kind=EdgeKind.MESSAGE)
            self.builder.edge(task, self.tasks[receiver], kind=EdgeKind.MESSAGE)
        for stage, ranks in enumerate(self.schedule.replicas):
            self._agree(stage, len(ranks))

    def _agree(self, stage: int, num_replicas: int) -> None:
        """Replicas agree on their weights once each has done one microbatch backward."""
        done = sorted(index for which, index in self._agreed if which == stage)
        for first in range(0, max(done, default=-1) + 1, num_replicas):
            for item, other in permutations(
                [index for index in range(first, first + num_replicas) if index in done], 2
            ):
                back = Action(stage, "B" if Action(stage, "B", item) in self.tasks else "W", item)
                self.builder.edge(self.tasks[back], self._agreed[stage, other], kind=EdgeKind.SYNC)


def _batch_ends(schedule: Schedule, rank: int) -> set[int]:
    """Places of the last action of each batch."""
    row = [action for action in schedule.actions[rank] if action is not None]
    return set({item.microbatch // schedule.num_microbatches: index for index, item in enumerate(row)}.values())


def _stage_ends(schedule: Schedule, rank: int) -> set[int]:
    """Places after which a stage has done all of a batch."""
    row = [action for action in schedule.actions[rank] if action is not None]
    return set(
        {(item.stage, item.microbatch // schedule.num_microbatches): index for index, item in enumerate(row)}.values()
    )


def _each(values: ArrayLike, num: int, name: str) -> NDArray[np.int64]:
    given = np.asarray(values, np.float64)
    if given.ndim > 1 or given.size not in (1, num):
        raise InputError(f"{given.size} values for {num} stages", where=name, fix="one per stage, or one for all")
    if not (np.isfinite(given) & (given >= 0)).all():
        raise InputError("a value is negative or no number", where=name, fix="nanoseconds or bytes, 0 or more")
    result: NDArray[np.int64] = np.broadcast_to(given.round().astype(np.int64), (num,))
    return result
