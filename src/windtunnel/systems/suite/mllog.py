"""MLPerf-style result lines.

In: a run of the suite. Out: lines that start with ``:::MLLOG`` and hold one JSON object each, in the fields that
MLCommons' logging library writes (namespace, time_ms, event_type, key, value, metadata). They make a run readable for
tools that parse such logs; they make it no submission to MLPerf.

Source: github.com/mlcommons/logging, mllog, training rules 5.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Iterator
from typing import Any

from windtunnel.systems.suite.results import Result, SuiteRun

__all__ = ["PREFIX", "mllog_lines"]

PREFIX = ":::MLLOG"
_POINT, _BEGIN, _END = "POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"


def mllog_lines(run: SuiteRun) -> Iterator[str]:
    """Every measured cell as one benchmark: submission facts, the run's interval, throughput, loss.

    The namespace is empty, as in MLCommons' own logs; ``metadata`` names the file and line that
    wrote the entry, and the cell.
    """
    for result in run.measured:
        yield from _cell_lines(result, run.machine)


def _cell_lines(result: Result, machine: dict[str, Any]) -> Iterator[str]:
    end_ms = _milliseconds(result.measured_at)
    begin_ms = end_ms - round(sum(result.durations_ns) / 1e6)
    facts = {
        "submission_benchmark": result.cell.workload,
        "submission_platform": machine.get("cpu_name", ""),
        "global_batch_size": result.batch_size,
        "train_samples": round(sum(result.units)),
    }
    for key, value in facts.items():
        yield _line(begin_ms, _POINT, key, value, result)
    yield _line(begin_ms, _BEGIN, "run_start", None, result)
    rate = result.throughput
    stats = {"throughput": rate.value, "throughput_low": rate.low, "throughput_high": rate.high}
    yield _line(end_ms, _POINT, "tracked_stats", stats, result, unit=f"{result.unit}/s")
    if result.objective and result.objective[-1] is not None:
        yield _line(end_ms, _POINT, "train_loss", result.objective[-1], result, step=len(result.objective))
    yield _line(end_ms, _END, "run_stop", None, result, status="success")


def _milliseconds(moment: str) -> int:
    return round(datetime.datetime.fromisoformat(moment).timestamp() * 1000) if moment else 0


def _line(time_ms: int, event: str, key: str, value: Any, result: Result, **metadata: Any) -> str:
    record = {
        "namespace": "",
        "time_ms": time_ms,
        "event_type": event,
        "key": key,
        "value": value,
        "metadata": {"file": __file__, "lineno": sys._getframe(1).f_lineno, "cell": result.cell.key, **metadata},
    }
    return f"{PREFIX} {json.dumps(record, allow_nan=False)}"
