"""Which lines must run so that a test can see a change: of the sources, from their syntax.

In: the folder of the sources, a file and the lines that changed. Out: lines of any file, of which a test has to run
one. A statement of a function is seen by who runs it. A compiled function is not traced, and what is outside of
functions runs once, at import: both are seen by who runs a line that names them, through other compiled functions too.
Not here: which test ran which line (``covering``).
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

__all__ = ["Sources"]

COMPILERS = {"njit", "jit", "vectorize", "guvectorize", "kernel"}  # the last is how a file of ours calls njit
_NAMES_MOST = 40  # further names of names see too much

Lines = dict[str, set[int]]
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Use:
    """A name in a file, where it stands and in what."""

    path: str
    node: ast.AST
    owner: _Owner


@dataclass(eq=False)
class _Owner:
    """What a line belongs to: a function, a class or a statement of the file."""

    names: set[str]
    node: ast.AST
    is_traced: bool  # a plain function: its lines are seen when they run
    inner: list[ast.stmt] = field(default_factory=list)


@dataclass(frozen=True)
class Sources:
    """The syntax of every file."""

    folder: Path

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        """By path below the folder."""
        paths = sorted(self.folder.rglob("*.py"))
        return {path.relative_to(self.folder).as_posix(): ast.parse(path.read_text("utf-8")) for path in paths}

    @cached_property
    def _uses(self) -> dict[str, list[Use]]:
        found: dict[str, list[Use]] = defaultdict(list)
        for path, tree in self.trees.items():
            known_as = self._known_as(path)
            for owner, node in _owned(tree):
                name = getattr(node, "id", None) or getattr(node, "attr", None)
                if name and not isinstance(getattr(node, "ctx", None), ast.Store):
                    found[name].append(Use(path, node, owner))
                    found[known_as.get(name, name)].append(Use(path, node, owner))
        return found

    def _known_as(self, path: str) -> dict[str, str]:
        imports = [node for node in ast.walk(self.trees[path]) if isinstance(node, ast.ImportFrom)]
        return {one.asname: one.name for node in imports for one in node.names if one.asname}

    def seen_at(self, path: str, first: int, last: int) -> Lines:
        """Lines that show a change of these lines, when a test runs one of them."""
        owners = [owner for owner in _owners(self.trees[path]) if _overlaps(owner.node, first, last)]
        owner = owners[-1] if owners else None
        lines: Lines = defaultdict(set)
        if owner is None:
            return lines
        if owner.is_traced and not _is_header(owner.node, first):
            lines[path] |= _statement_lines(owner.node, first, last)
            return lines
        if owner.is_traced or isinstance(owner.node, ast.ClassDef):
            lines[path] |= _body_lines(owner.node)
        self._follow(owner.names, lines)
        return lines

    def _follow(self, names: set[str], lines: Lines) -> None:
        todo, done = list(names), set(names)
        while todo:
            for use in self._uses.get(todo.pop(), []):
                if use.owner.is_traced:
                    line = use.node.lineno  # type: ignore[attr-defined]
                    lines[use.path] |= _statement_lines(use.owner.node, line, line)
                elif len(done) < _NAMES_MOST:
                    todo += use.owner.names - done
                    done |= use.owner.names

    def is_frozen(self, path: str, first: int, last: int) -> bool:
        """Whether compiled code of other files may hold what these lines say: constants and compiled functions."""
        owners = [owner for owner in _owners(self.trees[path]) if _overlaps(owner.node, first, last)]
        return not owners or not owners[-1].is_traced or _is_header(owners[-1].node, first)

    @cached_property
    def _imports(self) -> dict[str, set[str]]:
        return {path: set(_imported(tree, self.trees)) for path, tree in self.trees.items()}

    def importers(self, path: str) -> set[str]:
        """The file and all that import it, through others too."""
        found, todo = {path}, [path]
        while todo:
            wanted = todo.pop()
            new = {other for other, imported in self._imports.items() if wanted in imported} - found
            found |= new
            todo += new
        return found

    def has_compiled(self, path: str) -> bool:
        """Whether a file has functions that numba compiles."""
        return any(isinstance(node, ast.FunctionDef) and _is_compiled(node) for node in ast.walk(self.trees[path]))


def _imported(tree: ast.Module, known: dict[str, ast.Module]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("windtunnel") and not node.level:
            base = "/".join(str(node.module).split(".")[1:])
            places = [base, *(f"{base}/{one.name}" if base else one.name for one in node.names)]
            yield from (f"{place}.py" for place in places if f"{place}.py" in known)
            yield from (f"{place}/__init__.py" for place in places if f"{place}/__init__.py" in known)


def _owners(tree: ast.AST) -> Iterator[_Owner]:
    """Outer ones first."""
    for owner, _ in _owned(tree, owners_only=True):
        yield owner


def _owned(tree: ast.AST, *, owners_only: bool = False) -> Iterator[tuple[_Owner, ast.AST]]:
    for statement in getattr(tree, "body", []):
        yield from _below(statement, None, owners_only)


def _below(node: ast.AST, owner: _Owner | None, owners_only: bool) -> Iterator[tuple[_Owner, ast.AST]]:
    if _begins_owner(node, owner):
        owner = _owner(node, owner)
        if owners_only:
            yield owner, node
    assert owner is not None
    if not owners_only:
        yield owner, node
    for child in ast.iter_child_nodes(node):
        yield from _below(child, owner, owners_only)


def _begins_owner(node: ast.AST, owner: _Owner | None) -> bool:
    if owner is None or isinstance(node, Function):
        return True
    in_class = isinstance(owner.node, ast.ClassDef)
    return isinstance(node, ast.ClassDef) or (in_class and isinstance(node, ast.stmt))


def _owner(node: ast.AST, outer: _Owner | None) -> _Owner:
    if isinstance(node, Function):
        compiled = _is_compiled(node) or (
            outer is not None and isinstance(outer.node, Function) and not outer.is_traced
        )
        return _Owner({node.name}, node, is_traced=not compiled)
    names = {node.name} if isinstance(node, ast.ClassDef) else set(_bound(node))
    if outer is not None and isinstance(outer.node, ast.ClassDef):
        return _Owner(outer.names | names, node, is_traced=False)
    return _Owner(names, node, is_traced=outer is not None and outer.is_traced)


def _bound(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            yield one.id


def _is_compiled(node: Function) -> bool:
    return any(_last_name(decorator) in COMPILERS for decorator in node.decorator_list)


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _first_line(node: ast.AST) -> int:
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])  # type: ignore[attr-defined]


def _overlaps(node: ast.AST, first: int, last: int) -> bool:
    return _first_line(node) <= last and first <= int(node.end_lineno or 0)  # type: ignore[attr-defined]


def _is_header(node: ast.AST, line: int) -> bool:
    return line < node.body[0].lineno  # type: ignore[attr-defined]


def _statement_lines(function: ast.AST, first: int, last: int) -> set[int]:
    """Lines of the innermost statements that hold these lines; of one with a body only what stands before it."""
    statements = [node for node in ast.walk(function) if isinstance(node, ast.stmt) and _overlaps(node, first, last)]
    lines: set[int] = set()
    for node in statements:
        body = getattr(node, "body", None)
        end = body[0].lineno - 1 if body else int(node.end_lineno or 0)
        if node is not function and node.lineno <= last and first <= max(end, node.lineno):
            lines |= set(range(node.lineno, max(end, node.lineno) + 1))
    return lines or set(range(first, last + 1))


def _body_lines(node: ast.AST) -> set[int]:
    lines = set()
    for one in ast.walk(node):
        if isinstance(one, Function):
            lines |= set(range(one.body[0].lineno, int(one.end_lineno or 0) + 1))
    return lines
