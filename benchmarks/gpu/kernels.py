"""Kernels of a GPU that are searched for quicker ones (stage ``kernels`` of ``benchmarks.gpu``).

In: kernels as text, one with a barrier too many. Out: what became of candidates, and the winner beside the original.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.gpu.stages import Job, Row, lacking

IS_APART = True
SEARCHING = ("llvmlite", "numba")  # packages
KERNELS = ("mirror", "scale")
SEARCH_S = 25.0


def units(job: Job) -> Sequence[str]:
    return KERNELS[:1] if job.is_small else KERNELS


def run(unit: str, job: Job) -> Row:
    missing = lacking(SEARCHING)
    if missing:
        return {"pending": f"needs {', '.join(missing)}"}
    from tests.systems.kernels import gpu_texts

    from windtunnel.errors import NotApplicableError, WindtunnelError
    from windtunnel.systems.kernels.compiling import ptx_of, read_module
    from windtunnel.systems.kernels.evolving import evolve_kernel
    from windtunnel.systems.kernels.search import Options

    kernel = {"mirror": gpu_texts.mirror_kernel, "scale": gpu_texts.scale_kernel}[unit]()
    row: Row = {"ptx_lines": len(ptx_of(read_module(kernel.function.render())).splitlines())}
    options = Options(8, 100, operators="crismph", time_limit_s=SEARCH_S)
    try:
        found = evolve_kernel(kernel, options, allowed="tests")
    except NotApplicableError as error:
        return {**row, "not_run": error.message} if job.device == "cpu" else {"failed": error.message}
    except WindtunnelError as error:
        return {"failed": error.message}
    speedup = found.verdict.speedup
    return {
        **row, "counts": found.counts, "speedup": speedup.value, "speedup_low": speedup.low,
        "label": found.verdict.label, "edits": [gene.words for gene in found.verdict.genes],
    }  # fmt: skip


def summary(rows: Mapping[str, Row], _job: Job) -> Row:
    return {"speedups": {unit: row["speedup"] for unit, row in rows.items() if "speedup" in row}}
