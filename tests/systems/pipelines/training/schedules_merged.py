"""All ranks of a schedule as one (shared by tests): the same passes in an order in which they can run.

In: a table of actions. Out: a table of one rank. What a pass computes does not hang on who runs it.
"""

from __future__ import annotations

from dataclasses import replace

from windtunnel.systems.pipelines.schedules import Schedule
from windtunnel.systems.pipelines.training.messages import Edge


def merged(schedule: Schedule) -> Schedule:
    """One row: each rank in turn does what it can."""
    rows = [[one for one in row if one is not None] for row in schedule.actions]
    made: set[Edge] = set()
    order = []
    while any(rows):
        before = len(order)
        for row in rows:
            while row and (Edge.into(row[0], schedule.num_stages) in made | {None}):
                made.add(Edge.out_of(row[0], schedule.num_stages))
                order.append(row.pop(0))
        assert len(order) > before, "the ranks wait for each other"
    return replace(
        schedule, actions=(tuple(order),), rank_of=(0,) * schedule.num_stages, replicas=(), overlaps=frozenset()
    )
