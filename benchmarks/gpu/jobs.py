"""Workloads on a device, for the stages that run whole training steps (``benchmarks.gpu``).

In: a name. Out: the workload, built where its device makes every new tensor. Needs torch and numpy alone.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

import windtunnel.workloads
from benchmarks.gpu.stages import Job
from windtunnel import registry
from windtunnel.workloads import Workload

# those that need no further package come first; a3c computes on the host by design
WORKLOADS = (
    "decoder-lm",
    "translation-transformer",
    "deep-speech-2",
    "dlrm",
    "seq2seq",
    "diffusion-unet",
    "wgan-gp",
    "moe-lm",
    "ncf",
    "bert",
    "vit",
    "convnext",
    "graph-network",
    "resnet50",
    "inception-v3",
)
SMALL = ("mlp", "ncf")
__all__ = ["SMALL", "WORKLOADS", "build", "names", "parameters", "use_device"]
assert windtunnel.workloads  # registers them, whatever else is missing


def names(job: Job) -> tuple[str, ...]:
    """Those that are measured."""
    return SMALL if job.is_small else WORKLOADS


def parameters(name: str, job: Job) -> dict[str, Any]:
    """Size ``small`` keeps a GPU busy; ``tiny`` is for a test."""
    known = inspect.signature(registry.get("workload", name).function).parameters
    if "size" in known:
        return {"size": "tiny" if job.is_small else "small"}
    return {"batch_size": 16, "width": 64} if name == "mlp" and job.is_small else {}


def use_device(job: Job) -> None:
    """From here on new tensors are made there; for a process of its own."""
    torch.set_default_device(job.device)
    if job.device == "cpu":
        torch.set_num_threads(1)


def build(name: str, job: Job) -> Workload:
    """The workload on the job's device."""
    built: Workload = registry.get("workload", name).function(**parameters(name, job))
    return built
