"""Runs chosen tests of a tree, each time in a fresh process that has the big libraries already (see ``judge``).

In: one JSON object per line of stdin, with files, tests and limits. Out: one per line of stdout: exit code, signal,
whether time was over, which tests failed. The process forks before anything of the tree is imported.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

LIBRARIES = ("numba", "pyarrow.parquet", "msgspec", "typer", "rich.console", "torch", "highspy", "scipy.stats")
MEMORY_BYTES = 8 << 30


class Chosen:
    """A pytest plug-in: only these tests, in this order; notes which failed."""

    def __init__(self, tests: list[str]) -> None:
        self._place = {name: index for index, name in enumerate(tests)}
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((one for one in items if one.nodeid in self._place), key=lambda one: self._place[one.nodeid])

    def pytest_collectreport(self, report: Any) -> None:
        self.failed += [report.nodeid] if report.failed else []

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.failed += [report.nodeid] if report.failed else []


def serve() -> None:
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if not child:
            _run(job)
        print(json.dumps(_wait(child, job)), flush=True)


def _run(job: dict[str, Any]) -> None:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGQUIT):  # ignored by what a shell runs in the background
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with Path(job["log"]).open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ["NUMBA_CACHE_DIR"] = job["numba"]
    importlib.import_module("numba.core.config").reload_config()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (job["cpu_s"], job["cpu_s"] + 5))
    os.chdir(job["tree"])
    chosen = Chosen(job["tests"])
    code = pytest.main([*job["options"], *job["files"]], plugins=[chosen])
    Path(job["log"] + ".json").write_text(json.dumps(chosen.failed))
    sys.stdout.flush()
    os._exit(int(code))


def _wait(child: int, job: dict[str, Any]) -> dict[str, Any]:
    begin = time.monotonic()
    done, status = os.waitpid(child, os.WNOHANG)
    while not done and time.monotonic() - begin < job["wall_s"]:
        time.sleep(0.05)
        done, status = os.waitpid(child, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not done:
        os.waitpid(child, 0)
        return {"code": None, "is_late": True, "failed": [], "seconds": time.monotonic() - begin}
    noted = Path(job["log"] + ".json")
    failed = json.loads(noted.read_text()) if noted.exists() else []
    by_signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return {
        "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
        "is_late": by_signal in (signal.SIGXCPU, signal.SIGKILL),
        "failed": failed,
        "seconds": time.monotonic() - begin,
    }


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file is no place to import from
    serve()
