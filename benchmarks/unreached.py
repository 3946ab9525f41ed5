"""What stands in a package for nothing: lines that two rooms share, and definitions that nothing leads to.

What is reached is found by name. Public is what the reference pages list, with the members of its classes and of what
its functions give, and what other pages name. From there, from what registers itself, and from what a module does when
it is imported, a function, class or method is reached if code that is reached mentions its name; so two that only
mention each other are not. Lists of exports are no mention, tests and benchmarks are none. Fields, constants and code
behind a return are reached if anything mentions them (vulture).
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import windtunnel
from windtunnel import graph, registry
from windtunnel.systems.layers import nn

ROOT = Path(windtunnel.__file__).resolve().parents[2]
SPAN = re.compile(r"`windtunnel((?:\.[a-z_]+)+)\(?")
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
# names that somebody else reads or calls, by who
ALLOWED = {
    "registry": " ".join(f"@registry.{kind}" for kind in registry.KINDS),
    "measure, in processes that it starts": "main",
    "python": "__*__ @*.register",
    "typer": "_suite list_commands resolve_command @*.callback",
    "zipfile": "compress_type",
    "click": "format_commands format_help",
    "warnings": "showwarning",
    "sqlite3": "text_factory",
    "policies of users": "work_left_ns attained_gpu_s start_ns",
    "gymnasium": "action_space observation_space",
    "highspy": "HandleKeyboardInterrupt num_col_ num_row_ col_*_ row_*_ format_ start_ index_ value_",
    "ortools": "max_time_in_seconds relative_gap_limit",
    "ctypes": "argtypes",
    "llvmlite": "loop_vectorization slp_vectorization loop_interleaving loop_unrolling",
    "torch": "_DEFAULT_FIRST_BUCKET_BYTES _get_raw fake_device _should_skip_dynamo @*.register_fake "
    "_thread_id _torchdynamo_disable",
    "scripts, of torch's streams": "cuda_stream device_index stream_id wait_stream record_event "
    "is_capturing native_handle event_id",
    "fields that are read by a list of their names": "rmse_s within_* vendor year shared_bytes written_bytes "
    "memory_limit_bytes iqr_ns write_bytes_per_s read_bytes_per_s is_read_cold flops_ratio read_ratio written_ratio "
    "restarting preempted queueing_h fairness_p99 jain allocations transform_cycles inverse_cycles fill_cycles "
    "equivalent_operations eval_bytes epoch_ns num_written predicted_memory_by_category iterations_per_epoch",
    "keys of DLIO's files that are read so that files stay valid": "generate_data generation_buffer_size "
    "keep_files computation_threads shuffle_size file_access transfer_size dont_use_mmap data_loader_sampler "
    "madv_mergeable_id high_ram_trigger low_ram_exit await_time rank_sync log_file iostat_devices framework",
    "messages to workers": "time_work",
    "references that engines are compared with, and parts of published baselines": "interpret _advance "
    "merge_supernodes cells_ns",
    "codes that are counted through": "STREAM_BOUND EVENT_WAIT OVERLAP_DUPLEX RIGHT BEST DELAYED MAX_MIN COMING FIXED",
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
    """Definitions below a package to which nothing leads, and code behind a return."""
    from vulture import Vulture

    texts = {path: _without_exports(path.read_text(encoding="utf-8")) for path in sorted(source.rglob("*.py"))}
    texts = {path: text for path, text in texts.items() if path.name != "testing.py"}
    shown = dict(_shown()) | {str(path): path.read_text(encoding="utf-8") for path in source.glob("testing.py")}
    public = public_names()
    lost = set(_unmentioned(source, texts, public.union(*(_mentioned(ast.parse(text)) for text in shown.values()))))
    allowed = " ".join(ALLOWED.values()).split()
    finder = Vulture(ignore_names=allowed, ignore_decorators=[one for one in allowed if one.startswith("@")])
    for path, text in [*texts.items(), *shown.items()]:
        finder.scan(text, filename=Path(path))
    finder.used_names |= public
    places = {(one.path, one.first) for one in lost}
    for one in finder.get_unused_code(min_confidence=60):
        path = one.filename.relative_to(source).as_posix() if one.filename.is_relative_to(source) else ""
        if path and (path, one.first_lineno) not in places and one.filename.name != "testing.py":
            lost.add(Unreached(path, one.first_lineno, one.size, one.typ, one.name))
    return sorted(lost)


@dataclass(eq=False)
class _Definition:
    """A function, class or method, what it mentions, and the class that it stands in."""

    place: Unreached
    mentions: set[str]
    holder: _Definition | None = None
    is_root: bool = False


def _unmentioned(source: Path, texts: dict[Path, str], public: set[str]) -> Iterator[Unreached]:
    """Functions, classes and methods that nothing reached mentions."""
    definitions: list[_Definition] = []
    names = set(public)
    for path, text in texts.items():
        tree = ast.parse(text)
        imported = [alias for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
        renamed = {alias.asname: alias.name for alias in imported if alias.asname}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                for one in _defined(node, path.relative_to(source).as_posix(), None):
                    one.mentions |= {renamed[name] for name in one.mentions & renamed.keys()}
                    definitions.append(one)
            elif not isinstance(node, ast.Import | ast.ImportFrom):
                mentioned = _mentioned(node)
                names |= mentioned | {renamed[name] for name in mentioned & renamed.keys()}
    waiting, moved = definitions, True
    while moved:
        reached = [one for one in waiting if _is_reached(one, names, waiting)]
        waiting = [one for one in waiting if one not in reached]
        names = names.union(*(one.mentions for one in reached))
        moved = bool(reached)
    return (one.place for one in waiting if one.holder not in waiting)


def _is_reached(one: _Definition, names: set[str], waiting: list[_Definition]) -> bool:
    if one.holder is not None and one.holder in waiting:
        return False
    return one.is_root or one.place.name in names


def _defined(node: ast.AST, path: str, holder: _Definition | None) -> Iterator[_Definition]:
    methods = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    own = methods if isinstance(node, ast.ClassDef) else []
    mentions = set().union(*(_mentioned(each) for each in ast.iter_child_nodes(node) if each not in own))
    calls = {"@" + ast.unparse(each).partition("(")[0] for each in node.decorator_list}
    allowed = " ".join(ALLOWED.values()).split()
    is_root = any(fnmatch(name, known) for name in (node.name, *calls) for known in allowed)
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    kind = "class" if isinstance(node, ast.ClassDef) else "function" if holder is None else "method"
    place = Unreached(path, first, node.end_lineno - first + 1, kind, node.name)
    found = _Definition(place, mentions, holder, is_root)
    yield found
    for each in own:
        yield from _defined(each, path, found)


def _mentioned(node: ast.AST) -> set[str]:
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return names | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


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
    for path in ROOT.glob("examples/**/*.py"):
        yield str(path), path.read_text(encoding="utf-8")


def public_names() -> set[str]:
    """What the reference pages list or pages import, with the members of classes, and what pages name by its path."""
    rooms = (windtunnel, graph, nn)
    names = {name for room in rooms for name in room.__all__}
    listed = [getattr(room, name) for room in rooms for name in room.__all__]
    for one in [*listed, *_imported_by_pages()]:
        given = re.findall(r"\w+", str(getattr(one, "__annotations__", {}).get("return", "")))
        for each in (one, *(getattr(inspect.getmodule(one), name, None) for name in given)):
            names |= _members(each)
    for page in [*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")]:
        for path in SPAN.findall(page.read_text(encoding="utf-8")):
            names |= set(path.split("."))
    return names


def _imported_by_pages() -> Iterator[Any]:
    for _, text in _shown():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("windtunnel"):
                yield from (getattr(importlib.import_module(node.module), one.name) for one in node.names)


def _members(one: Any) -> set[str]:
    """A class's public methods and fields."""
    if not inspect.isclass(one):
        return set()
    return {name for name in dir(one) if not name.startswith("_")} | set(inspect.get_annotations(one))
