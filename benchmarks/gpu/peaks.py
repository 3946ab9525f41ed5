"""What the device reaches at best: products by type, and memory (stage ``peaks`` of ``benchmarks.gpu``).

In: nothing. Out: achieved rates as ``windtunnel calibrate`` measures a host's, beside those of the data sheet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from benchmarks.gpu.stages import Job, Row, lacking
from windtunnel import hardware

IS_APART = False
FORMS = ("fp32", "tf32", "bf16", "fp16", "int8")
TRIAD_BYTES = {True: 3 * 2**22, False: 3 * 2**29}  # beyond every cache


def units(job: Job) -> Sequence[str]:
    return (*(form for form in FORMS if not (job.is_small and form in ("fp16", "int8"))), "memory")


def run(unit: str, job: Job) -> Row:
    missing = lacking()
    if missing:
        return {"pending": f"needs {', '.join(missing)}"}
    from windtunnel.cost.peak import measure_bandwidth, measure_peak
    from windtunnel.errors import WindtunnelError

    threads = torch.get_num_threads()
    torch.backends.cuda.matmul.allow_tf32 = unit == "tf32"  # of no effect on the host
    try:
        if unit == "memory":
            rate = measure_bandwidth(threads, TRIAD_BYTES[job.is_small], device=job.device)
            return {"bytes_per_s": rate.bytes_per_s, "spread": rate.spread, "size_bytes": rate.size_bytes}
        peak = measure_peak("fp32" if unit == "tf32" else unit, threads, device=job.device)
    except WindtunnelError as error:
        return {"failed": error.message}
    return {"flops_per_s": peak.flops_per_s, "spread": peak.spread, "side": peak.shape[0]}


def summary(rows: Mapping[str, Row], job: Job) -> Row:
    found = {unit: row.get("flops_per_s", row.get("bytes_per_s")) for unit, row in rows.items() if "failed" not in row}
    return {"achieved_per_s": found, "data_sheet_per_s": _sheet(job)}


def _sheet(job: Job) -> dict[str, float]:
    if job.device == "cpu":
        return {}
    about = torch.cuda.get_device_properties(0)
    known = hardware.recognize(about.name, about.total_memory)
    return {**known.peak_flops_per_s, "memory": known.bandwidth_bytes_per_s} if known else {}
