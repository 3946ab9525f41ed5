"""Which kernels the timed operators run, and how they are launched (stage ``operators`` of ``benchmarks.gpu``).

In: the cases of a part. Out: one file: per case its kernels with grid, block, registers, shared memory and duration.
All cases of a part are called once each under one profiler, between marks, so that it is started once.
"""

from __future__ import annotations

import gzip
import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.cases import Case
from benchmarks.gpu.stages import Job
from windtunnel.base.outputs import whole
from windtunnel.measure.devices import uses_gpu

MARK = "case:"
LIMITS = ("grid", "block", "registers per thread", "shared memory")
_DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")


def note(path: Path, cases: Sequence[Case], built: Callable[[Case, str], Any], job: Job) -> None:
    """Write the kernels of these cases; nothing where there is no GPU, or the profiler has no access to it."""
    if path.is_file() or not uses_gpu(job.device):
        return
    from torch.profiler import ProfilerActivity, profile

    try:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler, torch.no_grad():
            for case in cases:
                _call_marked(case, built, job)
        with tempfile.TemporaryDirectory() as folder:
            exported = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(exported))
            document = by_case(json.loads(exported.read_bytes())["traceEvents"])
    except (RuntimeError, ValueError) as error:
        document = {"failed": str(error)[:400]}
    with whole(path) as scratch:
        scratch.write_bytes(gzip.compress(json.dumps(document).encode()))


def _call_marked(case: Case, built: Callable[[Case, str], Any], job: Job) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = case.form == "tf32"
    try:
        call = built(case, job.device)
        torch.cuda.synchronize()
        with torch.profiler.record_function(f"{MARK}{case.number}"):
            call.run()
            torch.cuda.synchronize()
    except (RuntimeError, NotImplementedError):  # its timing says why
        torch.cuda.empty_cache()


def by_case(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Kernels by case: rows of name (a row of ``names``), grid, block, registers, shared bytes, nanoseconds."""
    marks = sorted(
        (event["ts"], event["ts"] + event["dur"], event["name"].removeprefix(MARK))
        for event in events
        if event.get("cat") == "user_annotation" and event["name"].startswith(MARK)
    )
    names: dict[str, int] = {}
    found: dict[str, list[list[Any]]] = {number: [] for _, _, number in marks}
    place = 0
    for event in sorted((one for one in events if one.get("cat") in _DEVICE_WORK), key=lambda one: one["ts"]):
        while place < len(marks) and marks[place][1] < event["ts"]:
            place += 1
        if place < len(marks) and marks[place][0] <= event["ts"]:
            args = event.get("args", {})
            limits = [args.get(name) for name in LIMITS]
            row = names.setdefault(_short(event["name"]), len(names))
            found[marks[place][2]].append([row, *limits, round(1000 * event["dur"])])
    return {"names": list(names), "columns": ["name", *LIMITS, "duration_ns"], "cases": found}


def _short(name: str) -> str:
    """Without the arguments of a signature."""
    return re.sub(r"\(.*\)$", "", name.removeprefix("void "))[:240]
