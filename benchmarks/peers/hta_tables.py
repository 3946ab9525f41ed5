"""HolisticTraceAnalysis's own tables of some traces, as JSON: run by ITS python, knows nothing of this package.

In: ``python hta_tables.py ROUNDS TRACE...`` (one per rank). Out: one JSON document: the tables as lists of rows, the
least of the seconds that loading and all tables took, and what it could not make, with its error. Not here: any
comparison.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

ALL_NAMES = 1_000_000  # so that no kernels become "others", whose statistics would be those of sums
KERNEL_WAIT_US = 30


def main(rounds: int, paths: list[str]) -> None:
    """Load the traces and make every table, some times; print the last of them."""
    logging.disable(logging.CRITICAL)
    from hta.trace_analysis import TraceAnalysis
    from hta.version import __version_tuple__

    seconds = []
    for _ in range(rounds + 1):  # the first one imports
        before = time.perf_counter()
        analysis = TraceAnalysis(trace_files=dict(enumerate(paths)))
        tables, failed = _made(_makers(analysis, sorted(analysis.t.traces)))
        seconds.append(time.perf_counter() - before)
    plain = {name: [_rows(frame) for frame in frames] for name, frames in tables.items()}
    version = ".".join(map(str, __version_tuple__))
    if __version_tuple__ >= (0, 6):
        plain["critical-path"] = [[_critical_path(analysis, rank) for rank in sorted(analysis.t.traces)]]
    document = {"version": version, "seconds": min(seconds[1:] or seconds), "tables": plain, "failed": failed}
    print(json.dumps(document, default=_plain))


def _critical_path(analysis: Any, rank: int) -> dict[str, Any]:
    """The path of the first step."""
    graph, _ = analysis.critical_path_analysis(rank, "ProfilerStep", 0)
    nodes = graph.critical_path_nodes
    length_us = sum(graph.edges[edge]["object"].weight for edge in pairwise(nodes))
    return {"rank": rank, "length_us": length_us, "events": sorted(map(int, graph.critical_path_events_set))}


def _made(makers: dict[str, Callable[[], list[Any]]]) -> tuple[dict[str, list[Any]], dict[str, str]]:
    tables, failed = {}, {}
    for name, make in makers.items():
        try:
            tables[name] = make()
        except Exception as error:  # whatever goes wrong there is its answer
            failed[name] = f"{type(error).__name__}: {error}"[:200]
    return tables, failed


def _makers(analysis: Any, ranks: list[int]) -> dict[str, Callable[[], list[Any]]]:
    return {
        "temporal": lambda: [analysis.get_temporal_breakdown(visualize=False)],
        "idle": lambda: list(
            analysis.get_idle_time_breakdown(
                ranks=ranks, visualize=False, show_idle_interval_stats=True, consecutive_kernel_delay=KERNEL_WAIT_US
            )
        ),
        "overlap": lambda: [analysis.get_comm_comp_overlap(visualize=False)],
        "queue-series": lambda: _with_rank(analysis.get_queue_length_time_series(ranks)),
        "queue": lambda: [analysis.get_queue_length_summary(ranks)],
        "launches": lambda: _with_rank(analysis.get_cuda_kernel_launch_stats(ranks, visualize=False)),
        "kernels": lambda: list(analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=ALL_NAMES)),
    }


def _with_rank(frames: dict[int, Any]) -> list[Any]:
    return [frame.assign(rank=rank) for rank, frame in frames.items()]


def _rows(frame: Any) -> list[dict[str, Any]]:
    if frame is None:
        return []
    flat = frame.reset_index()
    flat.columns = [
        "_".join(str(part) for part in column if part) if isinstance(column, tuple) else str(column)
        for column in flat.columns
    ]
    rows: list[dict[str, Any]] = flat.to_dict("records")
    return rows


def _plain(value: Any) -> Any:
    return value.item()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    main(int(sys.argv[1]), sys.argv[2:])
