"""Bar house: the rules of the architecture, counted.

Import contracts are kept; nobody but measure/ launches processes or takes times (what is allowed is listed with its
reason); what-ifs reach for no file, clock or process; a column or a note of the graph that nobody declared is refused;
one file of each kind of plug-in, dropped into a copy of the package, is found by a fresh process; lines and files of
the core and of each subject, files with underscores, small helpers and comments stay within their limits.
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

MAX_CORE_LINES, MAX_CORE_FILES = 55_000, 260
MAX_SUBJECT_LINES = {"tensor_programs": 7_000}  # 5,000 of any other
MAX_SMALL_HELPERS = 0.05
MIN_COMMENTS = 3.0
PACKAGES = {
    "whatif": "whatifs",
    "flight": "flights",
    "cost_model": "cost",
    "source": "sources",
    "workload": "workloads",
    "strategy": "systems/uneven/strategies",
    "policy": "systems/cluster/policies",
    "layer": "systems/layers/nn",
}
"""Where a file with a plug-in of a kind is found; verbs and pages are named in the project file."""
DROPPED = '''"""Dropped in."""

from windtunnel import registry


@registry.{kind}("dropped-in", source="a test")
def dropped_in():
    """It is found."""
'''
FOUND = f"""
import json
KINDS = {list(PACKAGES)}
from windtunnel import registry
print(json.dumps({{kind: "dropped-in" in registry.all(kind) for kind in KINDS}}))
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
        for kind, package in PACKAGES.items():
            (copy / package / "dropped_in.py").write_text(DROPPED.format(kind=kind))
        environment = {**os.environ, "PYTHONPATH": folder}
        done = subprocess.run(
            [sys.executable, "-c", FOUND], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        return json.loads(done.stdout) if done.returncode == 0 else {"failed": False, done.stderr[-500:]: False}


def too_long() -> dict[str, str]:
    """The core and the subjects that are longer than they may be."""
    lines = house_scan.lines()
    problems = {}
    for part, (num_lines, num_files) in lines.items():
        most = MAX_CORE_LINES if part == "core" else MAX_SUBJECT_LINES.get(part, 5_000)
        if num_lines > most:
            problems[part] = f"{num_lines:,} lines of {most:,}"
        if part == "core" and num_files > MAX_CORE_FILES:
            problems["core files"] = f"{num_files} of {MAX_CORE_FILES}"
    return problems


def main() -> bool:
    """Print the bar."""
    kept, broken = contracts()
    found = dropped_in()
    num_small, num_functions = house_scan.small_helpers()
    small, comments = num_small / num_functions, house_scan.comments_per_100_lines()
    problems = {
        "contracts broken": broken,
        "launchers": house_scan.launchers(),
        "timing": house_scan.timing(),
        "private imports": house_scan.private_imports(),
        "what-ifs reach out": house_scan.reaching_out(),
        "undeclared": undeclared(),
        "plug-ins not found": [kind for kind, is_found in found.items() if not is_found],
        "too long": too_long(),
        "underscore files": len(house_scan.underscore_files()),
        "small helpers": f"{small:.1%}" if small > MAX_SMALL_HELPERS else "",
        "comments per 100 lines": f"{comments:.1f}" if comments < MIN_COMMENTS else "",
    }
    open_problems = {name: what for name, what in problems.items() if what}
    return report(
        "house",
        len(open_problems),
        "0 rules broken: contracts, core <= 55,000 lines in <= 260 files, subjects <= 5,000 (tensor_programs 7,000), "
        "no underscore files, helpers of <= 5 lines with one caller <= 5 % of functions, >= 3 comments per 100 lines",
        not open_problems,
        broken=open_problems,
        contracts=kept,
        allowed={**house_scan.ALLOWED_LAUNCHERS, **house_scan.ALLOWED_TIMING},
        lines=dict(sorted(house_scan.lines().items(), key=lambda item: -item[1][0])),
    )


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
