"""The processes of a flown pipeline from start to end (room training, private).

In: the path of an ``Orders`` file that all ranks read. Out: nothing; each rank leaves a file beside it. Not here: what
a rank does (``_pipeline_rank``), what its spans say (``pipelines``).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from windtunnel.errors import FlightError

__all__ = ["run_ranks"]

Progress = Callable[[str, int, int], None]
_PATIENCE_S = 300.0
_POLL_S = 0.2
_LOG_TAIL_BYTES = 4000


def run_ranks(path: Path, num_ranks: int, progress: Progress | None) -> None:
    """All ranks from start to end; where one fails, all end.

    Raises
    ------
    FlightError
        A process failed, or nothing was heard of any for minutes; says what they printed.
    """
    logs = [Path(f"{path}.log{rank}") for rank in range(num_ranks)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    processes = []
    try:
        for rank, log in enumerate(logs):
            with log.open("wb") as out:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "windtunnel.training._pipeline_rank", str(path), str(rank)],
                        stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment,
                    )
                )  # fmt: skip
        said, heard_s = "", time.monotonic()
        while any(process.poll() is None for process in processes):
            failed = [rank for rank, process in enumerate(processes) if process.poll()]
            line = _read(Path(f"{path}.progress"))
            if line != said:
                said, heard_s = line, time.monotonic()
                what, done, total = line.split()
                if progress is not None:
                    progress(f"{what}s", int(done), int(total))
            if failed or time.monotonic() - heard_s > _PATIENCE_S:
                break
            time.sleep(_POLL_S)
        if any(process.poll() != 0 for process in processes):
            raise _failure(logs)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _failure(logs: Sequence[Path]) -> FlightError:
    tails = [log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace") for log in logs]
    lines = [line for tail in tails for line in tail.splitlines() if "Error" in line]
    return FlightError(
        f"a stage's process ended or did not answer: {lines[0].strip() if lines else 'without a word'}",
        where="pipeline", log_tail="\n".join(f"[rank {rank}]\n{tail}" for rank, tail in enumerate(tails)),
    )  # fmt: skip
