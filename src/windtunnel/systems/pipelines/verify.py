"""Whether a schedule can run: what is wrong with it, with rank and slot.

In: a ``Schedule``. Out: nothing, or an error: an action on the wrong rank, missing or twice; a pass before the one that
it needs; ranks that wait for each other; messages that cross; weights that are not there yet; more in flight than was
declared. Not here: how long anything takes.

A rank does its actions in the order of its row. Messages of one direction between two ranks are received in the order
in which they are sent, as libraries without tags match them.
"""

# R ranks, S stages

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

from windtunnel.errors import InputError
from windtunnel.systems.pipelines.schedules import Action, Schedule, ScheduleKind

__all__ = ["in_flight", "needs", "parts", "require_shared", "require_valid", "weight_versions"]


def require_valid(schedule: Schedule) -> None:
    """Refuse a schedule that cannot run, or does not do what it declares.

    Raises
    ------
    InputError
        Says the first thing that is wrong, with rank and slot.
    """
    require_shared(schedule)
    table = _Table(schedule)
    _require_all(table)
    _require_order(table)
    _require_progress(table)
    _require_pairs(table)
    _require_weights(table)
    for rank, (held, most) in enumerate(zip(in_flight(schedule), schedule.max_in_flight, strict=False)):
        if held > most:
            raise table.wrong(f"rank {rank}", f"{held} passes are in flight, {most} were declared", "declare as many")


def require_shared(schedule: Schedule) -> None:
    """Refuse a batch that leaves a replica of a stage without a microbatch: the others would wait for its gradients.

    Raises
    ------
    InputError
        Names the stage.
    """
    count = schedule.num_microbatches
    for stage, ranks in enumerate(schedule.replicas if schedule.is_training else ()):
        if count < len(ranks):
            raise InputError(
                f"a batch of {count} microbatch{'es' * (count != 1)} for {len(ranks)} replicas of stage {stage}",
                where=schedule.name, fix=f"{len(ranks)} microbatches or more, or fewer replicas",
            )  # fmt: skip


def parts(action: Action) -> tuple[Action, ...]:
    """A whole backward pass as its two parts; anything else as it is."""
    if action.kind != "B":
        return (action,)
    return action._replace(kind="I"), action._replace(kind="W")


def needs(part: Action, num_stages: int) -> list[Action]:
    """Parts that have to be done before this one."""
    stage, kind, index = part
    own: dict[str, list[Action]] = {"I": [Action(stage, "F", index)], "W": [Action(stage, "I", index)]}
    other = part.reads(num_stages)
    return own.get(kind, []) + ([] if other is None else [Action(other, kind, index)])


def in_flight(schedule: Schedule) -> tuple[int, ...]:
    """The most passes that each rank has done forward and not yet, in all parts, backward [R]."""
    change = {"F": 1, "B": -1, "W": -1, "I": 0}
    most = []
    for row in schedule.actions:
        held = peak = 0
        for item in row:
            held += 0 if item is None else change[item.kind]
            peak = max(peak, held)
        most.append(peak)
    return tuple(most)


