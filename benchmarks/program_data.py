"""The measured tensor programs that the bars of learned prices read.

The set that the package ships, or the file named by ``WINDTUNNEL_PROGRAMS``. Where there is none, bars of errors are
skipped with that reason; bars of speed take programs whose times are a formula, and say so.
"""

import os
from pathlib import Path

from benchmarks.bar import ROOT
from windtunnel.cost.learned.program_set import ProgramSet
from windtunnel.errors import WindtunnelError

MISSING = "no set of measured programs is shipped yet: windtunnel cost sample, then WINDTUNNEL_PROGRAMS=FILE"
FOLDER = ROOT / "src" / "windtunnel" / "cost"


def shipped_set() -> ProgramSet | None:
    """The largest set of the package, or the one that the environment names."""
    given = os.environ.get("WINDTUNNEL_PROGRAMS")
    paths = [Path(given)] if given else sorted(FOLDER.rglob("*.npz"), key=lambda path: -path.stat().st_size)
    for path in paths:
        try:
            return ProgramSet.load(path)
        except WindtunnelError:
            if given:
                raise
    return None


def imagined_set(num_tasks: int, per_task: int) -> ProgramSet:
    """Programs of many trees whose times are a formula: for speed alone."""
    from tests.cost.learned.small_set import small_set

    return small_set(num_tasks, per_task)
