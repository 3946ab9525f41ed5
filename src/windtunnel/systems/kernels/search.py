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
_MAX_REDRAWS = 20


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
    """Result of a search.

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
        """Pareto front in time and error, quickest first, without duplicates."""
        goals = np.asarray([item.evaluation.fitness for item in self.population])
        kept = {item.key: item for item, best in zip(self.population, is_best(goals), strict=True) if best}
        return sorted(kept.values(), key=lambda candidate: candidate.evaluation.fitness)

    @property
    def best(self) -> Candidate:
        """The candidate with the lowest time."""
        return min(self.population, key=lambda candidate: candidate.evaluation.fitness)


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
    """Run the evolutionary search; with a folder, each generation is saved and an interrupted search resumes.

    ``seeds`` are sets of edits that are added to the first population if they pass.

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
    # random numbers depend on (seed, generation, index) alone, so that a resumed search equals an uninterrupted one
    page = last_page(folder) if folder is not None else None
    if page is not None and page.settings != settings:
        raise InputError("the folder belongs to a search with other settings", where=str(folder),
                         fix="choose another with --out, or repeat the same options")  # fmt: skip
    begun_s = time.monotonic()
    if page is None:
        first = _add_single_edits(_first(function, evaluate, options), _passing(seeds, evaluate))
        page = _next_page(Page(0, tuple(first), settings), counts())
        _keep(folder, page)
    while (
        page.generation < options.generations
        and time.monotonic() - begun_s < options.time_limit_s
        and page.history[-1]["time_ratio"] > options.enough
    ):
        created = _next(function, evaluate, options, page.population, page.generation + 1)
        page = _next_page(replace(page, generation=page.generation + 1, population=tuple(created)), counts())
        _keep(folder, page)
        if progress is not None:
            best = page.history[-1]["time_ratio"]
            progress(f"generation {page.generation}, best {1 / best:.3f}x", page.generation, options.generations)
    return Found(page.population, page.history)


def _next_page(page: Page, counts: dict[str, Any]) -> Page:
    best = min(item.evaluation.fitness for item in page.population)
    error = min(item.evaluation.error for item in page.population)
    row = {"generation": page.generation, "time_ratio": best[0], "error": best[1], "least_error": error}
    return replace(page, history=(*page.history, row), counts=counts)


def _keep(folder: Path | None, page: Page) -> None:
    if folder is not None:
        write_page(folder, page)


def _draws(options: Options, generation: int, index: int) -> np.random.Generator:
    return np.random.default_rng([options.seed, generation, index])


def _first(function: Function, evaluate: Evaluate, options: Options) -> list[Candidate]:
    """Return the first population: each member unites edits of independently mutated copies and passes the tests."""
    draws = [_draws(options, 0, index) for index in range(options.population)]
    created: list[Candidate | None] = [None] * options.population
    origin = Candidate(frozenset(), evaluate([frozenset()])[0])
    if origin.evaluation.kind != "ok":
        raise InfeasibleError(f"the original does not pass its own tests: {origin.evaluation.kind}",
                              where=function.name, fix=origin.evaluation.detail)  # fmt: skip
    for _ in range(_MAX_REDRAWS):
        open_places = [index for index, entry in enumerate(created) if entry is None]
        if not open_places:
            break
        # As in GEVO's code: a member starts with the union of three edits that each passed alone, which may not
        # pass together; then its place is drawn anew.
        unions: dict[int, Individual] = dict.fromkeys(open_places, frozenset())
        for _ in range(_FIRST_EDITS):
            extended = _mutate_until_viable(function, evaluate, options, dict.fromkeys(open_places, origin), draws)
            for key, item in extended.items():
                unions[key] |= item.edits
        indices = list(unions)
        for key, result in zip(indices, evaluate([unions[index] for index in indices]), strict=True):
            if result.kind == "ok":
                created[key] = Candidate(unions[key], result)
    return _add_single_edits([entry or origin for entry in created], _scan_single_edits(function, evaluate, options))


def _scan_single_edits(function: Function, evaluate: Evaluate, options: Options) -> list[Candidate]:
    """Evaluate each hint and each assumption alone; return those that are faster, quickest first."""
    if not options.is_scanned:
        return []
    genes = [("-h", text) for text in hints_for(function)] if "h" in options.operators else []
    genes += [("-a", text) for text in promises_for(function)] if "a" in options.operators else []
    alone: list[Individual] = [frozenset([(gene,)]) for gene in genes]
    result = [Candidate(edits, reported) for edits, reported in zip(alone, evaluate(alone), strict=True)]
    better = [item for item in result if item.evaluation.kind == "ok" and item.evaluation.time_ratio < 1]
    return sorted(better, key=lambda candidate: candidate.evaluation.fitness)


