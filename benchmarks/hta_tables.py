"""The tables of a trace against HolisticTraceAnalysis's own, value by value, and the time that both take for all.

Every public trace with device events, one or all ranks of a run; the peer runs in an environment of its own:
``--peer-python PATH``, ``WINDTUNNEL_PEER_HTA``, or the one of ``trace_load``. A table that the peer cannot make, or has
empty, is counted and not compared. Both read the files and make all tables, in processes that are warm.

Where a value differs it must be one of three things that the peer does, which is shown and not believed: it is asked
again about the same trace with an event of metadata in front (it takes event 0 for the launch of every kernel without
one) and no ``stream`` on host operators (it takes those for kernels), and its own queues are summed up again with
launches before kernels at one moment (its sort leaves that order to chance). Then every value must be equal.

The critical paths of the first step are compared where the peer is 0.6 or later (its main branch; 0.5.0, which the
package index has, keeps older rules): their lengths and their events.
"""

import gzip
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tests.shared_data import find_shared

from benchmarks import bar
from benchmarks.peers.hta import hta_critical_path
from benchmarks.trace_load import PEER, peer_python
from windtunnel.sources.kineto.reader import read_tables
from windtunnel.sources.timeline.intervals import describe
from windtunnel.sources.timeline.tables import TABLES, TableRules, TraceTables

Row = Mapping[str, Any]
Values = dict[tuple[Any, ...], tuple[float, ...]]
ALL_NAMES = 1_000_000
ROUNDS = 3
LEAST_SPEEDUP = 8
TARGET = f">= {LEAST_SPEEDUP} x faster than the peer, all values equal"
# calls that the peer knows as launches
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync", "cudaMemsetAsync")
SPREAD = ("mean", "std", "min", "25%", "50%", "75%", "max")
OUR_SPREAD = ("mean", "std", "min", "p25", "p50", "p75", "max")


def main() -> int:
    """Compare and print the bar; 1 if it does not hold."""
    arguments = bar.peer_arguments(PEER, __doc__)
    runs = _runs()
    if not runs:
        return _without("the public traces are not here")
    python = arguments.peer_python or os.environ.get("WINDTUNNEL_PEER_HTA") or peer_python()
    if python is None:
        return _without(f"{PEER} is not installed and could not be")
    rows = [row for name, paths in runs.items() for row in _compared(name, paths, python)]
    compared = [row for row in rows if row["values"]]
    total, equal, explained = (sum(row[key] for row in compared) for key in ("values", "equal", "equal_or_shown"))
    ours_s, peer_s = (sum({row["trace"]: row[key] for row in rows}.values()) for key in ("ours_s", "peer_s"))
    holds = explained == total and peer_s >= LEAST_SPEEDUP * ours_s
    differs = [row for row in compared if row["equal"] < row["values"]]
    bar.report(
        "hta_tables",
        peer_s / ours_s,
        TARGET,
        holds,
        values=total,
        equal=equal,
        equal_or_shown=explained,
        differs=[f"{row['trace']} {row['table']}: {row['first_difference']}" for row in differs],
        traces=len(runs),
        peer=f"HolisticTraceAnalysis {rows[0]['peer']}",
        ours_s=ours_s,
        peer_s=peer_s,
        peer_has_none=[f"{row['trace']} {row['table']}" for row in rows if not row["values"]],
    )
    if bar.is_verbose():
        print(bar.table([{key: str(value)[:60] for key, value in row.items()} for row in rows]))
    return 0 if holds else 1


def _without(reason: str) -> int:
    bar.report("hta_tables", float("nan"), TARGET, False, reason=reason)
    return 1


def _runs() -> dict[str, list[Path]]:
    """Traces by name, those of one run together; some traces hold no work of a device."""
    alone, together = find_shared("replay/kineto"), find_shared("replay/kineto_dlrm_8ranks")
    one_each = {} if alone is None else {path.name.split(".")[0]: [path] for path in sorted(alone.glob("*.json.gz"))}
    one_each.pop("cpu_only_gloo_rank34_of_300", None)
    ranks = [] if together is None else sorted(together.glob("rank*.json.gz"))
    return {**one_each, **({"dlrm_8ranks": ranks} if ranks else {})}


def _compared(name: str, paths: list[Path], python: str) -> Iterator[dict[str, Any]]:
    """One row per table: how many values the peer has, and how many of them are equal."""
    peer = _peer(python, paths)
    tables, seconds = _ours(paths)
    shared = {"trace": name, "ours_s": seconds, "peer_s": peer["seconds"], "peer": peer["version"]}
    found = {table: _differences(tables, paths, peer, table) for table in COMPARED}
    again = found
    if any(off for _, off in found.values()):
        with tempfile.TemporaryDirectory(prefix="hta-tables-") as folder:
            repaired = [_repaired(path, Path(folder)) for path in paths]
            asked_again = _peer(python, repaired, rounds=0)
            asked_again["tables"]["queue"] = [_summed_up(asked_again["tables"]["queue-series"])]
            again = {table: _differences(tables, repaired, asked_again, table) for table in COMPARED}
    for table, (values, off) in found.items():
        told = {"values": values, "equal": values - len(off), "equal_or_shown": values - len(again[table][1])}
        yield {"table": table, **told, "first_difference": off[0][:300] if off else "", **shared}


