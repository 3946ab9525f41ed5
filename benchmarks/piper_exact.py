"""Every published value of Piper's planner, recomputed; and no equal stages are faster on any shipped input.

The value is how many of the published numbers are off by more than 1e-6. Equal stages are what PipeDream-2BW's planner
takes: one data and tensor degree for all, everything computed again or nothing.
"""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

from tests.shared_data import find_shared

from benchmarks import bar
from windtunnel.systems.pipelines.piper import equal_stages, plan_piper
from windtunnel.systems.pipelines.piper_format import read_piper

TARGET = "every value equal to 1e-6, no equal stages faster"
BANDWIDTH = 25 * 2**30
FOLDER = "placement/piper"
SIZES = (4, 10)  # devices of the input without published values, by the memory of its file and less


@dataclass(frozen=True)
class Published:
    """Of the BERT input; seconds per microbatch, None where nothing fits; the last is unknown for one."""

    num_devices: int
    memory_gib: int
    equal_s: float | None
    best_s: float | None
    is_known: bool = True


TABLE = (
    Published(8, 8, 0.230978, 0.16585575),
    Published(16, 8, 0.102604171, 0.082962217),
    Published(32, 8, 0.051351089, None, is_known=False),
    Published(8, 80, 0.122007269, 0.122007269),
    Published(8, 2, None, None),
)


def differs(found: float | None, published: float | None) -> bool:
    if found is None or published is None:
        return found is not published
    return abs(found - published) > 1e-6 * published


def of_bert(folder: Path, row: Published) -> dict[str, object]:
    """One row of the table."""
    problem = read_piper(
        folder / "bert32a100.json", num_devices=row.num_devices, memory_bytes=row.memory_gib * 2**30,
        bandwidth_bytes_per_s=BANDWIDTH,
    )  # fmt: skip
    equal, best = equal_stages(problem), plan_piper(problem)
    times = {"equal_s": equal and equal.time_s, "best_s": best and best.time_s}
    wrong = [differs(times["equal_s"], row.equal_s), row.is_known and differs(times["best_s"], row.best_s)]
    return {"input": "bert32a100", "devices": row.num_devices, "memory_gib": row.memory_gib, **times,
            "num_wrong": sum(wrong)}  # fmt: skip


def of_gnmt(folder: Path, num_devices: int, memory_bytes: float) -> dict[str, object]:
    """The input without published values, its times in milliseconds."""
    problem = read_piper(
        folder / "gnmt.json", num_devices=num_devices, memory_bytes=memory_bytes, seconds_per_unit=1e-3
    )
    equal, best = equal_stages(problem), plan_piper(problem)
    times = {"equal_s": equal and equal.time_s, "best_s": best and best.time_s}
    return {"input": "gnmt", "devices": num_devices, "memory_gib": memory_bytes / 2**30, **times, "num_wrong": 0}


def is_slower(row: dict[str, object]) -> bool:
    """Whether equal stages beat the plan."""
    equal_s, best_s = row["equal_s"], row["best_s"]
    return equal_s is not None and (best_s is None or best_s > equal_s * (1 + 1e-9))


def main() -> None:
    """Print the bar, and with --verbose every row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verbose", action="store_true", help="print every row")
    options = parser.parse_args()
    folder = find_shared(FOLDER)
    if folder is None:
        bar.report("piper_exact", math.nan, TARGET, holds=False, reason="public data is not here")
        return
    rows = [of_bert(folder, row) for row in TABLE]
    rows += [of_gnmt(folder, num, memory) for num in SIZES for memory in (80e9, 2e9)]
    if options.verbose:
        print(bar.table(rows))
    wrong = sum(int(row["num_wrong"]) for row in rows)
    slower = [row for row in rows if is_slower(row)]
    gains = [row["equal_s"] / row["best_s"] for row in rows if row["equal_s"] and row["best_s"]]
    bar.report(
        "piper_exact", wrong, TARGET, wrong == 0 and not slower,
        num_slower_than_equal_stages=len(slower), num_plans=len(rows), best_gain_over_equal_stages=max(gains),
        rows=rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
