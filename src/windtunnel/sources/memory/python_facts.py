"""What only Python knows of a step, learnt in one iteration before it.

In: a ``StorageTracker`` that has seen an iteration operator by operator. Out: ``Learned``: the source line of every
birth, and data that rest in memory and no hook would show. An operator's lines are given to the births of another
iteration in their order, and only if there are as many of them: what differs keeps an empty line.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from windtunnel.sources.memory.storages import BIRTH, INPUT, WEIGHT
from windtunnel.sources.memory.tracker import StorageTracker

__all__ = ["Learned"]

Birth = tuple[int, str, int]  # phase, operator, size_bytes


@dataclass
class Learned:
    """One iteration's births with their lines, and what rests in memory, with its names."""

    births: list[tuple[Birth, str]] = field(default_factory=list)
    resting: list[tuple[weakref.ref[Any], str, int]] = field(default_factory=list)

    @classmethod
    def of(cls, tracker: StorageTracker) -> Learned:
        """What a tracker has seen; to be asked before it stops."""
        ledger, lines = tracker.ledger, tracker.places.lines.texts
        alive, initial = dict(tracker.storages_alive()), set(ledger.initial)
        births = [
            ((ledger.phases[number], ledger.makers[number]._schema.name, ledger.first_sizes[number]), number)
            for _, event, number, *_ in ledger.entries
            if event == BIRTH and not isinstance(ledger.makers[number], str)
        ]
        resting = [
            (weakref.ref(storage), str(ledger.names[number]), ledger.categories[number])
            for number, storage in alive.items()
            # a weight of a model that no optimizer updates, as that of an average, rests there as data do
            if number in initial and ledger.categories[number] in (INPUT, WEIGHT)
        ]
        return cls([(birth, lines[ledger.lines[number]]) for birth, number in births], resting)

    def lines(self, births: Sequence[Birth]) -> list[str]:
        """Lines of the births of one iteration, in order; empty where it cannot be said."""
        result = [""] * len(births)
        for key in (_by_size, _by_operator):  # whole operators last, as they are surer
            known: dict[Hashable, list[str]] = defaultdict(list)
            for birth, line in self.births:
                known[key(birth)].append(line)
            requested: dict[Hashable, list[int]] = defaultdict(list)
            for index, birth in enumerate(births):
                requested[key(birth)].append(index)
            for group, indices in requested.items():
                if len(indices) == len(known[group]):
                    for index, line in zip(indices, known[group], strict=True):
                        result[index] = line
        return result


def _by_operator(birth: Birth) -> Hashable:
    return birth[:2]


def _by_size(birth: Birth) -> Hashable:
    return birth