def _differences(tables: TraceTables, paths: list[Path], peer: dict[str, Any], table: str) -> tuple[int, list[str]]:
    """How many values the peer has, and which of them, or of ours, are not the same."""
    ours_of, peers_of = COMPARED[table]
    theirs = peers_of(peer["tables"].get(table, []))
    ours = (_paths(paths) if ours_of is None else ours_of(tables)) if theirs else {}
    off = [key for key in theirs if not _same(theirs[key], ours.get(key))]
    off += [key for key in ours if key not in theirs and table not in MAY_HAVE_MORE]
    return len(theirs), [f"{key}: there {theirs.get(key)}, here {ours.get(key)}" for key in off]


def _repaired(path: Path, folder: Path) -> Path:
    """The same trace with metadata for its first event, and without streams on host operators."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    for event in document["traceEvents"]:
        if event.get("cat") == "cpu_op":
            event.get("args", {}).pop("stream", None)
    document["traceEvents"].insert(0, {"ph": "M", "name": "process_labels", "pid": 0, "ts": 0, "args": {"labels": ""}})
    copy = folder / path.name
    copy.write_bytes(gzip.compress(json.dumps(document).encode(), 1))
    return copy


def _summed_up(frames: list[list[Row]]) -> list[Row]:
    """The peer's summary of its queues with launches before kernels at one moment."""
    queues: dict[tuple[int, int], list[tuple[float, int]]] = {}
    for row in (row for frame in frames for row in frame):
        changes = queues.setdefault((row["rank"], row["stream"]), [])
        changes.append((row["ts"], row["queue_length"]))
    rows = []
    for (rank, stream), steps in queues.items():
        change = np.diff([length for _, length in steps], prepend=0)
        times = np.array([ts for ts, _ in steps])
        spread = describe(np.cumsum(change[np.lexsort((-change, times))]))
        named = {f"queue_length_{name}": spread[ours] for name, ours in zip(SPREAD, OUR_SPREAD, strict=True)}
        rows.append({"rank": rank, "stream": stream, "queue_length_count": spread["count"], **named})
    return rows


def _same(theirs: tuple[float, ...], ours: tuple[float, ...] | None) -> bool:
    if ours is None or len(ours) != len(theirs):
        return False
    pairs = zip(theirs, ours, strict=True)
    return all(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9) or (math.isnan(a) and math.isnan(b)) for a, b in pairs)


