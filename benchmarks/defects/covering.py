"""Which fast tests see a change, the nearest and quickest first.

In: what each test ran (``recording``), kept in a cache folder and made again for test files that changed, or that ran
a file that changed. Out: the tests for a change. Not here: which lines show it (``running``).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Choice", "Covering", "stale_files", "store"]

LEAST_S = 0.02
_FEW_FILES, _MORE_FILES = 2, 6
_OWN_TEST, _OTHER_ROOM = 0.1, 4.0  # a test of another room has to be so many times quicker to come first


@dataclass(frozen=True)
class Choice:
    """Tests to run in this order, and how many of all run a line of the change."""

    tests: tuple[str, ...]
    num_covering: int
    seconds: tuple[float, ...]

    def parts(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """The tests of a few files, then more, then all: most changes are seen at once, and files take long to load."""
        begin = 0
        for most in (_FEW_FILES, _MORE_FILES, len(self.tests)):
            files: set[str] = set()
            end = begin
            while end < len(self.tests) and len(files | {self.tests[end].split("::")[0]}) <= most:
                files.add(self.tests[end].split("::")[0])
                end += 1
            if end > begin:
                yield self.tests[begin:end], sum(self.seconds[begin:end])
            begin = end


def digest(path: Path) -> str:
    """Of what a file holds; empty for one that is not there."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else ""


def stale_files(files: Iterable[str], tree: Path, kept: Path) -> list[str]:
    """Test files whose record is missing or no longer true."""
    digests: dict[str, str] = {}
    return [file for file in files if not _is_fresh(_record(kept, file), file, tree, digests)]


def _is_fresh(path: Path, file: str, tree: Path, digests: dict[str, str]) -> bool:
    if not path.exists():
        return False
    record = json.loads(path.read_text())
    for name in record["sources"]:
        digests.setdefault(name, digest(tree / "src/windtunnel" / name))
    same = all(digests[name] == value for name, value in record["sources"].items())
    return same and record["digest"] == digest(tree / file)


def _record(kept: Path, file: str) -> Path:
    return kept / (file.replace("/", "__") + ".json")


def store(files: Iterable[str], tests: dict[str, Any], tree: Path, kept: Path) -> None:
    """Keep what the tests of these files ran."""
    kept.mkdir(parents=True, exist_ok=True)
    for file in files:
        own = {name: test for name, test in tests.items() if name.split("::")[0] == file}
        sources = {name for test in own.values() for name in test["lines"]}
        record = {
            "digest": digest(tree / file),
            "sources": {name: digest(tree / "src/windtunnel" / name) for name in sorted(sources)},
            "tests": own,
        }
        scratch = _record(kept, file).with_suffix(".tmp")
        scratch.write_text(json.dumps(record))
        scratch.replace(_record(kept, file))


class Covering:
    """All tests with what they run."""

    def __init__(self, files: Iterable[str], kept: Path) -> None:
        self.seconds: dict[str, float] = {}
        self._tests_at: dict[tuple[str, int], list[str]] = defaultdict(list)
        self._tests_of: dict[str, list[str]] = defaultdict(list)
        self._num_lines: dict[tuple[str, str], int] = {}  # of a file that a test runs
        for file in files:
            for name, test in json.loads(_record(kept, file).read_text())["tests"].items():
                self.seconds[name] = max(test["seconds"], LEAST_S)
                for path, lines in test["lines"].items():
                    self._tests_of[path].append(name)
                    self._num_lines[path, name] = len(lines)
                    for line in lines:
                        self._tests_at[path, line].append(name)

    def choose(self, path: str, lines: dict[str, set[int]], budget_s: float) -> Choice:
        """Tests that run one of the lines, then others of the same test files, then others that run the file."""
        covering = {test for other, numbers in lines.items() for one in numbers for test in self._tests_at[other, one]}
        near = {test.split("::")[0] for test in covering}
        around = set(self._tests_of[path]) - covering
        beside = {test for test in around if test.split("::")[0] in near}
        first = self._first(covering, path, budget_s)
        then = self._first(beside, path, budget_s / 4) + self._first(around - beside, path, budget_s / 4)
        tests = (*first, *then)
        return Choice(tests, len(covering), tuple(self.seconds[test] for test in tests))

    def _first(self, tests: set[str], path: str, budget_s: float) -> tuple[str, ...]:
        """The nearest and quickest that run most of the file, those of many test files rather than many of one."""
        rank = {
            name: self.seconds[name] * _distance(name, path) / (1 + self._num_lines.get((path, name), 0))
            for name in tests
        }
        seen: Counter[str] = Counter()
        for name in sorted(tests, key=lambda one: (rank[one], one)):
            file = name.split("::")[0]
            seen[file] += 1
            rank[name] *= seen[file]
        chosen: list[str] = []
        spent_s = 0.0
        for name in sorted(tests, key=lambda one: (rank[one], one)):
            if not chosen or spent_s + self.seconds[name] <= budget_s:
                spent_s += self.seconds[name]
                chosen.append(name)
        return tuple(chosen)


def _distance(test: str, path: str) -> float:
    """Between a test and a file of the sources: of the file itself, of its room, of another one."""
    room, file = path.split("/")[0], test.split("::")[0]
    if path.rpartition("/")[2].strip("_") == file.rpartition("/")[2].removeprefix("test_"):
        return _OWN_TEST
    return 1.0 if file.startswith((f"tests/{room}/", f"src/windtunnel/{room}/")) else _OTHER_ROOM
