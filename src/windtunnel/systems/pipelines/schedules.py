"""Who does what in which order in a pipeline: schedules as tables of actions.

In: numbers of ranks, chunks of the model per rank and microbatches. Out: a ``Schedule``: for each rank its actions in
order, as ``0F3``: stage 0, forward, microbatch 3. Not here: how long an action takes (``model``), whether a table can
run (the verifier), running one (``training``).

Sources: GPipe (Huang et al., 2019), PipeDream (Narayanan et al., SOSP 2019) and PipeDream-2BW (ICML 2021).
"""

# R ranks, S stages, M microbatches of a batch

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from windtunnel.errors import InputError

__all__ = [
    "Action",
    "Schedule",
    "ScheduleKind",
    "forward_only",
    "gpipe",
    "has_parts",
    "one_forward_one_backward",
    "pipedream",
    "pipedream_2bw",
    "repeat_schedule",
    "require_some",
]

ScheduleKind = Literal["F", "B", "I", "W"]
"""Forward, backward; or its two parts: for the input's gradient, and for the weights'."""


class Action(NamedTuple):
    """One pass of one microbatch through one stage."""

    stage: int
    kind: ScheduleKind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    def reads(self, num_stages: int) -> int | None:
        """The stage whose value it waits for: forward the one before it, backward the one behind it, if any."""
        other = {"F": self.stage - 1, "W": -1}.get(self.kind, self.stage + 1)
        return other if 0 <= other < num_stages else None

    def feeds(self, num_stages: int) -> int | None:
        """The stage that waits for its value, if one does."""
        other = {"F": self.stage + 1, "W": -1}.get(self.kind, self.stage - 1)
        return other if 0 <= other < num_stages else None


@dataclass(frozen=True)
class Schedule:
    """A table of actions.

    Parameters
    ----------
    name : str
        Such as ``1f1b``.
    actions : tuple [R] of tuples of Action or None
        What each rank does, in order; None is a slot in which it waits by choice, which only a picture needs.
    rank_of : tuple of int [S]
        On which rank each stage lies; of several replicas, the first.
    num_microbatches : int
        Per batch.
    num_batches : int
        Microbatches count on through all batches: batch b has those from ``b * num_microbatches`` on.
    versions : str
        Which weights a pass sees: ``flush`` (those after all earlier batches), ``2bw`` (those of one batch before), or
        ``stash`` (the newest of its own rank, and the same ones backward). A stage updates after its last
        backward pass of a batch.
    replicas : tuple [S] of tuples of int
        Ranks of all replicas of each stage, where some have several: microbatch k is that of replica k modulo their
        number. Empty: one each.
    max_in_flight : tuple of int [R]
        Maximum number of microbatches in flight on each rank: forward done, backward not complete. Empty: unspecified.
    overlaps : frozenset of Action
        Actions that share their slot with the next one of their rank.
    """

    name: str
    actions: tuple[tuple[Action | None, ...], ...]
    rank_of: tuple[int, ...]
    num_microbatches: int
    num_batches: int = 1
    versions: Literal["flush", "2bw", "stash"] = "flush"
    replicas: tuple[tuple[int, ...], ...] = ()
    max_in_flight: tuple[int, ...] = ()
    overlaps: frozenset[Action] = frozenset()

    @property
    def num_ranks(self) -> int:
        """Number of ranks, R."""
        return len(self.actions)

    @property
    def num_stages(self) -> int:
        """Number of stages, S."""
        return len(self.rank_of)

    @property
    def num_passes(self) -> int:
        """Number of microbatches of all batches."""
        return self.num_microbatches * self.num_batches

    @property
    def is_training(self) -> bool:
        """Whether anything goes backward."""
        return any(item is not None and item.kind != "F" for row in self.actions for item in row)

    def slots(self, rank: int) -> list[tuple[Action, ...]]:
        """Return the slots of a rank: each has no action, one, or two that overlap."""
        result: list[tuple[Action, ...]] = []
        is_open = False
        for action in self.actions[rank]:
            if action is None or not is_open:
                result.append(() if action is None else (action,))
            else:
                result[-1] += (action,)
            is_open = action in self.overlaps and not is_open
        return result

    def rank(self, stage: int, microbatch: int) -> int:
        """Return the rank that runs this microbatch at this stage."""
        ranks = self.replicas[stage] if self.replicas else (self.rank_of[stage],)
        return ranks[microbatch % len(ranks)]


def has_parts(schedule: Schedule) -> bool:
    """Whether some backward passes are done in two parts."""
    return any(item is not None and item.kind in "IW" for row in schedule.actions for item in row)


def forward_only(num_ranks: int, num_microbatches: int, replicas: Sequence[int] = ()) -> Schedule:
    """Inference: every rank takes what comes; arguments and errors as of ``gpipe``."""
    created = _linear("forward-only", num_ranks, num_microbatches, replicas, lambda _: num_microbatches)
    rows = tuple(tuple(item for item in row if item is not None and item.kind == "F") for row in created.actions)
    return replace(created, actions=rows, max_in_flight=())


