"""What-ifs of recorded GPU steps beside what was measured when the change was really made.

Three sets: flights on an H100 (``gpu/h100``), flights on an H200 (``../shared/data/gpu_h200/whatifs``), and changes
that were set in the scripts of ``gpu/scripts`` on that H200 (``gpu/h200/pairs/NAME@changes.json``). Each is predicted
from the trace of the step as it was, without a GPU; the profiler is taken out by the time that the step took in the
turns of that flight. Jobs that have a trace of the H200 only are predicted from that for the H100, too. Every pair is
predicted, or named with the reason why not.

    python -m benchmarks.gpu_whatifs --verbose
"""

import gzip
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from tests.shared_data import find_shared

from benchmarks.bar import is_verbose, report, table
from windtunnel.errors import WindtunnelError
from windtunnel.simulate import replay
from windtunnel.sources.kineto.reader import load_kineto
from windtunnel.sources.kineto.unprofiled import TYPICAL_SHARE
from windtunnel.whatifs import whatif
from windtunnel.whatifs.device_use import shorten_host_times

FOLDER = Path(__file__).parent / "gpu"
SHARED = find_shared("gpu_h200") or FOLDER / "h200"
TARGETS = (0.05, 0.15)
HALVINGS = 12
MIN_SHARE = 0.3  # of the recorded host time; less would be another host
NEAR = 0.1  # as near as the typical share comes to steps
KEPT = ("pair", "measured", "low", "high", "predicted", "baseline_ns", "replayed_ns", "host_ratio")
REQUESTS = {"no-sync": "no-sync:call=aten::_local_scalar_dense"}  # that script leaves out .item() only

Row = dict[str, Any]


class Pair(NamedTuple):
    """A change that was really made."""

    where: str
    job: str
    change: str
    measured: float
    low: float
    high: float
    baseline_ns: float
    traces: tuple[Path, ...]  # the first that is there counts


def pairs() -> Iterator[Pair]:
    shared = SHARED / "steps" / "traces"
    for where, folder in (("H100", FOLDER / "h100"), ("H200", SHARED)):
        for name, row in flown_in(folder).items():
            job, _, change = name.partition("@")
            if "measured" in row:
                traces = (FOLDER / "h100" / "traces" / f"{job}.json.gz",) * (where == "H100")
                measured = row["measured"], row["low"], row["high"]
                yield Pair(
                    where, job, change, *measured, row["baseline_ms"] * 1e6, (*traces, shared / f"{job}.json.gz")
                )
    for path in sorted((FOLDER / "h200" / "pairs").glob("*@changes.json")):
        job = path.name.partition("@")[0]
        for change, row in json.loads(path.read_text()).items():
            low, measured, high = row["speedup_quartiles"]
            baseline_ns = float(np.median(row["base"]["blocks_ns"]))
            yield Pair("H200", job, change, measured, low, high, baseline_ns, (path.parent / f"{job}-plain.json.gz",))


def flown_in(folder: Path) -> dict[str, Row]:
    file = folder / "whatifs.json"
    if file.is_file():
        rows: dict[str, Row] = json.loads(file.read_text())
        return rows
    return {path.stem: json.loads(path.read_text()) for path in sorted((folder / "whatifs").glob("*.json"))}


@cache
def trace(path: Path) -> Any:
    """The graph of a trace; marks of iterations as of older recordings get the name that readers know."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    marks = [event for event in document["traceEvents"] if event.get("name") == "wt:iteration"]
    if not marks:
        return load_kineto(path)
    for category in ("user_annotation", "gpu_user_annotation"):
        own = sorted((event for event in marks if event.get("cat") == category), key=lambda event: event["ts"])
        for number, event in enumerate(own):
            event["name"] = f"ProfilerStep#{number}"
    with TemporaryDirectory() as folder:
        file = Path(folder) / path.name.removesuffix(".gz")
        file.write_text(json.dumps(document))
        return load_kineto(file)


def without_profiler(graph: Any, step_ns: float) -> Any:
    """The host in the share that brings the step to what it took in the turns of the flight.

    The typical share stands in where it comes near to that, or where the device decides how long a step takes.
    """
    typical_ns = step_of(graph, TYPICAL_SHARE)
    low, high = MIN_SHARE, 1.0
    is_typical = abs(typical_ns / step_ns - 1) < NEAR or not step_of(graph, low) <= step_ns <= step_of(graph, high)
    for _ in range(0 if is_typical else HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if step_of(graph, middle) > step_ns else (middle, high)
    share = TYPICAL_SHARE if is_typical else (low + high) / 2
    return shorten_host_times(graph, share).with_meta(overhead={"host_ratio": share})


def step_of(graph: Any, share: float) -> float:
    return replay(shorten_host_times(graph, share)).makespan_ns / max(graph.num_iterations, 1)


def predict(pair: Pair) -> Row:
    row: Row = {"pair": f"{pair.where} {pair.job}@{pair.change}", **pair._asdict()}
    for name in ("where", "job", "change", "traces"):
        del row[name]
    path = next((path for path in pair.traces if path.is_file()), None)
    if path is None:
        return row | {"reason": "there is no trace of this job"}
    graph = without_profiler(trace(path), pair.baseline_ns)
    try:
        answer = whatif(graph, REQUESTS.get(pair.change, pair.change), prices="paper")[0]
    except WindtunnelError as error:
        return row | {"reason": error.message}
    if not answer.is_applicable:
        return row | {"reason": answer.reason}
    # what a step took in its turns and the trace does not hold, it takes with the change, too
    saved_ns = answer.baseline_ns * (1 - 1 / answer.speedup)
    predicted = pair.baseline_ns / (pair.baseline_ns - saved_ns)
    return row | {
        "predicted": predicted,
        "error": predicted / pair.measured - 1,
        "replayed_ns": answer.baseline_ns,
        "host_ratio": graph.meta.overhead["host_ratio"],
    }


def main() -> None:
    rows = [predict(pair) for pair in pairs()]
    errors = [abs(row["error"]) for row in rows if "error" in row]
    median, p90 = float(np.median(errors)), float(np.percentile(errors, 90))
    report(
        "gpu_whatifs", 100 * median, "median <= 5 %, p90 <= 15 % of what was measured on an H100 and an H200",
        median <= TARGETS[0] and p90 <= TARGETS[1], p90_percent=100 * p90,
        num_measured=len(rows), num_predicted=len(errors),
        percent={row["pair"]: 100 * row["error"] for row in rows if "error" in row},
        not_predicted={row["pair"]: row["reason"] for row in rows if "error" not in row},
        rows=[{key: row[key] for key in KEPT if key in row} for row in rows],
    )  # fmt: skip
    if is_verbose():
        print(table([{k: v for k, v in row.items() if k not in ("low", "high")} for row in rows]))


if __name__ == "__main__":
    main()
