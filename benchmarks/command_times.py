"""How long one waits for the commands that are typed most, with empty caches and with full ones.

Ten commands on a small training script, each a fresh process: once with no compiled code of Python and of numba and no
measurements kept, then as often as ``--rounds`` says with what the first left behind. Those of the three slowest that
wait for something which cannot be quicker say for what.

    python -m benchmarks.command_times --verbose
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.bar import ROOT, report, table
from benchmarks.docs_files import TRAINING

COMMANDS = {
    "list": ("list", "whatifs"),
    "capture": ("capture", "--force", "train.py"),
    "explain": ("explain", "train.wt"),
    "replay": ("explain", "train.wt", "--table", "resources"),
    "whatif": ("whatif", "train.wt", "--all"),
    "verify": ("verify", "train.py", "--whatif", "fused-optimizer", "--graph", "train.wt"),
    "predict": ("predict", "train.wt", "--on", "h100"),
    "memory": ("memory", "train.py"),
    "report": ("explain", "train.wt", "--html", "page.html", "--force"),
    "place": ("place", "train.wt", "--on", "2xcpu"),
}
BOUND_BY = {
    "capture": "the script itself: torch is imported, and iterations run until their spread is known",
    "verify": "the flight: both arms run in turns until the interval is narrow, 4 s at least",
    "whatif": "operators that are run again for a price: 6 s for each family of changes that has none kept",
    "memory": "the script itself: torch is imported, and iterations run",
    "report": "operators that are run again for the changes on the page that have no price kept",
}
LONGEST_S = 3.0  # what nothing bounds
TIMEOUT_S = 300


def run(arguments: tuple[str, ...], folder: Path) -> float:
    """Seconds of one command; ends the bar where it fails."""
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        "HOME": str(folder),
        "NUMBA_CACHE_DIR": str(folder / "numba"),
        "PYTHONPYCACHEPREFIX": str(folder / "python"),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    begun_s = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "windtunnel", *arguments], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    spent_s = time.perf_counter() - begun_s
    if done.returncode:
        raise SystemExit(f"windtunnel {' '.join(arguments)} ended with {done.returncode}: {done.stderr[-500:]}")
    return spent_s


def main() -> int:
    """Print the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--verbose", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "train.py").write_text(TRAINING)
        cold = {name: run(arguments, folder) for name, arguments in COMMANDS.items()}
        warm = {
            name: statistics.median(run(arguments, folder) for _ in range(asked.rounds))
            for name, arguments in COMMANDS.items()
        }
    slowest = sorted(warm, key=lambda name: -warm[name])[:3]
    unbound = [name for name, taken in warm.items() if taken > LONGEST_S and name not in BOUND_BY]
    if asked.verbose:
        rows = [{"command": name, "cold_s": cold[name], "warm_s": warm[name], "bound_by": BOUND_BY.get(name, "")}
                for name in sorted(warm, key=lambda name: -warm[name])]  # fmt: skip
        print(table(rows), file=sys.stderr)
    holds = report(
        "command_times",
        max((warm[name] for name in warm if name not in BOUND_BY), default=0.0),
        f"<= {LONGEST_S:g} s with full caches, but for what really runs something, and says what",
        not unbound,
        warm_s=warm,
        cold_s=cold,
        slowest={name: BOUND_BY.get(name, "") for name in slowest},
        rounds=asked.rounds,
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