def gpipe(num_ranks: int, num_microbatches: int, replicas: Sequence[int] = ()) -> Schedule:
    """All forward, then all backward (GPipe, section 2.3).

    Parameters
    ----------
    num_ranks : int
        Stages, in fact: of several replicas, each has a rank of its own.
    num_microbatches : int
    replicas : sequence of int [S]
        Of each stage; they take microbatches in turn.

    Raises
    ------
    InputError
        There are no ranks or no microbatches.
    """
    return _linear("gpipe", num_ranks, num_microbatches, replicas, lambda _: num_microbatches)


def one_forward_one_backward(num_ranks: int, num_microbatches: int, replicas: Sequence[int] = ()) -> Schedule:
    """PipeDream-Flush: a forward pass for each rank from here on, then one backward and one forward pass alternately.

    Arguments and errors as of ``gpipe``; replicas of a stage share what it has under way.
    """
    replicas_of = list(replicas) or [1] * num_ranks
    return _linear(
        "1f1b",
        num_ranks,
        num_microbatches,
        replicas_of,
        lambda stage: -(-sum(replicas_of[stage:]) // replicas_of[stage]),
    )


def pipedream(num_ranks: int, num_microbatches: int, num_batches: int, replicas: Sequence[int] = ()) -> Schedule:
    """PipeDream (section 3.2 and 3.3): 1F1B that is never emptied, with the weights of every pass under way stashed.

    The paper's batches are of one microbatch each. Arguments and errors as of ``gpipe``.
    """
    require_some("pipedream", num_ranks, num_microbatches, num_batches)
    created = one_forward_one_backward(num_ranks, num_microbatches * num_batches, replicas)
    return replace(
        created, name="pipedream", num_microbatches=num_microbatches, num_batches=num_batches, versions="stash"
    )


def pipedream_2bw(num_ranks: int, num_microbatches: int, num_batches: int) -> Schedule:
    """PipeDream-2BW (section 3.1): the same order, with two versions of the weights.

    Raises
    ------
    InputError
        A batch has fewer microbatches than there are ranks: two versions would not be enough.
    """
    require_some("2bw", num_ranks, num_microbatches, num_batches)
    if num_microbatches < num_ranks:
        raise InputError(
            f"{num_microbatches} microbatches per batch on {num_ranks} ranks need more than two versions of weights",
            where="2bw", fix=f"{num_ranks} microbatches or more",
        )  # fmt: skip
    return replace(pipedream(num_ranks, num_microbatches, num_batches), name="2bw", versions="2bw")


def repeat_schedule(schedule: Schedule, num_batches: int) -> Schedule:
    """A schedule that is emptied, batch after batch.

    Raises
    ------
    InputError
        There are no batches.
    """
    require_some(schedule.name, schedule.num_ranks, schedule.num_microbatches, num_batches)
    step = schedule.num_passes

    def later(action: Action | None, batch: int) -> Action | None:
        return action and action._replace(microbatch=action.microbatch + batch * step)

    rows = tuple(tuple(later(item, batch) for batch in range(num_batches) for item in row) for row in schedule.actions)
    overlaps = frozenset(
        overlap._replace(microbatch=overlap.microbatch + batch * step)
        for batch in range(num_batches)
        for overlap in schedule.overlaps
    )
    return replace(schedule, actions=rows, num_batches=schedule.num_batches * num_batches, overlaps=overlaps)


def require_some(name: str, num_ranks: int, num_microbatches: int, num_batches: int = 1) -> None:
    """Refuse a pipeline of nothing."""
    if min(num_ranks, num_microbatches, num_batches) < 1:
        raise InputError(
            f"{num_batches} batches of {num_microbatches} microbatches on {num_ranks} ranks", where=name,
            fix="one or more of each",
        )  # fmt: skip


def _linear(
    name: str, num_stages: int, num_microbatches: int, replicas: Sequence[int], num_ahead: Callable[[int], int]
) -> Schedule:
    """Schedule one stage per rank: ``num_ahead`` forward passes, then one backward and one forward pass alternately."""
    require_some(name, num_stages, num_microbatches)
    replicas_of = list(replicas) or [1] * num_stages
    if len(replicas_of) != num_stages or min(replicas_of) < 1:
        raise InputError(f"replicas {replicas_of} of {num_stages} stages", where=name, fix="one or more of each stage")
    rows: list[tuple[Action, ...]] = []
    ranks, most = [], []
    for stage, num_replicas in enumerate(replicas_of):
        ranks.append(tuple(range(len(rows), len(rows) + num_replicas)))
        for replica in range(num_replicas):
            local = range(replica, num_microbatches, num_replicas)
            first = min(num_ahead(stage), len(local))
            row = [Action(stage, "F", index) for index in local[:first]]
            for back, ahead in zip(local, [*local[first:], *[None] * first], strict=True):
                row.append(Action(stage, "B", back))
                row += [] if ahead is None else [Action(stage, "F", ahead)]
            rows.append(tuple(row))
            most.append(first)
    return Schedule(
        name, tuple(rows), tuple(rank[0] for rank in ranks), num_microbatches, max_in_flight=tuple(most),
        replicas=tuple(ranks) if max(replicas_of) > 1 else (),
    )  # fmt: skip