def weight_versions(schedule: Schedule) -> tuple[int, ...]:
    """Return the number of weight versions that each rank has to keep, [R]."""
    if schedule.versions != "stash":
        return ({"flush": 1, "2bw": 2}[schedule.versions],) * schedule.num_ranks
    most = []
    for row in schedule.actions:
        passes = [item for item in row if item is not None]
        left = Counter(
            step_pass.microbatch // schedule.num_microbatches for step_pass in passes if step_pass.kind in "BW"
        )
        # seen: the version that each forward pass read, kept until its backward pass is over
        newest, seen, peak = 0, dict[tuple[int, int], int](), 1
        for stage, kind, index in passes:
            if kind == "F":
                seen[stage, index] = newest
            elif kind != "I":
                seen.pop((stage, index), None)
                left[index // schedule.num_microbatches] -= 1
                newest += left[index // schedule.num_microbatches] == 0
            peak = max(peak, len({newest, *seen.values()}))
        most.append(peak)
    return tuple(most)


class _Table:
    """Where every part is written, as rank and place in its row.

    Raises
    ------
    InputError
        Something is written twice, or where it does not belong.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.rows = [[entry for entry in row if entry is not None] for row in schedule.actions]
        self._slot = [
            [slot for slot, shared in enumerate(schedule.slots(rank)) for _ in shared]
            for rank in range(schedule.num_ranks)
        ]
        self.place: dict[Action, tuple[int, int]] = {}
        for rank, row in enumerate(self.rows):
            for index, item in enumerate(row):
                self._require_here(item, rank, index)
                for part in parts(item):
                    if part in self.place:
                        before = self.describe(part)
                        raise self.wrong(self.where(rank, index), f"{item} comes twice: {before}", "leave one of them")
                    self.place[part] = (rank, index)

    def _require_here(self, action: Action, rank: int, index: int) -> None:
        schedule, where = self.schedule, self.where(rank, index)
        if not (0 <= action.stage < schedule.num_stages and 0 <= action.microbatch < schedule.num_passes):
            sizes = f"{schedule.num_stages} stages and {schedule.num_passes} microbatches, counted from 0"
            raise self.wrong(where, f"{action} does not exist", f"there are {sizes}")
        if rank != schedule.rank(action.stage, action.microbatch):
            raise self.wrong(where, f"{action} belongs on rank {schedule.rank(action.stage, action.microbatch)}")

    def where(self, rank: int, index: int) -> str:
        """As users count: slots that are waited in count as well, actions that overlap share one."""
        return f"rank {rank}, slot {self._slot[rank][index]}"

    def describe(self, part: Action) -> str:
        """The action that does this part, with its place."""
        rank, index = self.place[part]
        return f"{self.rows[rank][index]} ({self.where(rank, index)})"

    def wrong(self, where: str, what: str, fix: str = "") -> InputError:
        return InputError(f"{where}: {what}", where=f"schedule {self.schedule.name}", fix=fix)

    def gap(self, part: Action) -> str:
        """Return where a missing part should be: an empty slot between its neighbors, or before its first reader."""
        schedule = self.schedule
        rank = schedule.rank(part.stage, part.microbatch)
        indices = [self.place[need] for need in needs(part, schedule.num_stages) if need in self.place]
        low = max([self._slot[rank][index] + 1 for where, index in indices if where == rank], default=0)
        users = [index for index, row in enumerate(self.rows[rank])
                 if any(part in needs(item, schedule.num_stages) for item in parts(row))]  # fmt: skip
        slots = schedule.slots(rank)
        high = self._slot[rank][users[0]] if users else len(slots)
        empty = [slot for slot in range(low, high) if not slots[slot]]
        return f"rank {rank}, slot {empty[0] if empty else high}"


def _require_all(table: _Table) -> None:
    """Raise an error unless every microbatch passes every stage once, in all parts."""
    schedule = table.schedule
    kinds: tuple[ScheduleKind, ...] = ("F", "I", "W") if schedule.is_training else ("F",)
    for index in range(schedule.num_passes):
        for stage in range(schedule.num_stages):
            missing = [Action(stage, kind, index) for kind in kinds if Action(stage, kind, index) not in table.place]
            if not missing:
                continue
            name = missing[0]._replace(kind="B") if [item.kind for item in missing] == ["I", "W"] else missing[0]
            raise table.wrong(table.gap(missing[0]), f"{name} is missing", "every microbatch passes every stage once")


def _dependencies(table: _Table) -> Iterator[tuple[Action, Action]]:
    """Iterate over pairs of a part and a part that it needs."""
    for part in table.place:
        for other in needs(part, table.schedule.num_stages):
            yield part, other


def _require_order(table: _Table) -> None:
    for part, other in _dependencies(table):
        (rank, index), (other_rank, other_at) = table.place[part], table.place[other]
        if rank == other_rank and index < other_at:
            raise table.wrong(
                table.where(rank, index),
                f"{table.rows[rank][index]} comes before {table.describe(other)}, which it needs",
            )


def _require_progress(table: _Table) -> None:
    """Run all rows, each in its order, until no rank can go on."""
    done: set[Action] = set()
    next_at = [0] * len(table.rows)
    waits = dict(enumerate(table.rows))
    while waits:
        moved = False
        for rank in list(waits):
            while rank in waits and not _missing(table, rank, next_at[rank], done):
                done.update(parts(table.rows[rank][next_at[rank]]) if table.rows[rank] else ())
                next_at[rank] += 1
                moved = True
                if next_at[rank] >= len(table.rows[rank]):
                    del waits[rank]
        if not moved:
            raise _deadlock_error(table, next_at, done, min(waits))


def _missing(table: _Table, rank: int, index: int, done: set[Action]) -> list[Action]:
    """Return the parts that an action still needs; parts of its own do not count."""
    row = table.rows[rank]
    own = parts(row[index]) if row else ()
    requested = [need for part in own for need in needs(part, table.schedule.num_stages)]
    return [item for item in requested if item not in done and item not in own]


def _deadlock_error(table: _Table, next_at: list[int], done: set[Action], rank: int) -> InputError:
    """Ranks that wait for each other, one after the other until the first comes again."""
    seen: list[int] = []
    while rank not in seen:
        seen.append(rank)
        rank = table.place[_missing(table, rank, next_at[rank], done)[0]][0]
    ring = seen[seen.index(rank) :]
    ring = ring[ring.index(min(ring)) :] + ring[: ring.index(min(ring))]
    says = []
    for item in ring:
        missing = _missing(table, item, next_at[item], done)[0]
        says.append(
            f"{table.where(item, next_at[item])}: {table.rows[item][next_at[item]]} waits for {table.describe(missing)}"
        )
    return table.wrong("; ".join(says), "so that these ranks wait for each other")


def _require_pairs(table: _Table) -> None:
    """Messages of one direction between two ranks are asked for as they are sent."""
    sent: dict[tuple[int, int, str], list[tuple[int, int, Action, Action]]] = defaultdict(list)
    for part, other in _dependencies(table):
        (rank, index), (sender, sent_at) = table.place[part], table.place[other]
        if part.stage != other.stage and rank != sender:
            sent[sender, rank, part.kind].append((index, sent_at, part, other))
    for (_, rank, _), messages in sent.items():
        messages.sort()
        for (index, first, _, need), (_, second, later, later_need) in pairwise(messages):
            if first > second:
                raise table.wrong(
                    table.where(rank, index),
                    f"{table.rows[rank][index]} receives from {table.describe(need)} before "
                    f"{table.describe(later)} does from {table.describe(later_need)}: messages would cross",
                )


def _require_weights(table: _Table) -> None:
    """A stage goes on with the next batch once its weights are there, and mixes no gradients of two batches."""
    schedule = table.schedule
    delay = {"flush": 1, "2bw": 2, "stash": schedule.num_batches}[schedule.versions]
    last: dict[tuple[int, int, int], int] = {}  # by rank, stage, batch: the place of what ends it there
    first: dict[tuple[int, int, int, str], int] = {}
    for part, (rank, index) in table.place.items():
        key = rank, part.stage, part.microbatch // schedule.num_microbatches
        if part.kind == "W":
            last[key] = max(last.get(key, index), index)
        if part.kind != "I":
            first[*key, part.kind] = min(first.get((*key, part.kind), index), index)
    for (rank, stage, batch, kind), index in first.items():
        end = last.get((rank, stage, batch - (delay if kind == "F" else 1)), -1)
        if end > index:
            row = table.rows[rank]
            raise table.wrong(
                table.where(rank, index),
                f"{row[index]} of batch {batch} comes before {row[end]} ({table.where(rank, end)}), which ends batch "
                f"{row[end].microbatch // schedule.num_microbatches} there{_why(schedule, kind)}",
            )


def _why(schedule: Schedule, kind: str) -> str:
    if kind == "W":
        return ": their gradients would mix"
    return {"flush": " and makes its weights", "2bw": ": more than two versions would be needed"}[schedule.versions]