def _peer(python: str, paths: list[Path], rounds: int = ROUNDS) -> dict[str, Any]:
    """The peer's tables, and the least of its seconds over some rounds in one process."""
    script = Path(__file__).parent / "peers" / "hta_tables.py"
    # -I: its own folder, where another hta lies, stays out of its path
    done = subprocess.run(
        [python, "-I", "-W", "ignore", str(script), str(rounds), *map(str, paths)], capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"the peer failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _ours(paths: list[Path]) -> tuple[TraceTables, float]:
    """The tables, and the least of the seconds over some rounds, the first of which compiles."""
    seconds = []
    for _ in range(ROUNDS + 1):
        before = time.perf_counter()
        tables = read_tables(paths, rules=TableRules(like_hta=True, num_kernels=ALL_NAMES))
        for table in TABLES:
            tables.table(table)
        seconds.append(time.perf_counter() - before)
    return tables, min(seconds[1:])


def _us(value: float | None) -> float:
    return float("nan") if value is None else value / 1000


def _place(tables: TraceTables) -> Callable[[int], int]:
    """Number of a rank as the peer counts them here."""
    ranks = [one.rank for one in tables.ranks]
    return ranks.index


def _rows(tables: TraceTables, name: str) -> list[dict[str, Any]]:
    place = _place(tables)
    return [{**row, "rank": place(row["rank"]) if "rank" in row else 0} for row in tables.table(name).to_pylist()]


def _temporal(tables: TraceTables) -> Values:
    parts = ("idle", "compute", "non_compute")
    return {
        (row["rank"],): (
            *(_us(row[f"{part}_ns"]) for part in (*parts, "kernel")),
            *(round(100 * row[f"{part}_ratio"], 2) for part in parts),
        )
        for row in _rows(tables, "temporal")
    }


def _peer_temporal(frames: list[list[Row]]) -> Values:
    parts = ("idle_time", "compute_time", "non_compute_time")
    names = [f"{part}(us)" for part in (*parts, "kernel_time")] + [f"{part}_pctg" for part in parts]
    return {(row["rank"],): tuple(row[name] for name in names) for row in _frame(frames, 0)}


def _frame(frames: list[list[Row]], place: int) -> list[Row]:
    return frames[place] if place < len(frames) else []


def _idle(tables: TraceTables) -> Values:
    values: Values = {}
    for row in _rows(tables, "idle"):
        key = (row["rank"], int(row["stream"]), row["cause"].replace(" ", "_"))
        values[key] = (_us(row["idle_ns"]), round(row["idle_ratio"], 2))
        values[(*key, "gaps")] = (row["num_gaps"], *(round(_us(row[f"{name}_ns"]), 2) for name in OUR_SPREAD))
    return values


def _peer_idle(frames: list[list[Row]]) -> Values:
    values: Values = {}
    for row in _frame(frames, 0):
        values[(row["rank"], row["stream"], row["idle_category"])] = (row["idle_time"], row["idle_time_ratio"])
    for row in _frame(frames, 1):
        spread = (row["count"], *(row[name] for name in SPREAD))
        values[(row["rank"], row["stream"], row["idle_category"], "gaps")] = spread
    return values


def _overlap(tables: TraceTables) -> Values:
    return {(row["rank"],): (round(100 * row["overlap_ratio"], 2),) for row in _rows(tables, "overlap")}


def _peer_overlap(frames: list[list[Row]]) -> Values:
    return {(row["rank"],): (row["comp_comm_overlap_pctg"],) for row in _frame(frames, 0)}


def _queue(tables: TraceTables) -> Values:
    return {
        (row["rank"], int(row["stream"])): (row["num_changes"], *(row[name] for name in OUR_SPREAD))
        for row in _rows(tables, "queue")
    }


def _peer_queue(frames: list[list[Row]]) -> Values:
    names = [f"queue_length_{name}" for name in ("count", *SPREAD)]
    return {(row["rank"], row["stream"]): tuple(row[name] for name in names) for row in _frame(frames, 0)}


def _queue_series(tables: TraceTables) -> Values:
    rows = [
        (row["rank"], int(row["stream"]), _us(row["time_ns"]), row["queue_length"])
        for row in _rows(tables, "queue-series")
    ]
    return _step_functions(rows)


def _peer_queue_series(frames: list[list[Row]]) -> Values:
    return _step_functions([(row["rank"], row["stream"], row["ts"], row["queue_length"]) for f in frames for row in f])


def _step_functions(rows: list[tuple[int, int, float, int]]) -> Values:
    """Length after each moment at which something changed: what happens at one moment has no order there."""
    first = {rank: min(row[2] for row in rows if row[0] == rank) for rank in {row[0] for row in rows}}
    return {(rank, stream, round(ts - first[rank], 3)): (length,) for rank, stream, ts, length in rows}


def _launches(tables: TraceTables) -> Values:
    return {
        (row["rank"], row["correlation"]): (_us(row["call_ns"]), _us(row["device_ns"]), _us(row["delay_ns"]))
        for row in _rows(tables, "launches")
        if row["call"] in LAUNCHES
    }


def _peer_launches(frames: list[list[Row]]) -> Values:
    names = ("cpu_duration", "gpu_duration", "launch_delay")
    return {(row["rank"], row["correlation"]): tuple(row[name] for name in names) for f in frames for row in f}


def _kernels(tables: TraceTables) -> Values:
    names = ("sum_ns", "max_ns", "min_ns", "mean_ns", "std_ns")
    values = {(r["rank"], r["kind"], r["name"]): tuple(_us(r[n]) for n in names) for r in _rows(tables, "kernels")}
    kinds = {
        (row["kinds"],): (_us(row["sum_ns"]), round(100 * row["ratio"], 1)) for row in tables.table("kinds").to_pylist()
    }
    return {**{key: value for key, value in values.items() if key[1] != "other"}, **kinds}


def _peer_kernels(frames: list[list[Row]]) -> Values:
    names = ("sum (us)", "max (us)", "min (us)", "mean (us)", "stddev")
    kinds: Values = {
        (row["kernel_type"].lower(),): (row["sum"], row["percentage"]) for row in _frame(frames, 0) if row["sum"]
    }
    each = {
        (row["rank"], row["kernel_type"].lower(), row["name"]): tuple(row[name] for name in names)
        for row in _frame(frames, 1)
    }
    return {**kinds, **each}


def _paths(paths: list[Path]) -> Values:
    values: Values = {}
    for rank, path in enumerate(paths):
        found = hta_critical_path(path, window="ProfilerStep", occurrence=0, zero_weight_launch_edges=False)
        values |= {(rank, "length"): (_us(found.length_ns),), (rank, "events"): tuple(found.events.tolist())}
    return values


def _peer_paths(frames: list[list[Row]]) -> Values:
    values: Values = {}
    for row in _frame(frames, 0):
        values |= {(row["rank"], "length"): (row["length_us"],), (row["rank"], "events"): tuple(row["events"])}
    return values


Pair = tuple[Callable[[TraceTables], Values] | None, Callable[[list[list[Row]]], Values]]
COMPARED: dict[str, Pair] = {
    "temporal": (_temporal, _peer_temporal),
    "idle": (_idle, _peer_idle),
    "overlap": (_overlap, _peer_overlap),
    "queue": (_queue, _peer_queue),
    "queue-series": (_queue_series, _peer_queue_series),
    "launches": (_launches, _peer_launches),
    "kernels": (_kernels, _peer_kernels),
    "critical-path": (None, _peer_paths),  # from the files
}
MAY_HAVE_MORE = ("idle",)  # causes that never happened have a row here, too


if __name__ == "__main__":
    sys.exit(main())
