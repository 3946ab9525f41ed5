"""Measure all that a GPU can tell, in stages of at most nine minutes each that stand alone and resume.

    python -m benchmarks.gpu                              # all stages, one after the other, in one budget
    python -m benchmarks.gpu operators --budget-s 540     # one stage; the same command again goes on
    python -m benchmarks.gpu pairs operators --plan 10    # what fits into ten minutes
    python -m benchmarks.gpu --device cpu --small         # the whole way without a GPU, as the tests go it

Nothing needs to be installed: the repository and a Python with torch are enough for what is recorded. What is missing
to judge it, ``check`` says.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

try:
    import windtunnel
except ModuleNotFoundError:  # not installed: it is used from where it lies
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))
    import windtunnel  # noqa: F401

from benchmarks.gpu.stages import STAGES, Job, plan_lines, run_stage, stage_of


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"{', '.join(STAGES)}; all by default")
    parser.add_argument("--device", default="", choices=("", "cuda", "cpu"), help="cuda where there is one")
    parser.add_argument("--out", default="gpu-results", type=Path, metavar="DIR", help="results; go on where they end")
    parser.add_argument("--budget-s", default=540.0, type=float, help="seconds for all that is asked")
    parser.add_argument("--small", action="store_true", help="as little of everything as shows that it works")
    parser.add_argument("--again", action="store_true", help="try again what failed")
    parser.add_argument("--plan", type=float, metavar="MINUTES", help="print what fits into this time; measure nothing")
    parser.add_argument("--first", default="", metavar="UNIT", help="of the stage that has it: leave out those before")
    parser.add_argument("--unit", default="", help=argparse.SUPPRESS)
    return parser.parse_args(given)


def device_of(name: str) -> str:
    import torch

    return name or ("cuda" if torch.cuda.is_available() else "cpu")


def main() -> int:
    asked = arguments()
    unknown = sorted(set(asked.stages) - set(STAGES))
    if unknown:
        print(f"error: no stage is called {unknown[0]!r}\n  fix:   one of {', '.join(STAGES)}", file=sys.stderr)
        return 2
    until_s = time.monotonic() + (asked.budget_s if asked.plan is None else 60 * asked.plan)
    job = Job(device_of(asked.device), asked.out.resolve(), until_s, asked.small, asked.again, asked.first)
    if asked.plan is not None:
        print("\n".join(plan_lines(asked.stages or STAGES, job)))
        return 0
    if asked.unit:
        name, _, unit = asked.unit.partition("/")
        print(json.dumps({"row": stage_of(name).run(unit, job)}))
        return 0
    for name in asked.stages or STAGES:
        print(json.dumps(run_stage(name, job)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
