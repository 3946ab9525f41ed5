"""What this machine has, what is missing, and which stages can run (stage ``check`` of ``benchmarks.gpu``)."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu.kernels import SEARCHING
from benchmarks.gpu.stages import JUDGING, Job, Row, lacking
from windtunnel import hardware

IS_APART = False
OPTIONAL = {"transformers": "bert, vit, convnext", "pytorchcv": "resnet50, inception-v3", "torch_geometric": "graphs"}
LEAST_PYTHON, LEAST_TORCH = (3, 11), (2, 11)


def units(_job: Job) -> Sequence[str]:
    return ("machine",)


def run(_unit: str, job: Job) -> Row:
    import torch

    missing = lacking()
    versions = {name: _version(name) for name in ("torch", "numpy", *JUDGING, *OPTIONAL)}
    return {
        "python": platform.python_version(),
        "versions": versions,
        "device": device(job.device),
        "host": hardware.machine().cpu_name,
        "is_old": sys.version_info[:2] < LEAST_PYTHON or _numbers(torch.__version__) < LEAST_TORCH,
        "lacking": missing,
        "lacking_for_workloads": {name: OPTIONAL[name] for name in lacking(tuple(OPTIONAL))},
        "runs": ["operators"] if missing else ["operators", "peaks", "steps", "memory", "whatifs", *_searched()],
        "records_only": ["steps", "memory"] if missing else [],
        "fix": _fix(missing),
    }


def summary(_rows: Mapping[str, Row], job: Job) -> Row:
    return run("machine", job)  # as it is now


def device(name: str) -> dict[str, Any]:
    """What the driver says of it."""
    import torch

    if name == "cpu":
        return {"name": hardware.machine().cpu_name, "is_gpu": False}
    about = torch.cuda.get_device_properties(0)
    known = hardware.recognize(about.name, about.total_memory)
    return {
        "name": about.name,
        "is_gpu": True,
        "memory_bytes": about.total_memory,
        "num_units": about.multi_processor_count,
        "capability": f"{about.major}.{about.minor}",
        "l2_bytes": getattr(about, "L2_cache_size", 0),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "in_catalog": known.name if known else "",
    }


def _searched() -> list[str]:
    return [] if lacking(SEARCHING) else ["kernels"]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())


def _fix(missing: Sequence[str]) -> str:
    if not missing:
        return ""
    return (
        f"where nothing can be installed: pip download --no-deps -d wheels {' '.join(missing)} elsewhere, for this "
        "Python and platform; pip install --no-index --no-deps --target site wheels/*.whl; PYTHONPATH=site. Or judge "
        "the recordings on another machine: the same command on a copy of the folder"
    )
