"""How the ranks of a pipeline wait for messages.

In: a line that is being built, and a rank. Out: its passes and messages in that line, each behind what it waits for.
The order of passes is the schedule's; a rule says only who waits for which message when. Not here: what is waited for
(``timed``).

Source of the exchange: Megatron-LM 3.0, megatron/schedules.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windtunnel.systems.pipelines.schedules import Action, Schedule
    from windtunnel.systems.pipelines.timed import Line, Message

__all__ = ["RULES"]


def _run_buffered(line: Line, rank: int) -> None:
    """Run a rank that posts receives ahead and never waits for its sends."""
    for index, action in enumerate(line.row(rank)):
        line.expect(action)
        line.compute(rank, action)
        line.update(rank, index)


def _crossing(line: Line, rank: int) -> None:
    """1F1B: where a rank turns round, what it sends is waited for with what it receives."""
    row = line.row(rank)
    sent: list[Message] = []  # of the pass before, in the same direction
    held: list[Message] = []  # goes with the next receive
    for index, action in enumerate(row):
        line.wait(rank, line.post(rank, [*held, *line.into(action)]))
        line.compute(rank, action)
        line.wait(rank, sent)
        turns = not line.ends_batch(rank, index) and row[index + 1].kind != action.kind
        held = line.out(action) if turns else []
        sent = [] if turns else line.post(rank, line.out(action))
        if line.ends_batch(rank, index):
            line.wait(rank, sent)
            sent = []
        line.update(rank, index)


def _run_exchanged(line: Line, rank: int) -> None:
    """Run a rank of several stages that exchanges all messages between two rounds and waits for its own."""
    row = line.row(rank)
    begins = [0, *(i + 1 for i in range(len(row)) if line.ends_batch(rank, i))]
    rounds = [actions for first, last in pairwise(begins) for actions in _rounds(row[first:last])]
    first, index = 0, -1
    line.wait(rank, line.post(rank, _all(line.into, rounds[0])))
    for round_, following in zip(rounds, [*rounds[1:], ()], strict=True):
        for action in round_:
            line.compute(rank, action)
        index += len(round_)
        line.wait(rank, line.post(rank, [*_all(line.out, round_), *_all(line.into, following)]))
        if line.ends_batch(rank, index):  # all stages of a rank are updated then
            for position in range(first, index + 1):
                line.update(rank, position)
            first = index + 1


def _rounds(row: Sequence[Action]) -> list[tuple[Action, ...]]:
    """Of a batch: a pass, or, where some go forward when the first comes back, one forward with the next backward."""
    rounds: list[tuple[Action, ...]] = []
    is_paired = any((item.kind, other.kind) == ("B", "F") for item, other in pairwise(row))
    for action in row:
        if is_paired and action.kind == "B" and rounds and [round_.kind for round_ in rounds[-1]] == ["F"]:
            rounds[-1] += (action,)
        else:
            rounds.append((action,))
    return rounds


def _all(messages_of: Callable[[Action], list[Message]], actions: Iterable[Action]) -> list[Message]:
    return [message for action in actions for message in messages_of(action)]


RULES: dict[str, Callable[[Schedule], Callable[[Line, int], None]]] = {
    "buffered": lambda _: _run_buffered,
    "exchanged": lambda schedule: _run_exchanged if schedule.num_stages > schedule.num_ranks else _crossing,
}
"""Rules by name, each for a schedule."""
