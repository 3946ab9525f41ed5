"""Which sets of edits are tried: populations that evolve.

In: a kernel, and a function that says what becomes of candidates. Out: the last population, its front, how it came to
it. Every draw is by generation and place, so that a search that was ended anywhere goes on as it would have. Not here:
running candidates (``run``), what the winners rest on (``verdict``).
Source: Liou et al., GEVO, TACO 2020, and its code.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.base.pareto import is_best
from windtunnel.base.progress import Progress
from windtunnel.errors import InfeasibleError, InputError
from windtunnel.systems.kernels.assume import hints_for, promises_for
from windtunnel.systems.kernels.edits import Edit, Individual, apply
from windtunnel.systems.kernels.ir import Function
from windtunnel.systems.kernels.journal import Page, last_page, write_page
from windtunnel.systems.kernels.model import Candidate, Evaluation
from windtunnel.systems.kernels.nsga2 import select, tournament
from windtunnel.systems.kernels.operators import OPERATORS, cross, draw_edit

__all__ = ["Evaluate", "Found", "Options", "evolve"]

Evaluate = Callable[[Sequence[Individual]], list[Evaluation]]
_FIRST_EDITS = 3
_MOST_REDRAWS = 20


@dataclass(frozen=True)
class Options:
    """How to search.

    Attributes
    ----------
    population : int
        A multiple of four; 128 as published.
    generations : int
    crossover, mutation : float
        Probabilities.
    operators : str
        Of ``crismp``, and x, h (hints), a (assumptions).
    seed : int
    is_scanned : bool
        Whether each hint and each assumption is tried alone first, where these are among the operators; half of the
        first population are the quickest of them.
    time_limit_s : float
        No generation begins later.
    enough : float
        No generation begins once the quickest takes at most this share of the original's time.
    """

    population: int = 32
    generations: int = 20
    crossover: float = 0.8
    mutation: float = 0.3
    operators: str = OPERATORS
    seed: int = 0
    is_scanned: bool = True
    time_limit_s: float = float("inf")
    enough: float = 0.0

    def __post_init__(self) -> None:
        if self.population < 4 or self.population % 4:
            raise InputError(f"a population of {self.population}", fix="give a multiple of four")
        unknown = set(self.operators) - set("crismpxha")
        if unknown or not self.operators:
            raise InputError(f"there is no operator {', '.join(sorted(unknown)) or '(none)'}",
                             fix="operators are c, r, i, s, m, p, x, h, a")  # fmt: skip


@dataclass(frozen=True)
class Found:
    """What a search came to.

    Attributes
    ----------
    population : tuple of Candidate
    history : tuple of dict
        Best time and smallest error of each generation.
    """

    population: tuple[Candidate, ...]
    history: tuple[dict[str, Any], ...]

    @property
    def front(self) -> list[Candidate]:
        """Those that no other beats in time and error, quickest first, each once."""
        goals = np.asarray([one.evaluation.fitness for one in self.population])
        kept = {one.key: one for one, best in zip(self.population, is_best(goals), strict=True) if best}
        return sorted(kept.values(), key=lambda one: one.evaluation.fitness)

    @property
    def best(self) -> Candidate:
        """The quickest."""
        return min(self.population, key=lambda one: one.evaluation.fitness)


def evolve(
    function: Function,
    evaluate: Evaluate,
    options: Options,
    *,
    folder: Path | None = None,
    progress: Progress | None = None,
    counts: Callable[[], dict[str, Any]] = dict,
    seeds: Sequence[Individual] = (),
) -> Found:
    """Search; with a folder each generation is written there, and a search that was ended goes on from the last.

    ``seeds`` are sets of edits that the first population shall hold, as far as they pass.

    Raises
    ------
    InputError
        The folder belongs to another search.
    InfeasibleError
        No edit at all passes the tests.
    """
    settings = {
        key: value for key, value in asdict(options).items() if key not in ("generations", "time_limit_s", "enough")
    }
    page = last_page(folder) if folder is not None else None
    if page is not None and page.settings != settings:
        raise InputError("the folder belongs to a search with other settings", where=str(folder),
                         fix="choose another with --output, or ask the same again")  # fmt: skip
    begun_s = time.monotonic()
    if page is None:
        first = _with_scanned(_first(function, evaluate, options), _passing(seeds, evaluate))
        page = _turned(Page(0, tuple(first), settings), counts())
        _keep(folder, page)
    while (
        page.generation < options.generations
        and time.monotonic() - begun_s < options.time_limit_s
        and page.history[-1]["time_ratio"] > options.enough
    ):
        made = _next(function, evaluate, options, page.population, page.generation + 1)
        page = _turned(replace(page, generation=page.generation + 1, population=tuple(made)), counts())
        _keep(folder, page)
        if progress is not None:
            best = page.history[-1]["time_ratio"]
            progress(f"generation {page.generation}, best {1 / best:.3f}x", page.generation, options.generations)
    return Found(page.population, page.history)


def _turned(page: Page, counts: dict[str, Any]) -> Page:
    best = min(one.evaluation.fitness for one in page.population)
    error = min(one.evaluation.error for one in page.population)
    row = {"generation": page.generation, "time_ratio": best[0], "error": best[1], "least_error": error}
    return replace(page, history=(*page.history, row), counts=counts)


def _keep(folder: Path | None, page: Page) -> None:
    if folder is not None:
        write_page(folder, page)


def _draws(options: Options, generation: int, place: int) -> np.random.Generator:
    return np.random.default_rng([options.seed, generation, place])


def _first(function: Function, evaluate: Evaluate, options: Options) -> list[Candidate]:
    """Each is the union of the edits of some independently mutated copies, drawn again until it passes."""
    draws = [_draws(options, 0, place) for place in range(options.population)]
    made: list[Candidate | None] = [None] * options.population
    origin = Candidate(frozenset(), evaluate([frozenset()])[0])
    if origin.evaluation.kind != "ok":
        raise InfeasibleError(f"the original does not pass its own tests: {origin.evaluation.kind}",
                              where=function.name, fix=origin.evaluation.detail)  # fmt: skip
    for _ in range(_MOST_REDRAWS):
        open_places = [place for place, one in enumerate(made) if one is None]
        if not open_places:
            break
        unions: dict[int, Individual] = dict.fromkeys(open_places, frozenset())
        for _ in range(_FIRST_EDITS):
            grown = _mutated(function, evaluate, options, dict.fromkeys(open_places, origin), draws)
            for place, one in grown.items():
                unions[place] |= one.edits
        places = list(unions)
        for place, found in zip(places, evaluate([unions[place] for place in places]), strict=True):
            if found.kind == "ok":
                made[place] = Candidate(unions[place], found)
    return _with_scanned([one or origin for one in made], _scanned(function, evaluate, options))


def _scanned(function: Function, evaluate: Evaluate, options: Options) -> list[Candidate]:
    """Each hint and each assumption alone, the quickest first, as far as they gain anything."""
    if not options.is_scanned:
        return []
    genes = [("-h", text) for text in hints_for(function)] if "h" in options.operators else []
    genes += [("-a", text) for text in promises_for(function)] if "a" in options.operators else []
    alone: list[Individual] = [frozenset([(gene,)]) for gene in genes]
    found = [Candidate(edits, said) for edits, said in zip(alone, evaluate(alone), strict=True)]
    better = [one for one in found if one.evaluation.kind == "ok" and one.evaluation.time_ratio < 1]
    return sorted(better, key=lambda one: one.evaluation.fitness)


def _passing(seeds: Sequence[Individual], evaluate: Evaluate) -> list[Candidate]:
    """Those of the given sets that pass, the quickest first."""
    found = [Candidate(one, said) for one, said in zip(seeds, evaluate(seeds), strict=True) if said.kind == "ok"]
    return sorted(found, key=lambda one: one.evaluation.fitness)


def _with_scanned(population: list[Candidate], scanned: list[Candidate]) -> list[Candidate]:
    """The slower half makes room."""
    kept = sorted(population, key=lambda one: one.evaluation.fitness)
    count = min(len(scanned), len(population) // 2)
    return [*scanned[:count], *kept[: len(population) - count]]


def _next(
    function: Function, evaluate: Evaluate, options: Options, population: Sequence[Candidate], generation: int
) -> list[Candidate]:
    draw = _draws(options, generation, -1 % (1 << 31))
    goals = [one.evaluation.fitness for one in population]
    children = [population[place] for place in tournament(goals, options.population, draw)]
    pairs = [at for at in range(0, len(children) - 1, 2) if draw.random() < options.crossover]
    _cross_all(children, pairs, evaluate, draw)
    chosen = {at: one for at, one in enumerate(children) if draw.random() < options.mutation}
    draws = [_draws(options, generation, place) for place in range(len(children))]
    for place, one in _mutated(function, evaluate, options, chosen, draws).items():
        children[place] = one
    elite = select(goals, max(1, options.population // 64))
    pool = _once([*(population[place] for place in elite), *children], population)
    kept = select([one.evaluation.fitness for one in pool], options.population)
    return [pool[place] for place in kept]


def _once(pool: list[Candidate], population: Sequence[Candidate]) -> list[Candidate]:
    """Individuals that are there twice make room for others of the old population, as far as there are any."""
    names: set[str] = set()
    found = []
    for one in [*pool, *population]:
        if one.key not in names:
            names.add(one.key)
            found.append(one)
    return found if len(found) >= len(population) else [*found, *pool[: len(population) - len(found)]]


def _cross_all(children: list[Candidate], pairs: Sequence[int], evaluate: Evaluate, draw: np.random.Generator) -> None:
    """Each pair tries again until a child passes, at most as often as it has edits; a child replaces its parent."""
    waiting = {at: len(children[at].edits) + len(children[at + 1].edits) for at in pairs
               if len(children[at].edits) >= 2 or len(children[at + 1].edits) >= 2}  # fmt: skip
    while waiting:
        tried: list[tuple[int, Individual]] = []
        for at in list(waiting):
            both = cross(children[at].edits, children[at + 1].edits, draw)
            if both is None or waiting[at] <= 0:
                del waiting[at]
                continue
            waiting[at] -= 1
            tried += [(at, both[0]), (at + 1, both[1])]
        for (place, edits), found in zip(tried, evaluate([edits for _, edits in tried]), strict=True):
            if found.kind == "ok":
                children[place] = Candidate(edits, found)
                waiting.pop(place - (0 if place in pairs else 1), None)


def _mutated(
    function: Function,
    evaluate: Evaluate,
    options: Options,
    chosen: dict[int, Candidate],
    draws: Sequence[np.random.Generator],
) -> dict[int, Candidate]:
    """Mutate each until it survives, at most twice as often as there are instructions; all of them side by side."""
    found: dict[int, Candidate] = {}
    left = dict.fromkeys(chosen, 2 * function.num_instructions)
    while left:
        tried: dict[int, Individual] = {}
        for place in list(left):
            edits = None
            while edits is None and left[place] > 0:
                left[place] -= 1
                edits = _with_one_more(function, chosen[place].edits, draws[place], options.operators)
            if edits is None:
                del left[place]
            else:
                tried[place] = edits
        for (place, edits), said in zip(tried.items(), evaluate(list(tried.values())), strict=True):
            if said.kind == "ok":
                found[place] = Candidate(edits, said)
                left.pop(place, None)
    return found


def _with_one_more(
    function: Function, edits: Individual, draw: np.random.Generator, operators: str
) -> Individual | None:
    """The set with one edit more that was drawn for the program as it is now; None where none fits."""
    try:
        changed = apply(function, edits)
        edit: Edit | None = draw_edit(changed, draw, operators)
        if edit is None or edit in edits:
            return None
        more = edits | {edit}
        apply(function, more)
    except InputError:
        return None
    return more
