"""The workloads that bars about memory run on, each in a process of its own.

In: the name of a bar's module, whose ``row(name)`` measures one workload. Out: rows; a workload that fails or takes too
long stays in the list as what it is.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks import bar
from windtunnel import registry

Row = dict[str, object]
TIMEOUT_S = 240


def parameters(name: str) -> dict[str, str]:
    """The tiny size, where a workload has sizes."""
    return {"size": "tiny"} if "size" in registry.get("workload", name).parameters else {}


def build(name: str) -> object:
    """The workload at its tiny size."""
    return registry.get("workload", name).function(**parameters(name))


def names() -> list[str]:
    """All that are registered, or those that ``--only a,b`` names."""
    chosen = sys.argv[sys.argv.index("--only") + 1].split(",") if "--only" in sys.argv else []
    return chosen or sorted(registry.all("workload"))


def rows(module: str, row: Callable[[str], Row]) -> list[Row]:
    """One row per workload; the child process comes here too, with its one workload and the file for its row."""
    if "--row" in sys.argv:
        name, path = sys.argv[sys.argv.index("--row") + 1 :][:2]
        Path(path).write_text(json.dumps(row(name)))
        sys.exit()
    found = []
    for name in names():
        found.append(_apart(module, name))
        if "--verbose" in sys.argv:
            print(bar.table([found[-1]]), file=sys.stderr, flush=True)
    return found


def _apart(module: str, name: str) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "row.json"
        command = [sys.executable, "-m", f"benchmarks.{module}", "--row", name, str(path)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                command, cwd=bar.ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment
            )
        except subprocess.TimeoutExpired:
            return {"workload": name, "failed": f"no answer within {TIMEOUT_S} s"}
        if not path.exists():
            last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
            return {"workload": name, "failed": last[0][:300]}
        return {"workload": name, **json.loads(path.read_text())}
