"""JSON -> validated graph against HolisticTraceAnalysis loading its data frame: time, peak memory, size of the store.

The largest public trace at hand is repeated, shifted in time, to at least 300 MB of unpacked JSON in a temporary
folder. Each contestant runs in processes of its own (peak memory is that of the whole process), ours before and
after the peer. The peer lives in an environment of its own: ``--peer-python PATH``, or one that this script makes
under the user's cache folder.
"""

import gzip
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import bar

PEER = "HolisticTraceAnalysis==0.5.0"
SMALLEST_BYTES = 300_000_000
GAP_US = 1_000


def main() -> int:
    """Run the contestants and print the bar; 1 if it does not hold."""
    from tests.shared_data import find_shared

    arguments = bar.peer_arguments(PEER, __doc__)
    source = _largest_trace(find_shared("replay"))
    if source is None:
        return _without("no public traces are here")
    with tempfile.TemporaryDirectory(prefix="trace-load-") as folder:
        trace = Path(folder) / "trace.json"
        copies = _repeat(source, trace)
        python = arguments.peer_python or peer_python()
        first = _run(sys.executable, "ours", trace)
        peer = _run(python, "peer", trace) if python else None
        second = _run(sys.executable, "ours", trace)
        size = trace.stat().st_size
    ours = min(first, second, key=lambda result: result["seconds"])
    details = {
        "trace": source.name,
        "copies": copies,
        "json_bytes": size,
        "ours": [first, second],
        "peer": peer,
        "store_ratio": size / ours["store_bytes"],
    }
    if peer is None:
        return _without(f"{PEER} is not installed and could not be", **details)
    speedup = peer["seconds"] / ours["seconds"]
    memory_ratio = peer["peak_bytes"] / max(first["peak_bytes"], second["peak_bytes"])
    holds = speedup >= 8 and memory_ratio >= 4 and details["store_ratio"] >= 10
    target = ">= 8 x faster, >= 4 x less peak memory than the peer, store >= 10 x smaller than JSON"
    bar.report("trace_load", speedup, target, holds, memory_ratio=memory_ratio, **details)
    if bar.is_verbose():
        rows = [{"who": "ours", **first}, {"who": "peer", **peer}, {"who": "ours again", **second}]
        print(bar.table([{key: value for key, value in row.items() if key != "store_bytes"} for row in rows]))
    return 0 if holds else 1


def _without(reason: str, **details: object) -> int:
    bar.report("trace_load", float("nan"), ">= 8 x faster than the peer", False, reason=reason, **details)
    return 1


def _largest_trace(folder: Path | None) -> Path | None:
    found = folder.glob("**/*.json.gz") if folder else iter(())
    traces = [path for path in found if not path.name.startswith(("et_", "chakra")) and "_et_" not in path.name]
    return max(traces, key=lambda path: path.stat().st_size, default=None)


def _repeat(source: Path, target: Path) -> int:
    """Write the trace's events again and again, each copy later than the one before; returns the number of copies."""
    document = json.loads(gzip.decompress(source.read_bytes()))
    events = document.pop("traceEvents")
    starts = [event["ts"] for event in events if event.get("ph") == "X"]
    ends = [event["ts"] + event["dur"] for event in events if event.get("ph") == "X" and event.get("cat") != "Trace"]
    period = max(ends) - min(starts) + GAP_US
    with target.open("w") as file:
        file.write(json.dumps(document)[:-1] + ', "traceEvents": [\n')
        copies = 0
        while file.tell() < SMALLEST_BYTES:
            file.write(",\n" if copies else "")
            file.writelines(_lines(events, copies * period))
            copies += 1
        file.write("]}")
    return copies


def _lines(events: list[dict[str, object]], shift: float) -> Iterator[str]:
    for position, event in enumerate(events):
        moved = {**event, "ts": event["ts"] + shift} if event.get("ph") != "M" and "ts" in event else event
        yield (",\n" if position else "") + json.dumps(moved, separators=(",", ":"))


def peer_python() -> str | None:
    """Python of the peer's own environment under the user's cache folder, made if it is not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "windtunnel" / "peer-hta"
    python = cache / "bin" / "python"
    if not python.exists() or subprocess.run([python, "-c", "import hta"], capture_output=True).returncode:
        shutil.rmtree(cache, ignore_errors=True)
        made = subprocess.run([sys.executable, "-m", "venv", cache], capture_output=True)
        if (
            made.returncode
            or subprocess.run([python, "-m", "pip", "install", "-q", PEER], capture_output=True).returncode
        ):
            return None
    return str(python)


def _run(python: str, who: str, trace: Path) -> dict[str, float]:
    """Load the trace in a process of its own."""
    done = subprocess.run(
        [python, "-m", "benchmarks.trace_load", "--child", who, str(trace)],
        capture_output=True,
        text=True,
        cwd=bar.ROOT,
    )
    if done.returncode:
        raise SystemExit(f"{who} failed:\n{done.stderr[-2000:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def _child(who: str, trace: Path) -> dict[str, float]:
    return _load_ours(trace) if who == "ours" else _load_peer(trace)


def _load_ours(trace: Path) -> dict[str, float]:
    from windtunnel.graph import save
    from windtunnel.sources.kineto.reader import load_kineto

    tiny = trace.with_name("tiny.json")
    tiny.write_text(json.dumps([{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 1}]))
    cold = time.perf_counter()
    load_kineto(tiny)  # compiles the loops, or loads them compiled
    before = time.perf_counter()
    graph = load_kineto(trace)
    seconds = time.perf_counter() - before
    peak = _peak_bytes()
    store = trace.with_name("trace.wt")
    shutil.rmtree(store, ignore_errors=True)
    save(graph, store)
    stored = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
    shape = {"tasks": graph.num_tasks, "edges": graph.num_edges}
    return {"seconds": seconds, "peak_bytes": peak, "cold_seconds": before - cold, "store_bytes": stored, **shape}


def _load_peer(trace: Path) -> dict[str, float]:
    from hta.common.trace_parser import parse_trace_dataframe
    from hta.configs.parser_config import ParserConfig

    before = time.perf_counter()
    _, frame, _ = parse_trace_dataframe(str(trace), ParserConfig.get_default_cfg())
    return {"seconds": time.perf_counter() - before, "peak_bytes": _peak_bytes(), "rows": len(frame)}


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(_child(sys.argv[2], Path(sys.argv[3]))))
        sys.exit(0)
    sys.exit(main())
