"""What a step leaves in the allocator, in traces and in the compiler's folder, made small (for stage ``pairs``).

In: a step, a trace, or a folder of Inductor. Out: compressed JSON files. Needs torch alone.
"""

from __future__ import annotations

import gc
import gzip
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.stages import Job, Row
from windtunnel.base.outputs import whole
from windtunnel.measure.devices import finish, uses_gpu

MAX_ENTRIES = 200_000
MAX_TRACE_BYTES = 3 << 19  # 1.5 MiB
MAX_SOURCE_BYTES = 300_000
COUNTED = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
KEPT_FRAMES = ("nn.Module: ", "/scripts/", "inductor")


def write_gz(path: Path, content: Any) -> None:
    with whole(path) as scratch:
        scratch.write_bytes(gzip.compress(json.dumps(content, separators=(",", ":")).encode(), 6))


def memory(step: Callable[[], None], job: Job, path: Path) -> Row:
    """Peaks of one step, and every action of the allocator in another one."""
    if not uses_gpu(job.device):
        return {"is_on_gpu": False}
    gc.collect()
    finish(job.device)
    resting = counted("current")
    torch.cuda.reset_peak_memory_stats()
    step()
    finish(job.device)
    row: Row = {"is_on_gpu": True, "resting": resting, "peak": counted("peak"), "after": counted("current")}
    torch.cuda.memory._record_memory_history(enabled="all", context="alloc", stacks="python", max_entries=MAX_ENTRIES)
    try:
        step()
        finish(job.device)
        entries = [entry for trace in torch.cuda.memory._snapshot()["device_traces"] for entry in trace]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    write_gz(path, compact(entries))
    return {**row, "num_actions": len(entries), "size_bytes": path.stat().st_size}


def counted(moment: str) -> dict[str, int]:
    stats = torch.cuda.memory_stats()
    return {name: stats.get(f"{name}.all.{moment}", 0) for name in COUNTED}


def compact(entries: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The allocator's history as rows of numbers, with a table of actions and one of lines of scripts."""
    actions: dict[str, int] = {}
    lines: dict[str, int] = {}
    rows = []
    for entry in entries:
        line = user_line(entry.get("frames", ()))
        rows.append(
            [
                actions.setdefault(entry["action"], len(actions)),
                entry.get("addr", entry.get("device_free", 0)),
                entry.get("size", 0),
                entry.get("time_us", 0),
                entry.get("stream", 0),
                -1 if line is None else lines.setdefault(line, len(lines)),
            ]
        )
    columns = ["action", "address", "size_bytes", "time_us", "stream", "line"]
    return {"columns": columns, "actions": [*actions], "lines": [*lines], "rows": rows}


def user_line(frames: Iterable[Mapping[str, Any]]) -> str | None:
    """The innermost line of a script."""
    for frame in frames:
        path = Path(str(frame.get("filename", "")))
        if path.parent.name == "scripts":
            return f"{path.name}:{frame.get('line')}"
    return None


def slim(path: Path, *, max_bytes: int = MAX_TRACE_BYTES) -> int:
    """Drop Python frames that are no script's and no module's from a trace that is too large; how many they were."""
    if path.stat().st_size <= max_bytes:
        return 0
    trace = json.loads(gzip.decompress(path.read_bytes()))
    events = trace["traceEvents"]
    trace["traceEvents"] = [
        event
        for event in events
        if event.get("cat") != "python_function" or any(part in event.get("name", "") for part in KEPT_FRAMES)
    ]
    write_gz(path, trace)
    return len(events) - len(trace["traceEvents"])


def sources(folder: Path, path: Path) -> Row:
    """The modules that Inductor wrote, with the kernels in them; as many as fit."""
    texts: dict[str, str] = {}
    num_bytes = num_left_out = 0
    for file in sorted(folder.glob("**/*.py"), key=lambda file: file.stat().st_size):
        text = file.read_text(errors="replace")
        if "async_compile" not in text:
            continue
        size_bytes = len(gzip.compress(text.encode(), 6))
        if num_bytes + size_bytes > MAX_SOURCE_BYTES:
            num_left_out += 1
            continue
        num_bytes += size_bytes
        texts[file.relative_to(folder).as_posix()] = text
    if texts:
        write_gz(path, texts)
    return {"num_modules": len(texts), "num_left_out": num_left_out, "num_bytes": num_bytes}
