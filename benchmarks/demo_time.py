"""Bar: the demo, from a real training to verified answers, takes at most five minutes and 4 GiB.

Runs ``windtunnel demo`` as ``make demo`` does, in a fresh folder, and watches the memory of its whole tree of
processes: proportional set sizes, so that pages shared between them count once.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.bar import is_verbose, report, table

TARGET_S = 300.0
TARGET_BYTES = 4 * 2**30
WATCH_EVERY_S = 0.5


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        command = [sys.executable, "-m", "windtunnel", "demo", "--out", f"{folder}/demo", "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        peak_bytes, stdout = watch(process)
        seconds = time.monotonic() - begin
        document = json.loads(stdout) if process.returncode == 0 else {"receipts": [], "files": []}
        is_whole = bool(document["receipts"]) and all(Path(file).stat().st_size for file in document["files"])
    receipts = document["receipts"]
    if is_verbose():
        columns = ("whatif", "predicted_speedup", "error_ratio", "num_rounds")
        print(table([{column: receipt[column] for column in columns} for receipt in receipts]))
    holds = report(
        "demo_time",
        seconds,
        f"<= {TARGET_S:.0f} s and <= 4 GiB",
        is_whole and seconds <= TARGET_S and peak_bytes <= TARGET_BYTES,
        peak_bytes=peak_bytes,
        exit_code=process.returncode,
        flown=[receipt["whatif"] for receipt in receipts],
        errors=[receipt["error_ratio"] for receipt in receipts],
    )
    return 0 if holds else 1


def watch(process: subprocess.Popen) -> tuple[int, str]:
    """Largest memory of the tree of processes while it runs, and what it printed."""
    peak_bytes = 0
    while True:
        try:
            stdout, _ = process.communicate(timeout=WATCH_EVERY_S)
        except subprocess.TimeoutExpired:
            peak_bytes = max(peak_bytes, sum(map(held_bytes, tree(process.pid))))
        else:
            return peak_bytes, stdout


def tree(root: int) -> list[int]:
    """The process and all below it."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        parents[int(status.parent.name)] = int(fields[1])
    found = {root}
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return sorted(found)
        found |= more


def held_bytes(pid: int) -> int:
    """Proportional set size; 0 for a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    sys.exit(main())
