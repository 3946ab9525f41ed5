"""Run the training suite: every workload in a process of its own.

In: names, size, batch sizes, threads, ranks. Out: a ``SuiteRun``: a folder with one result file per finished cell, a
profile table, a machine record, and the captured graphs where asked. A workload that crashes, is refused or lacks an
extra loses nothing of the others; an interrupted suite goes on where it stopped. Not here: what a process does
(``cell``), the files (``results``), comparing runs (``comparison``).
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from windtunnel import hardware
from windtunnel.base.extras import require
from windtunnel.base.progress import Progress
from windtunnel.errors import InputError
from windtunnel.measure import ProfileDatabase
from windtunnel.measure.fingerprint import now
from windtunnel.measure.workers import Workers
from windtunnel.systems.suite.model import workload_plugins
from windtunnel.systems.suite.results import (
    Cell,
    Result,
    SuiteRun,
    load_run,
    write_machine,
    write_profile,
    write_result,
)
from windtunnel.systems.suite.storage import measure_disk
from windtunnel.workloads.workload import SIZES

__all__ = ["Order", "cells_of", "run_suite"]

_LOG_TAIL_BYTES = 2000
_POLL_S = 0.05


class Order(msgspec.Struct, frozen=True):
    """The orders of the process of a cell."""

    cell: Cell
    folder: str
    budget_s: float = 20.0
    precision: float = 0.01
    min_steps: int = 50
    fewest: int = 3
    graph_iterations: int = 5
    is_graph_kept: bool = False
    memory_bytes: int = 0
    rank: int = 0
    rendezvous: str = ""
    seed: int = 0


def cells_of(
    names: Sequence[str] | None = None,
    *,
    size: str = "tiny",
    batch_sizes: Sequence[int] = (),
    num_threads: Sequence[int] = (),
    num_ranks: Sequence[int] = (1,),
    link_bytes_per_s: int = 0,
) -> list[Cell]:
    """Return all cells to measure: workloads x batch sizes x threads x ranks.

    Parameters
    ----------
    names : sequence of str, optional
        The suite if None; any registered workload may be named.
    batch_sizes : sequence of int
        The workload's own if empty.
    num_threads : sequence of int
        Of every rank; all cores divided by the ranks if empty.
    link_bytes_per_s : int
        Emulated between the ranks; 0 is none.

    Raises
    ------
    InputError
        An unknown workload (the nearest names are offered) or size, or a number that is not positive.
    """
    for what, values in (
        ("batch size", batch_sizes),
        ("number of threads", num_threads),
        ("number of ranks", num_ranks),
    ):
        if any(value < 1 for value in values):
            raise InputError(f"a {what} of {min(values)} runs nothing", fix="use 1 or more")
    if size not in SIZES:
        raise InputError(f"no size is called {size!r}", where="size", fix=f"choose one of {', '.join(SIZES)}")
    cores = hardware.machine().num_cores
    return [
        Cell(name, size, batch_size, threads, ranks, link_bytes_per_s if ranks > 1 else 0)
        for name in workload_plugins(names)
        for ranks in num_ranks
        for threads in (num_threads or (max(1, cores // ranks),))
        for batch_size in (batch_sizes or (0,))
    ]


def run_suite(
    names: Sequence[str] | None = None,
    *,
    output: str | Path,
    size: str = "tiny",
    batch_sizes: Sequence[int] = (),
    num_threads: Sequence[int] = (),
    num_ranks: Sequence[int] = (1,),
    link_bytes_per_s: int = 0,
    budget_s: float = 20.0,
    precision: float = 0.01,
    keep_graphs: bool = False,
    graph_iterations: int = 5,
    fewest: int = 3,
    resume: bool = False,
    patience_s: float | None = None,
    memory_bytes: int = 0,
    progress: Progress | None = None,
) -> SuiteRun:
    """Train and measure every cell, each in a process of its own.

    Parameters
    ----------
    names, size, batch_sizes, num_threads, num_ranks, link_bytes_per_s
        As of :func:`cells_of`.
    output : path
        Folder for the results.
    budget_s : float
        Sampling of one cell ends after this time, or when the median is known to ``precision``.
    precision : float
        Width of the median's 95 % interval over the median.
    keep_graphs : bool
        Keep the captured graph of every workload under ``graphs/``.
    graph_iterations : int
        Profiled iterations of the capture, from which compute utilization comes; 0 captures nothing.
    fewest : int
        Steps that are run in any case, beyond the budget too.
    resume : bool
        Keep what is measured already; without it a folder with results is refused.
    patience_s : float, optional
        When a silent process is given up; by default ten minutes and four budgets.
    memory_bytes : int
        What a workload may need; 0 asks the machine.

    Returns
    -------
    SuiteRun
        What failed, was refused or lacks an extra is in it, with its message.

    Raises
    ------
    InputError
        An unknown workload or size, or results that are there already.
    """
    require("torch", extra="torch")
    folder = Path(output)
    cells = cells_of(
        names,
        size=size,
        batch_sizes=batch_sizes,
        num_threads=num_threads,
        num_ranks=num_ranks,
        link_bytes_per_s=link_bytes_per_s,
    )
    done = _load_finished_cells(folder, resume=resume)
    write_machine(folder, _machine_facts(cells) | _disk_facts(folder))
    template = Order(
        cells[0],
        str(folder.resolve()),
        budget_s,
        precision,
        fewest=fewest,
        graph_iterations=graph_iterations,
        is_graph_kept=keep_graphs,
        memory_bytes=memory_bytes,
    )
    results = list(done.values())
    for index, cell in enumerate(cells):
        if progress is not None:
            progress(cell.workload, index, len(cells))
        if cell in done:
            continue
        result = _run_cell(msgspec.structs.replace(template, cell=cell), patience_s or 600 + 4 * budget_s)
        results = [*results, result]
        write_profile(folder, results)
    if progress is not None:
        progress("done", len(cells), len(cells))
    return load_run(folder)


def _load_finished_cells(folder: Path, *, resume: bool) -> dict[Cell, Result]:
    """Load the cells that were measured; failed and rejected ones are run again."""
    if not (folder / "results").exists():
        return {}
    if not resume:
        raise InputError(f"{folder} holds results already", fix="go on with --resume, or choose another --out")
    try:
        run = load_run(folder)
    except InputError:
        if any((folder / "results").glob("*.json")):
            raise
        return {}
    return {result.cell: result for result in run.measured}


def _machine_facts(cells: Sequence[Cell]) -> dict[str, Any]:
    """Measure the peaks at the used numbers of threads, and the memory bandwidth."""
    from windtunnel.cost.peak import measure_bandwidth, measure_peak

    database = ProfileDatabase()
    threads = sorted({cell.num_threads for cell in cells})
    peaks = {f"float32 x {count}": measure_peak("float32", count, database=database).flops_per_s for count in threads}
    bandwidth = {str(count): measure_bandwidth(count, database=database).bytes_per_s for count in threads}
    return {"peak_flops_per_s": peaks, "memory_bandwidth_bytes_per_s": bandwidth}


def _disk_facts(folder: Path) -> dict[str, Any]:
    """Measure the disk of the results, or state why that failed."""
    try:
        return {"disk": measure_disk(folder).json()}
    except InputError as error:
        return {"disk": {"note": error.message}}


def _run_cell(order: Order, patience_s: float) -> Result:
    """Run the processes of a cell and read their results; a process that died silently is a failed cell."""
    folder = Path(order.folder)
    begun_s = time.monotonic()
    threads = {"OMP_NUM_THREADS": str(order.cell.num_threads)}
    with Workers(
        "windtunnel.systems.suite.cell", order, num_ranks=order.cell.num_ranks, environment=threads
    ) as workers:
        is_late = not workers.wait(patience_s)
        code, log = workers.exit_codes()[0], workers.log_tail().strip()
    path = folder / "results" / f"{order.cell.key}.json"
    if code == 0:
        return msgspec.json.decode(path.read_bytes(), type=Result)
    result = Result(
        cell=order.cell,
        status="failed",
        message=f"nothing came of it for {patience_s:.0f} s" if is_late else _death(code),
        fix="give it more --timeout" if is_late else f"its last words: {log or 'none'}",
        measured_at=now(),
        seconds=time.monotonic() - begun_s,
    )
    write_result(folder, result)
    return result


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return f"its process was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    return f"its process ended with {code}"
