"""Which edits of a winner matter, and which only together.

In: a set of edits, and processes that run subsets of it. Out: the shortest list that is as fast; which of its edits
help alone; times of all subsets of those that do not. Not here: what they rest on (``verdict``).
Source: GEVO, TACO 2020, and its follow-up on scientific kernels: minimization, independent and epistatic edits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

from windtunnel.systems.kernels.edits import Edit, Individual, sort_edits
from windtunnel.systems.kernels.model import Evaluation

__all__ = ["Ladder", "ladder", "minimize_edits"]

Again = Callable[[list[Individual]], list[Evaluation]]
"""Run sets of edits, with many timings of each."""
_LOSS = 0.01
_MAX_EXHAUSTIVE = 8


def minimize_edits(edits: Individual, again: Again, loss: float = _LOSS) -> Individual:
    """Drop every edit without which it passes and is at most that much slower; large parts first, then single ones."""
    kept = sort_edits(edits)
    best = again([frozenset(kept)])[0]
    size = len(kept) // 2
    while size >= 1:
        index = 0
        while index < len(kept) and len(kept) > 1:
            # delta debugging: a part that is not missed is dropped, else the next one is tried; then parts half as
            # large
            rest = kept[:index] + kept[index + size :]
            if rest and (result := again([frozenset(rest)])[0]).kind == "ok" and _as_fast(best, result, loss):
                kept = rest
            else:
                index += size
        size //= 2
    if len(kept) == 1 and _as_fast(best, again([frozenset()])[0], loss):
        return frozenset()
    return frozenset(kept)


def _as_fast(best: Evaluation, result: Evaluation, loss: float) -> bool:
    """Return whether a result is as fast as the best; the same program is as fast whatever was measured."""
    return result.digest == best.digest or best.time_ratio / result.time_ratio > 1 - loss


@dataclass(frozen=True)
class Ladder:
    """How the edits of a set need one another.

    Attributes
    ----------
    independent : tuple of Edit
        Those that pass alone and gain as much alone as with the others.
    cluster : tuple of Edit
        The rest.
    subsets : dict of tuple of int to Evaluation
        Of the cluster's edits by number, on top of the independent ones: all where there are at most eight, else the
        best pair, the best third to it, and so on.
    """

    independent: tuple[Edit, ...]
    cluster: tuple[Edit, ...]
    subsets: dict[tuple[int, ...], Evaluation]

    @property
    def stepping_stones(self) -> list[int]:
        """Edits of the cluster that fail alone or gain nothing, but are part of its best subset."""
        passing = {key: subset for key, subset in self.subsets.items() if subset.kind == "ok"}
        if not passing:
            return []
        best = min(passing, key=lambda key: (passing[key].time_ratio, len(key)))
        start = self.subsets[()].time_ratio
        return [
            item
            for item in best
            if (item,) in self.subsets and not self.subsets[item,].time_ratio < start * (1 - _LOSS)
        ]


def ladder(edits: Individual, again: Again) -> Ladder:
    """Separate independent edits from those that interact."""
    every = sort_edits(edits)
    if len(every) == 1:
        return Ladder(tuple(every), (), _subsets(every, [], again))
    origin, everything = again([frozenset(), edits])
    independent: list[Edit] = []
    for edit in every:
        base, rest = frozenset(independent), frozenset(every) - frozenset(independent)
        alone, before, without = again([base | {edit}, base, (frozenset(every) - {edit}) or frozenset()])
        if alone.kind != "ok" or without.kind != "ok" or not rest:
            continue
        # an edit is independent if it gains the same first of all and last of all
        gain_alone = before.time_ratio - alone.time_ratio
        gain_last = without.time_ratio - everything.time_ratio
        if abs(gain_alone - gain_last) < _LOSS * origin.time_ratio:
            independent.append(edit)
    cluster = [edit for edit in every if edit not in independent]
    return Ladder(tuple(independent), tuple(cluster), _subsets(independent, cluster, again))


def _subsets(independent: list[Edit], cluster: list[Edit], again: Again) -> dict[tuple[int, ...], Evaluation]:
    base, indices = frozenset(independent), range(len(cluster))
    if len(cluster) <= _MAX_EXHAUSTIVE:
        selected = [item for size in range(len(cluster) + 1) for item in combinations(indices, size)]
        result = again([base | {cluster[index] for index in item} for item in selected])
        return dict(zip(selected, result, strict=True))
    subsets: dict[tuple[int, ...], Evaluation] = {(): again([base])[0]}
    pairs: list[tuple[int, ...]] = list(combinations(indices, 2))
    subsets |= dict(zip(pairs, again([base | {cluster[index] for index in pair} for pair in pairs]), strict=True))
    now = min(pairs, key=lambda subset: subsets[subset].time_ratio)
    while len(now) < len(cluster):
        more = [tuple(sorted((*now, index))) for index in indices if index not in now]
        subsets |= dict(zip(more, again([base | {cluster[index] for index in item} for item in more]), strict=True))
        now = min(more, key=lambda subset: subsets[subset].time_ratio)
    return subsets
