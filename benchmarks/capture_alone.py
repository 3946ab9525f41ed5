"""A captured step takes as long as the script's own clock says when nothing watches it.

Scripts with steps of half a millisecond to three, in processes of their own: alone, captured, alone again, in turn.
Alone means without this package: the script's own ``zero_grad`` calls are stamped by a clock, as its author would do
it. On one thread, since a step of two waits for the slower one wherever anything else runs on the machine.

    python -m benchmarks.capture_alone --verbose
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import bar
from windtunnel import graph as graphs
from windtunnel.simulate import replay

SCRIPTS = ("autoencoder", "images", "sliced_decoder", "clipped")
FOLDER = Path(__file__).parent / "plausible_scripts"
NUM_ROUNDS, LIMIT_S = 2, 1.0
MEDIAN_TARGET, WORST_TARGET = 0.05, 0.15
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
ALONE = """
import json, runpy, sys, time
import torch
stamps, limit_ns = [], float(sys.argv[2]) * 1e9
zero_grad = torch.optim.Optimizer.zero_grad

class End(BaseException):
    pass

def stamped(self, *args, **kwargs):
    stamps.append(time.perf_counter_ns())
    if len(stamps) > 30 and stamps[-1] - stamps[10] > limit_ns:
        raise End
    return zero_grad(self, *args, **kwargs)

torch.optim.Optimizer.zero_grad = stamped
try:
    runpy.run_path(sys.argv[1], run_name="__main__")
except End:
    pass
times = sorted(last - first for first, last in zip(stamps[10:], stamps[11:]))
print(json.dumps(times[len(times) // 2]))
"""


def alone_ns(script: Path) -> float:
    """Median step of the script alone, by its own clock, in ns."""
    command = [sys.executable, "-c", ALONE, str(script), str(LIMIT_S)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=ONE_THREAD)
    return float(json.loads(done.stdout.splitlines()[-1]))


def captured_ns(script: Path, folder: Path) -> float:
    """The step that the command line captures, replayed, in ns."""
    saved = folder / "captured.wt"
    command = [sys.executable, "-m", "windtunnel", "capture", "--force", "--out", str(saved), str(script)]
    subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=ONE_THREAD)
    return float(replay(graphs.load(saved)).makespan_ns)


def row(name: str) -> dict[str, object]:
    """One script: medians of the rounds, and the error of each capture against the runs around it."""
    script, alone, captured = FOLDER / f"{name}.py", [], []
    with tempfile.TemporaryDirectory() as folder:
        alone.append(alone_ns(script))
        for _ in range(NUM_ROUNDS):
            captured.append(captured_ns(script, Path(folder)))
            alone.append(alone_ns(script))
    errors = [found / statistics.mean(alone[turn : turn + 2]) - 1 for turn, found in enumerate(captured)]
    return {
        "script": name,
        "alone_ms": statistics.median(alone) / 1e6,
        "captured_ms": statistics.median(captured) / 1e6,
        "error": statistics.median(errors),
        "errors": errors,
    }


def main() -> None:
    """Print the bar, and with --verbose its table."""
    rows = [row(name) for name in SCRIPTS]
    if bar.is_verbose():
        print(bar.table([{key: value for key, value in item.items() if key != "errors"} for item in rows]))
    errors = [abs(float(str(item["error"]))) for item in rows]
    median, worst = statistics.median(errors), max(errors)
    bar.report(
        "capture_alone",
        median,
        f"median <= {MEDIAN_TARGET:.0%}, worst <= {WORST_TARGET:.0%} off the script's own clock",
        median <= MEDIAN_TARGET and worst <= WORST_TARGET,
        worst=worst,
        rows=rows,
    )


if __name__ == "__main__":
    main()
