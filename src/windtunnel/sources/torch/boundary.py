"""Where one training iteration ends and the next begins.

In: what a script shows of itself, as tokens in order: ``next`` of a data loader, ``step`` of an optimizer. Out: the
boundaries. The shortest pattern that repeats and in which every known optimizer steps is one iteration; it begins
where data are fetched, or, without a loader, after the optimizer step that is rarest in the pattern (the generator's
in a GAN with many critic steps). An iteration that does not follow the pattern (end of an epoch, a skipped step) is
irregular: it is measured again.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import NamedTuple

__all__ = ["BoundaryFinder", "Found", "Token"]

_MAX_PERIOD = 512
_LOST = 20  # tokens, over four patterns, without a boundary after which the pattern is given up
_PATIENCE = 40  # tokens after which an optimizer that has not stepped is taken as unused


class Found(Enum):
    """What a token means for the iteration that is running."""

    NOTHING = "nothing"
    REGULAR = "a whole iteration lies behind"
    IRREGULAR = "an iteration of another form lies behind"


class Token(NamedTuple):
    """One sign of life: ``kind`` "next" (about to fetch) or "step" (just stepped), ``key`` says of what."""

    kind: str
    key: str


class BoundaryFinder:
    """Learn the pattern of a training loop, then recognize its boundaries.

    Feed every token with :meth:`feed`. A boundary lies before the ``next`` or after the ``step`` that reports it.

    Examples
    --------
    >>> finder = BoundaryFinder()
    >>> loop = [Token("next", "loader"), Token("step", "sgd")] * 4
    >>> [finder.feed(token).name for token in loop]
    ['NOTHING', 'NOTHING', 'NOTHING', 'NOTHING', 'IRREGULAR', 'NOTHING', 'REGULAR', 'NOTHING']
    """

    def __init__(self) -> None:
        self.history: list[Token] = []
        self.known_optimizers: set[str] = set()
        self._pattern: list[Token] = []
        self._position = 0  # tokens of the pattern seen since the last boundary
        self._is_lost = False
        self._has_begun = False
        self._is_excused = False  # lost for a reason that says nothing about the pattern
        self._num_regular = self._num_irregular = self._num_irregular_in_a_row = 0
        self._shortest = 1  # shorter patterns have been tried and did not hold

    @property
    def pattern(self) -> tuple[Token, ...]:
        """One iteration, once it is known."""
        return tuple(self._pattern)

    @property
    def is_locked(self) -> bool:
        """Whether the pattern is known."""
        return bool(self._pattern)

    def feed(self, token: Token) -> Found:
        """Take one token."""
        self.history.append(token)
        if not self._pattern:
            self._learn()
            # the pattern is learnt on its last token: a loop without loader is then at a boundary
            return self._after_learning()
        return self._follow(token)

    def retract(self) -> None:
        """Forget the last token: the loader was at its end and gave nothing."""
        if self.history:
            self.history.pop()
        self._is_lost = self._is_excused = True

    # --- learning ---------------------------------------------------------------------------------------

    def _learn(self) -> None:
        length = len(self.history)
        for period in range(self._shortest, min(length // 2, _MAX_PERIOD) + 1):
            last = self.history[-period:]
            steps = {token.key for token in last if token.kind == "step"}
            if not steps or last != self.history[-2 * period : -period]:
                continue
            if self.known_optimizers <= steps or length >= _PATIENCE + 4 * period:
                self._pattern = _rotate_to_start(_root(last))
                return

    def _after_learning(self) -> Found:
        if not self._pattern:
            return Found.NOTHING
        self._position = 0
        self._has_begun = False
        if self._pattern[0].kind == "step" and self.history[-1] == self._pattern[-1]:
            self._has_begun = True
            return Found.IRREGULAR  # what lies behind was not measured from a boundary on
        self._is_lost = True
        return Found.NOTHING

    # --- following --------------------------------------------------------------------------------------

    def _follow(self, token: Token) -> Found:
        if self._is_boundary(token):
            whole = self._has_begun and not self._is_lost and self._is_whole(token)
            self._count(whole)
            self._begin(token)
            return Found.REGULAR if whole else Found.IRREGULAR
        expected = self._pattern[self._position % len(self._pattern)]
        self._is_lost |= token != expected
        self._position += 1
        if self._position > 4 * len(self._pattern) + _LOST:
            self._forget(shortest=1)
        return Found.NOTHING

    def _count(self, whole: bool) -> None:
        """Forget a pattern that keeps failing: for ever, or once in every few iterations."""
        if not self._has_begun or self._is_excused:
            return
        self._num_regular += whole
        self._num_irregular += not whole
        self._num_irregular_in_a_row = 0 if whole else self._num_irregular_in_a_row + 1
        if self._num_irregular_in_a_row >= 4:
            self._forget(shortest=1)
        elif self._num_irregular >= 3 and 8 * self._num_irregular >= self._num_regular:
            self._forget(shortest=len(self._pattern) + 1)

    def _is_boundary(self, token: Token) -> bool:
        first, last = self._pattern[0], self._pattern[-1]
        if first.kind == "next":
            return token == first and (len(self.history) < 2 or self.history[-2] == last)
        return token == last and (not self._is_lost or self._tail_matches())

    def _tail_matches(self) -> bool:
        return self.history[-len(self._pattern) :] == self._pattern or len(self._pattern) == 1

    def _is_whole(self, token: Token) -> bool:
        if self._pattern[0].kind == "next":
            return self._position == len(self._pattern)
        return token == self._pattern[self._position % len(self._pattern)] and self._position == len(self._pattern) - 1

    def _begin(self, token: Token) -> None:
        self._position = 1 if token.kind == "next" else 0
        self._is_lost, self._is_excused, self._has_begun = False, False, True

    def _forget(self, *, shortest: int) -> None:
        """The loop has changed its form, or the pattern was too short: learn anew."""
        self.history = self.history[-4 * _MAX_PERIOD :] if shortest > 1 else self.history[-1:]
        self._shortest = shortest
        self._pattern, self._position = [], 0
        self._num_regular = self._num_irregular = self._num_irregular_in_a_row = 0


def _root(period: list[Token]) -> list[Token]:
    """The shortest pattern whose repetition the period is: so many repeats outweigh that it did not hold before."""
    lengths = (length for length in range(1, len(period) + 1) if len(period) % length == 0)
    return next(period[:length] for length in lengths if period[:length] * (len(period) // length) == period)


def _rotate_to_start(period: list[Token]) -> list[Token]:
    """Rotate the pattern so that it starts at its natural beginning."""
    count = Counter(period)
    begins = [index for index, token in enumerate(period) if token.kind == "next" and period[index - 1].kind == "step"]
    if not begins:
        begins = [index for index in range(len(period)) if period[index - 1].kind == "step"]
    rarest = min(count[period[item - 1]] for item in begins)
    # among equals the latest, which for a GAN is the one after the generator's step
    begin = next(item for item in reversed(begins) if count[period[item - 1]] == rarest)
    if period[begin].kind != "next" and count[period[begin - 1]] == rarest:
        begin = 0 if count[period[-1]] == rarest else begin
    return period[begin:] + period[:begin]
