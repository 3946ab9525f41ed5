"""Small changes of the sources, drawn by chance with the operators of cosmic-ray.

In: the folder of the sources, rooms, a seed. Out: ``Mutant`` records. A place is a node of the syntax tree that can be
changed; every place is equally likely, and so is each change of a place. Left out by rule, as no answer can depend on
it: annotations, what only a type checker reads, and decorators that compile or remember (their loss costs time, which
the bars of speed hold). Not here: running tests (``judge``).
"""

from __future__ import annotations

import ast
import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

__all__ = ["Mutant", "draw"]

SPEED_ONLY = {"njit", "jit", "vectorize", "kernel", "cache", "lru_cache"}

Position = tuple[int, int]


@dataclass(frozen=True)
class Mutant:
    """One file with one change.

    Parameters
    ----------
    path : str
        Below the folder of the sources.
    first, last : int
        Lines that differ, in the file as it was.
    change : str
        What was done, for people.
    text : str
        The whole file, changed.
    """

    path: str
    first: int
    last: int
    change: str
    text: str


def draw(source: Path, rooms: tuple[str, ...], count: int, seed: int) -> list[Mutant]:
    """Draw ``count`` mutants from different places of the rooms."""
    files = [_File(path, source) for room in rooms for path in sorted((source / room).rglob("*.py"))]
    ends = list(accumulate(len(file.nodes) for file in files))
    rng = random.Random(seed)
    drawn: list[Mutant] = []
    seen: set[int] = set()
    while len(drawn) < count:
        number = rng.randrange(ends[-1])
        if number in seen:
            continue
        seen.add(number)
        which = bisect_right(ends, number)
        changes = files[which].changes(len(files[which].nodes) - (ends[which] - number))
        if changes:
            mutant = files[which].mutant(*rng.choice(changes))
            drawn += [mutant] if _is_python(mutant.text) else []
    return drawn


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:  # ``if not name := value``; any test would notice
        return False
    return True


class _File:
    def __init__(self, path: Path, source: Path) -> None:
        from cosmic_ray.ast import ast_nodes, get_ast

        self.path = path.relative_to(source).as_posix()
        self.text = path.read_text(encoding="utf-8")
        self.nodes: list[Any] = list(ast_nodes(get_ast(self.text)))
        self._left_out = list(_without_answer(ast.parse(self.text)))

    def changes(self, index: int) -> list[tuple[int, str, int]]:
        """(node, operator, which of its changes there) of a node; none where the node is left out."""
        return [
            (index, name, which)
            for name, operator in _operators().items()
            for which, (begin, end) in enumerate(operator.mutation_positions(self.nodes[index]))
            if not any(first <= begin and end <= last for first, last in self._left_out)
        ]

    def mutant(self, index: int, name: str, which: int) -> Mutant:
        """The file after this change."""
        from cosmic_ray.mutating import mutate_code

        operator = _operators()[name]
        before = sum(1 for node in self.nodes[:index] for _ in operator.mutation_positions(node))
        text = mutate_code(self.text, operator, before + which)
        assert text is not None
        begin, end = list(operator.mutation_positions(self.nodes[index]))[which]
        new = text.splitlines()[begin[0] - 1].strip() if len(text.splitlines()) >= begin[0] else ""
        return Mutant(self.path, begin[0], end[0], f"{name.removeprefix('core/')}: {new[:80]}", text)


_OPERATORS: dict[str, Any] = {}


def _operators() -> dict[str, Any]:
    if not _OPERATORS:
        from cosmic_ray import plugins

        classes = {name: plugins.get_operator(name) for name in sorted(plugins.operator_names())}
        # those with arguments replace variables that somebody names
        _OPERATORS.update({name: one() for name, one in classes.items() if not one.arguments()})
    return _OPERATORS


def _without_answer(tree: ast.Module) -> Iterator[tuple[Position, Position]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            yield _range(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.returns:
                yield _range(node.returns)
            if any(_last_name(one) == "overload" for one in node.decorator_list):
                yield _range(node)
        elif isinstance(node, ast.If) and _last_name(node.test) == "TYPE_CHECKING":
            yield _range(node)
        elif isinstance(node, ast.Call) and _last_name(node.func) == "cast":
            yield _range(node.args[0])
        for decorator in getattr(node, "decorator_list", []):
            if _last_name(decorator) in SPEED_ONLY:
                (line, column), end = _range(decorator)
                yield (line, column - 1), (end[0] + 1, 0)  # with its sign and the end of its line


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _range(node: Any) -> tuple[Position, Position]:
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
