"""Bar house: the rules of the architecture, counted.

Import contracts are kept; nobody but measure/ launches processes or takes times (what is allowed is listed with its
reason); what-ifs reach for no file, clock or process; a column or a note of the graph that nobody declared is refused;
one file of each kind of plug-in, dropped into a copy of the package, is found by a fresh process; lines per room.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests import house_scan

from benchmarks.bar import ROOT, report
from windtunnel.errors import WindtunnelError
from windtunnel.graph import GraphBuilder

MOST_LINES = {"cost": 8_000, "flights": 3_500, "all": 71_422}
ROOMS = {
    "whatif": "whatifs",
    "flight": "flights",
    "cost_model": "cost",
    "source": "sources",
    "workload": "workloads",
    "strategy": "training",
    "policy": "cluster",
    "layer": "nn",
}
DROPPED = '''"""Dropped in."""

from windtunnel import registry


@registry.{kind}("dropped-in", source="a test")
def dropped_in():
    """It is found."""
'''
FOUND = """
import json
from windtunnel import registry
print(json.dumps({kind: "dropped-in" in registry.all(kind) for kind in registry.KINDS}))
"""


def contracts() -> tuple[int, int]:
    """Import contracts that are kept, and that are broken."""
    command = [shutil.which("lint-imports") or str(Path(sys.executable).with_name("lint-imports"))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    kept, broken = re.search(r"(\d+) kept, (\d+) broken", done.stdout).groups()
    return int(kept), int(broken)


def undeclared() -> list[str]:
    """What a graph takes although no schema declares it."""
    builder = GraphBuilder()
    builder.task("work", duration_ns=1)
    graph = builder.build()
    taken = []
    for what, change in (
        ("task column", lambda: graph.with_columns(nobody_declared_this=[1])),
        ("meta key", lambda: graph.with_meta(nobody_declared_this=1)),
    ):
        try:
            change()
            taken.append(what)
        except (WindtunnelError, TypeError):
            pass
    return taken


def dropped_in() -> dict[str, bool]:
    """Which kinds find a plug-in by its file alone."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "windtunnel"
        shutil.copytree(house_scan.SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for kind, room in ROOMS.items():
            (copy / room / "dropped_in.py").write_text(DROPPED.format(kind=kind))
        environment = {**os.environ, "PYTHONPATH": folder}
        done = subprocess.run(
            [sys.executable, "-c", FOUND], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        return json.loads(done.stdout) if done.returncode == 0 else {"failed": False, done.stderr[-500:]: False}


def main() -> bool:
    """Print the bar."""
    kept, broken = contracts()
    lines = house_scan.lines()
    too_long = {room: lines[room] for room, most in MOST_LINES.items() if lines[room] > most}
    found = dropped_in()
    problems = {
        "contracts broken": broken,
        "launchers": house_scan.launchers(),
        "timing": house_scan.timing(),
        "private imports": house_scan.private_imports(),
        "what-ifs reach out": house_scan.reaching_out(),
        "undeclared": undeclared(),
        "plug-ins not found": [kind for kind, is_found in found.items() if not is_found],
        "too many lines": too_long,
    }
    open_problems = {name: what for name, what in problems.items() if what}
    return report(
        "house",
        len(open_problems),
        "0 rules broken; cost <= 8,000, flights <= 3,500 lines, src below 71,423",
        not open_problems,
        broken=open_problems,
        contracts=kept,
        allowed={**house_scan.ALLOWED_LAUNCHERS, **house_scan.ALLOWED_TIMING},
        lines=dict(sorted(lines.items(), key=lambda item: -item[1])),
    )


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
