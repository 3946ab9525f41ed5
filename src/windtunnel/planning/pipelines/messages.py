"""How the ranks of a pipeline wait for messages (room planning).

In: a line that is being built, and a rank. Out: its passes and messages in that line, each behind what it waits for.
The order of passes is the schedule's; a rule says only who waits for which message when. Not here: what is waited for
(``timed``).

Source of the rules with rendezvous: PyTorch 2.13, torch/distributed/pipelining/schedules.py, ScheduleGPipe and
Schedule1F1B.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windtunnel.planning.pipelines.schedules import Schedule
    from windtunnel.planning.pipelines.timed import Line, Message

__all__ = ["RULES"]


def _buffered(line: Line, rank: int) -> None:
    """Receives are posted ahead, nobody waits for what it sent."""
    for at, action in enumerate(line.row(rank)):
        line.expect(action)
        line.compute(rank, action)
        line.update(rank, at)


def _each_by_itself(line: Line, rank: int) -> None:
    """GPipe: who needs something asks for it then; sends are waited for at the end of each half."""
    sent: list[Message] = []
    row = line.row(rank)
    for at, action in enumerate(row):
        line.wait(rank, line.post(rank, line.into(action)))
        line.compute(rank, action)
        sent += line.post(rank, line.out(action))
        if line.ends_batch(rank, at) or row[at + 1].kind != action.kind:
            line.wait(rank, sent)
            sent = []
        line.update(rank, at)


def _crossing(line: Line, rank: int) -> None:
    """1F1B: where a rank turns round, what it sends is waited for with what it receives."""
    row = line.row(rank)
    sent: list[Message] = []  # of the pass before, in the same direction
    held: list[Message] = []  # goes with the next receive
    for at, action in enumerate(row):
        line.wait(rank, line.post(rank, [*held, *line.into(action)]))
        line.compute(rank, action)
        line.wait(rank, sent)
        turns = not line.ends_batch(rank, at) and row[at + 1].kind != action.kind
        held = line.out(action) if turns else []
        sent = [] if turns else line.post(rank, line.out(action))
        if line.ends_batch(rank, at):
            line.wait(rank, sent)
            sent = []
        line.update(rank, at)


def _torch(schedule: Schedule) -> Callable[[Line, int], None]:
    return _each_by_itself if schedule.name == "gpipe" else _crossing


RULES: dict[str, Callable[[Schedule], Callable[[Line, int], None]]] = {
    "buffered": lambda _: _buffered,
    "rendezvous": _torch,
}
"""Rules by name, each for a schedule."""