def _passing(seeds: Sequence[Individual], evaluate: Evaluate) -> list[Candidate]:
    """Return the given sets of edits that pass, quickest first."""
    result = [
        Candidate(seed, reported)
        for seed, reported in zip(seeds, evaluate(seeds), strict=True)
        if reported.kind == "ok"
    ]
    return sorted(result, key=lambda candidate: candidate.evaluation.fitness)


def _add_single_edits(population: list[Candidate], scanned: list[Candidate]) -> list[Candidate]:
    """Replace the slower half of the population by the best single edits."""
    kept = sorted(population, key=lambda candidate: candidate.evaluation.fitness)
    count = min(len(scanned), len(population) // 2)
    return [*scanned[:count], *kept[: len(population) - count]]


def _next(
    function: Function, evaluate: Evaluate, options: Options, population: Sequence[Candidate], generation: int
) -> list[Candidate]:
    draw = _draws(options, generation, -1 % (1 << 31))
    goals = [entry.evaluation.fitness for entry in population]
    #      tournament -> crossover of neighbors -> mutation -> elite of the old population -> best of both (NSGA-II)
    children = [population[index] for index in tournament(goals, options.population, draw)]
    pairs = [index for index in range(0, len(children) - 1, 2) if draw.random() < options.crossover]
    _cross_all(children, pairs, evaluate, draw)
    selected = {index: child for index, child in enumerate(children) if draw.random() < options.mutation}
    # One generator per place: the number of draws of one child does not shift those of the others, so that
    # candidates can be tried side by side.
    draws = [_draws(options, generation, index) for index in range(len(children))]
    for key, item in _mutate_until_viable(function, evaluate, options, selected, draws).items():
        children[key] = item
    elite = select(goals, max(1, options.population // 64))
    pool = _once([*(population[index] for index in elite), *children], population)
    kept = select([entry.evaluation.fitness for entry in pool], options.population)
    return [pool[index] for index in kept]


def _once(pool: list[Candidate], population: Sequence[Candidate]) -> list[Candidate]:
    """Individuals that are there twice make room for others of the old population, as far as there are any."""
    # Duplicates would take over the population, as the best individual wins every tournament.
    names: set[str] = set()
    result = []
    for item in [*pool, *population]:
        if item.key not in names:
            names.add(item.key)
            result.append(item)
    return result if len(result) >= len(population) else [*result, *pool[: len(population) - len(result)]]


def _cross_all(children: list[Candidate], pairs: Sequence[int], evaluate: Evaluate, draw: np.random.Generator) -> None:
    """Cross each pair until a child passes, at most once per edit; a child replaces its parent."""
    waiting = {pair: len(children[pair].edits) + len(children[pair + 1].edits) for pair in pairs
               if len(children[pair].edits) >= 2 or len(children[pair + 1].edits) >= 2}  # fmt: skip
    # All pairs are tried in the same round, because compiling and running candidates in parallel is what
    # takes time.
    while waiting:
        tried: list[tuple[int, Individual]] = []
        for index in list(waiting):
            both = cross(children[index].edits, children[index + 1].edits, draw)
            if both is None or waiting[index] <= 0:
                del waiting[index]
                continue
            waiting[index] -= 1
            tried += [(index, both[0]), (index + 1, both[1])]
        for (position, edits), result in zip(tried, evaluate([edits for _, edits in tried]), strict=True):
            if result.kind == "ok":
                children[position] = Candidate(edits, result)
                waiting.pop(position - (0 if position in pairs else 1), None)


def _mutate_until_viable(
    function: Function,
    evaluate: Evaluate,
    options: Options,
    parents: dict[int, Candidate],
    draws: Sequence[np.random.Generator],
) -> dict[int, Candidate]:
    """Mutate each until it survives, at most twice as often as there are instructions; all of them side by side."""
    result: dict[int, Candidate] = {}
    left = dict.fromkeys(parents, 2 * function.num_instructions)
    while left:
        tried: dict[int, Individual] = {}
        for index in list(left):
            edits = None
            while edits is None and left[index] > 0:
                left[index] -= 1
                edits = _with_one_more(function, parents[index].edits, draws[index], options.operators)
            if edits is None:
                del left[index]
            else:
                tried[index] = edits
        for (index, edits), reported in zip(tried.items(), evaluate(list(tried.values())), strict=True):
            if reported.kind == "ok":
                result[index] = Candidate(edits, reported)
                left.pop(index, None)
    return result


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
        # An edit may fit the program as it is now and yet not the set as it is applied, in canonical order.
        apply(function, more)
    except InputError:
        return None
    return more
