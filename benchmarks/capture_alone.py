"""A captured step takes as long as the script's own clock says when nothing watches it.

Scripts with steps of half a millisecond to three. Each runs alone in a process of its own, without this package: its
own ``zero_grad`` calls are stamped by a clock, as its author would do it. That process waits while the script is
captured in others, and goes on for a moment before and after each capture: both see the same phases of the host, whose
pace moves by half within minutes, and the fastest of each are compared. On one thread, since a step of two waits for
the slower one wherever anything else runs on the machine.

    python -m benchmarks.capture_alone --verbose
    python -m benchmarks.capture_alone --scripts autoencoder,images --rounds 8
"""

import argparse
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
NUM_ROUNDS, LIMIT_S = 4, 0.3
MEDIAN_TARGET, WORST_TARGET = 0.05, 0.15
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
ALONE = """
import json, os, runpy, sys, time
import torch
pipe, limit_ns = os.fdopen(os.dup(1), "w"), float(sys.argv[2]) * 1e9
os.dup2(2, 1)  # what the script prints is no answer
stamps, zero_grad = [], torch.optim.Optimizer.zero_grad

class End(BaseException):
    pass

def stamped(self, *args, **kwargs):
    stamps.append(time.perf_counter_ns())
    if len(stamps) > 30 and stamps[-1] - stamps[10] > limit_ns:
        times = sorted(last - first for first, last in zip(stamps[10:], stamps[11:]))
        print(json.dumps(times[len(times) // 2]), file=pipe, flush=True)
        stamps.clear()
        if not sys.stdin.readline():
            raise End
    return zero_grad(self, *args, **kwargs)

torch.optim.Optimizer.zero_grad = stamped
try:
    while True:
        runpy.run_path(sys.argv[1], run_name="__main__")
        stamps.clear()
except End:
    pass
"""


class Alone:
    """The script in a process of its own, which runs on for a moment whenever its step is asked for."""

    def __init__(self, script: Path) -> None:
        command = [sys.executable, "-c", ALONE, str(script), str(LIMIT_S)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=ONE_THREAD
        )
        self._answer_ns()  # its start, slower than the rest

    def step_ns(self) -> float:
        """Median step of the next moment, by the script's own clock, in ns."""
        print(file=self._process.stdin, flush=True)
        return self._answer_ns()

    def _answer_ns(self) -> float:
        return float(json.loads(self._process.stdout.readline()))

    def __enter__(self) -> "Alone":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closes its input, at which it ends


def captured_ns(script: Path, folder: Path) -> float:
    """The step that the command line captures, replayed, in ns."""
    saved = folder / "captured.wt"
    command = [sys.executable, "-m", "windtunnel", "capture", "--force", "--out", str(saved), str(script)]
    subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=ONE_THREAD)
    return float(replay(graphs.load(saved)).makespan_ns)


def row(name: str, num_rounds: int) -> dict[str, object]:
    """One script: its fastest moment and its fastest capture, as the host's pace moves by half within minutes."""
    script, captured = FOLDER / f"{name}.py", []
    with tempfile.TemporaryDirectory() as folder, Alone(script) as process:
        alone = [process.step_ns()]
        for _ in range(num_rounds):
            captured.append(captured_ns(script, Path(folder)))
            alone.append(process.step_ns())
    pairs = [found / statistics.mean(alone[turn : turn + 2]) - 1 for turn, found in enumerate(captured)]
    return {
        "script": name,
        "alone_ms": min(alone) / 1e6,
        "captured_ms": min(captured) / 1e6,
        "error": min(captured) / min(alone) - 1,
        "host_pace": max(alone) / min(alone),
        "pairs": pairs,
    }


def main() -> None:
    """Print the bar, and with --verbose its table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--scripts", default=",".join(SCRIPTS))
    parser.add_argument("--rounds", type=int, default=NUM_ROUNDS)
    options, _ = parser.parse_known_args()
    rows = [row(name, options.rounds) for name in options.scripts.split(",")]
    if bar.is_verbose():
        print(bar.table([{key: value for key, value in item.items() if key != "pairs"} for item in rows]))
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
