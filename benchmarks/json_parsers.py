"""Why traces are scanned by our own compiled scanner: it against orjson and typed msgspec on the same JSON.

The repeated trace of ``trace_load``, each contestant in a process of its own, in turns. The libraries decode the whole
file and stop there; ours ends with columns.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import bar
from benchmarks.trace_load import _largest_trace, _repeat

CONTESTANTS = ("scan", "orjson", "msgspec")
ROUNDS = 3


def decode(who: str, trace: Path) -> None:
    """Read the trace in one of the ways."""
    if who == "scan":
        from windtunnel.sources.kineto.trace import read_trace

        read_trace(trace)
    elif who == "orjson":
        import orjson

        orjson.loads(trace.read_bytes())
    else:
        import msgspec

        event = msgspec.defstruct(
            "Event",
            [
                ("ph", str, ""),
                ("name", str, ""),
                ("cat", str, ""),
                ("ts", float, 0.0),
                ("dur", float, 0.0),
                ("args", msgspec.Raw, msgspec.Raw(b"{}")),
            ],
        )
        document = msgspec.defstruct("Document", [("traceEvents", list[event])])
        msgspec.json.decode(trace.read_bytes(), type=document)


def child(who: str, trace: Path) -> dict[str, float]:
    """Time and peak memory of this process."""
    begun_s = time.perf_counter()
    decode(who, trace)
    seconds = time.perf_counter() - begun_s
    return {"seconds": seconds, "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def main() -> int:
    if len(sys.argv) == 4 and sys.argv[1] == "--child":
        print(json.dumps(child(sys.argv[2], Path(sys.argv[3]))))
        return 0
    from tests.shared_data import find_shared

    source = _largest_trace(find_shared("replay"))
    if source is None:
        bar.report(
            "json_parsers", float("nan"), "least peak memory of the three", False, reason="no public traces here"
        )
        return 1
    runs: dict[str, list[dict[str, float]]] = {who: [] for who in CONTESTANTS}
    with tempfile.TemporaryDirectory(prefix="json-parsers-") as folder:
        trace = Path(folder) / "trace.json"
        _repeat(source, trace)
        for _ in range(ROUNDS):
            for who in CONTESTANTS:
                command = [sys.executable, "-m", "benchmarks.json_parsers", "--child", who, str(trace)]
                done = subprocess.run(command, cwd=bar.ROOT, capture_output=True, text=True, check=True)
                runs[who].append(json.loads(done.stdout.splitlines()[-1]))
    seconds = {who: statistics.median(run["seconds"] for run in kept) for who, kept in runs.items()}
    memory = {who: max(run["peak_bytes"] for run in kept) for who, kept in runs.items()}
    ratio = min(memory["orjson"], memory["msgspec"]) / memory["scan"]
    holds = ratio >= 1
    bar.report("json_parsers", ratio, "least peak memory of the three", holds, seconds=seconds, peak_bytes=memory)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
