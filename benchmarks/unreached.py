"""What stands in a package for nothing: lines that two rooms share, and definitions that nothing leads to.

What is reached is found by name (vulture): a function, class, method, field or import is reached if the package, or
Python that the docs show, mentions its name anywhere. Lists of exports are no mention, tests and benchmarks are none;
what the reference pages list is public, with all its members.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import windtunnel
from windtunnel import graph, registry

ROOT = Path(windtunnel.__file__).resolve().parents[2]
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
# what registers something, or makes it a fixture or a test, is called by others
CALLED_BY_OTHERS = [f"@registry.{kind}" for kind in registry.KINDS] + ["@app.callback", "@pytest.fixture"]
# names that somebody else reads or calls, by who
ALLOWED = {
    "python": "__*__",
    "typer": "_suite list_commands",
    "warnings": "showwarning",
    "sqlite3": "text_factory",
    "gymnasium": "action_space observation_space",
    "highspy": "HandleKeyboardInterrupt num_col_ num_row_ col_*_ row_*_ format_ start_ index_ value_",
    "ortools": "max_time_in_seconds relative_gap_limit",
    "torch": "_DEFAULT_FIRST_BUCKET_BYTES _get_raw fake_device _should_skip_dynamo",
    "scripts, of torch's streams": "cuda_stream device_index stream_id wait_stream record_event",
}


@dataclass(frozen=True, order=True)
class Run:
    """Lines that stand in two files."""

    path: str
    first: int
    last: int
    other_path: str
    other_first: int
    other_last: int

    def __str__(self) -> str:
        return f"{self.path}:{self.first}-{self.last} ~ {self.other_path}:{self.other_first}-{self.other_last}"


@dataclass(frozen=True, order=True)
class Unreached:
    """A definition that nothing mentions."""

    path: str
    first: int
    num_lines: int
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.path}:{self.first} {self.kind} {self.name}, {self.num_lines} lines"


def shared_runs(source: Path, least: int) -> list[Run]:
    """Runs of at least so many equal lines in files of different rooms, each as long as it can be.

    White space is folded; blank lines, comments, docstrings, imports and lines without a word do not count.
    """
    lines = {path: list(_code_lines(path)) for path in sorted(source.rglob("*.py"))}
    windows: dict[tuple[str, ...], list[tuple[Path, int]]] = defaultdict(list)
    for path, numbered in lines.items():
        for at in range(len(numbered) - least + 1):
            windows[tuple(text for _, text in numbered[at : at + least])].append((path, at))
    begins: dict[tuple[Path, Path, int], list[int]] = defaultdict(list)
    for places in windows.values():
        for number, (path, at) in enumerate(places):
            for other, other_at in places[number + 1 :]:
                if _room(path, source) != _room(other, source):
                    begins[path, other, other_at - at].append(at)
    runs = []
    for (path, other, shift), found in begins.items():
        for first, last in _stretches(sorted(found)):
            own, others = lines[path], lines[other]
            end = last + least - 1
            names = (one.relative_to(source).as_posix() for one in (path, other))
            mine, theirs = (own[first][0], own[end][0]), (others[first + shift][0], others[end + shift][0])
            runs.append(Run(next(names), *mine, next(names), *theirs))
    return sorted(runs)


def _room(path: Path, source: Path) -> str:
    return path.relative_to(source).parts[0]


def _code_lines(path: Path) -> Iterator[tuple[int, str]]:
    text = path.read_text(encoding="utf-8")
    left_out = set[int]()
    for node in ast.walk(ast.parse(text)):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            left_out.update(range(node.lineno, node.end_lineno + 1))
    for number, line in enumerate(text.splitlines(), 1):
        folded = " ".join(line.partition("  #")[0].split())
        if number not in left_out and re.search(r"\w", folded) and not folded.startswith("#"):
            yield number, folded


def _stretches(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of consecutive numbers."""
    first = 0
    for at in range(1, len(numbers) + 1):
        if at == len(numbers) or numbers[at] != numbers[at - 1] + 1:
            yield numbers[first], numbers[at - 1]
            first = at


def unreached(source: Path) -> list[Unreached]:
    """Definitions below a package that nothing mentions, and code behind a return."""
    from vulture import Vulture

    finder = Vulture(ignore_names=" ".join(ALLOWED.values()).split(), ignore_decorators=CALLED_BY_OTHERS)
    for path in sorted(source.rglob("*.py")):
        finder.scan(_without_exports(path.read_text(encoding="utf-8")), filename=path)
    for name, text in _shown():
        finder.scan(text, filename=Path(name))
    finder.used_names |= public_names()
    return sorted(
        Unreached(one.filename.relative_to(source).as_posix(), one.first_lineno, one.size, one.typ, one.name)
        for one in finder.get_unused_code(min_confidence=60)
        if one.filename.is_relative_to(source) and one.filename.name != "testing.py"
    )


def _without_exports(text: str) -> str:
    """The same code, whose list of exports is empty lines."""
    lines = text.splitlines()
    for node in ast.parse(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else ()
        if any(isinstance(one, ast.Name) and one.id == "__all__" for one in targets):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(lines) + "\n"


def _shown() -> Iterator[tuple[str, str]]:
    """Python that the docs and the examples show."""
    for page in [*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")]:
        for number, text in enumerate(FENCE.findall(page.read_text(encoding="utf-8"))):
            yield f"{page}.{number}.py", text
    for path in ROOT.glob("examples/*.py"):
        yield str(path), path.read_text(encoding="utf-8")


def public_names() -> set[str]:
    """What the reference pages list, with the members of its classes."""
    names = set(windtunnel.__all__) | set(graph.__all__)
    for one in [getattr(room, name) for room in (windtunnel, graph) for name in room.__all__]:
        if inspect.isclass(one):
            names |= {name for name in dir(one) if not name.startswith("_")} | set(getattr(one, "__annotations__", ()))
    return names
