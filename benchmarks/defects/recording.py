"""Which lines of the sources each fast test runs (a process of its own; see ``covering``).

In: a JSON file with test files and the folder of the sources. Out: a JSON file with, per test, its seconds, whether it
passed, and the lines of every file that it ran, in processes that it started too. Not here: what is made of it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

STARTER = "import coverage; coverage.process_startup()\n"
CHILD = """[run]
data_file = {data}
context = ${{PYTEST_CURRENT_TEST}}
source = {source}
parallel = true
"""


class Recorder:
    """A pytest plug-in: one context of coverage per test, its time and its outcome."""

    def __init__(self, tracer: coverage.Coverage) -> None:
        self._tracer = tracer
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._tracer.switch_context(item.nodeid)
        begin = time.process_time()
        wall = time.monotonic()
        try:
            return (yield)
        finally:
            cpu = time.process_time() - begin
            self.seconds[item.nodeid] = max(cpu, min(time.monotonic() - wall, 3 * cpu + 1))
            self._tracer.switch_context("")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if not report.passed:  # skipped ones see nothing either
            self.failed.add(report.nodeid)


def record(job: dict[str, Any]) -> dict[str, Any]:
    """Run the test files of a job and say what ran where."""
    with tempfile.TemporaryDirectory() as folder:
        tracer = _tracer(Path(folder), job["source"])
        recorder = Recorder(tracer)
        tracer.start()
        code = pytest.main(
            ["-q", "--tb=line", "-m", "not slow", "-p", "no:cacheprovider", *job["tests"]], plugins=[recorder]
        )
        tracer.stop()
        if code not in (0, 1, 5):  # all passed, some failed, none found
            raise SystemExit(f"the tests cannot be run: pytest ended with {code!r}")
        tracer.save()
        lines = _lines(Path(folder), Path(job["source"]))
    tests = {
        name: {"seconds": round(seconds, 3), "lines": lines.get(name, {})}
        for name, seconds in recorder.seconds.items()
        if name not in recorder.failed
    }
    return {"tests": tests, "unused": sorted(recorder.failed)}


def _tracer(folder: Path, source: str) -> coverage.Coverage:
    (folder / "sitecustomize.py").write_text(STARTER)
    config = folder / "child.ini"
    config.write_text(CHILD.format(data=folder / "child", source=source))
    os.environ["COVERAGE_PROCESS_START"] = str(config)
    os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return coverage.Coverage(data_file=folder / "own", source=[source], config_file=False)


def _lines(folder: Path, source: Path) -> dict[str, dict[str, list[int]]]:
    found: dict[str, dict[str, set[int]]] = {}
    for path in folder.iterdir():
        if not path.name.startswith(("own", "child.")) or path.suffix == ".ini":
            continue
        data = coverage.CoverageData(basename=str(path))
        data.read()
        for measured in data.measured_files():
            name = Path(measured).relative_to(source).as_posix()
            for line, contexts in data.contexts_by_lineno(measured).items():
                for context in contexts:
                    test = context.removesuffix(" (call)").removesuffix(" (setup)").removesuffix(" (teardown)")
                    found.setdefault(test, {}).setdefault(name, set()).add(line)
    return {test: {name: sorted(lines) for name, lines in files.items()} for test, files in found.items()}


if __name__ == "__main__":
    answer = record(json.loads(Path(sys.argv[1]).read_text()))
    target = Path(sys.argv[2])
    scratch = target.with_suffix(".tmp")
    scratch.write_text(json.dumps(answer))
    scratch.replace(target)
